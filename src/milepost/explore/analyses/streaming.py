"""What a cache holds while text streams through it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from milepost.cache import Cache
from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.maps import map_of
from milepost.explore.words import in_words
from milepost.methods.regions import Stream
from milepost.methods.rope import Rope
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell


def stream_cache(stream: Any = None, *, length: int = 96) -> Analysis:
    """Return what a cache holds at every step of a text, trimmed to what a later token may see, and what is seen.

        explore.stream_cache(mp.Stream(4, 28), length=96)

    stream: a Stream, Stream(4, 28) if left out. Tokens go through `mp.Cache` one at a time: append, attend, trim.
    Look at the columns of the first tokens, the sinks. They are the darkest of the first map: they stay, at the
    greatest distance that there is in the cache. Every other token leaves when the window has passed it, and is lost.
    """
    stream = Stream(4, 28) if stream is None else stream
    if not isinstance(stream, Stream):
        raise TypeError(f"stream_cache: {spell(stream)} is no Stream; give one, such as mp.Stream(4, 28)")
    demand.whole(stream_cache, "length", length, least=2)
    scheme = Scheme(Rope(2), stream)
    cache, token = Cache(scheme), torch.zeros(1, 1, 1, 2)
    slots, seen = (np.full((length, length), np.nan) for _ in range(2))
    kept, zero = np.empty(length), torch.zeros((), dtype=torch.long)
    for step in range(length):
        cache.append(token, token)
        held = cache.index.plain[0]
        found = scheme.distances(torch.tensor([step]), held)[0, 0]
        visible = scheme.see(zero, zero, torch.tensor([[step]]), held[None])
        assert visible is not None
        seen[step, held.numpy()] = found.masked_fill(~visible[0], torch.nan).numpy()
        cache.trim(scheme)
        left = cache.index.plain[0]
        slots[step, left.numpy()] = np.arange(len(left))
        kept[step] = len(left)
    steps = np.arange(length, dtype=np.float64)
    names: dict[str, Any] = {"row_name": "step", "column_name": "token", "hidden": "future, or dropped"}
    whole = int(np.isfinite(seen[-1]).sum())
    which = f"{whole}: {stream.sinks} sinks and the last {stream.reach}" if whole < length else f"all {length}"
    return Analysis(
        "stream_cache",
        "StreamingLLM: what the cache keeps while a text streams through it",
        f"After {length:,} tokens the cache keeps {kept[-1]:.0f} of them, and the last token saw {which}. No "
        f"distance was above {np.nanmax(seen):.0f}.",
        (
            axis("step", steps, "tokens"),
            axis("token", steps, "tokens"),
            array("distance seen", seen, "tokens", "step", "token"),
            array("slot kept", slots, "", "step", "token"),
            array("kept", kept, "tokens", "step"),
        ),
        (
            map_of("Distance at which each token is seen", seen, steps, steps, unit="distance", **names),
            map_of(
                "Place in the cache, once the step is over",
                slots,
                steps,
                steps,
                unit="place",
                **names,
                border=(float(stream.sinks), "sinks", "others") if stream.sinks else None,
            ),
            curves(
                "Tokens kept between steps",
                steps + 1,
                {"cache of all tokens": steps + 1, f"StreamingLLM, {kept[-1]:.0f} at most": kept},
                x_name="tokens so far",
                y_name="tokens kept",
            ),
        ),
        f"{in_words(stream)}, the query included · {kept[-1]:.0f} tokens are kept between steps: the "
        f"{_nth(int(kept[-1]) + 1)} place is the next token's",
    )


def _nth(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
