"""The distance at which a rotation sees each pair of tokens, where methods move far keys or hide them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.curves import broken_at_jumps, curves
from milepost.explore.pictures.maps import map_of
from milepost.explore.words import first_large, in_words
from milepost.methods.regions import DualChunk, LeakyRerope, Rerope, SelfExtend
from milepost.methods.rope import Rope
from milepost.schedule import Schedule, ranges
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.seams.visible import causal

Numbers = NDArray[np.float64]
CELLS = 128
"""The most cells along a side of a map."""
MOST = 3
"""The most maps of one analysis; with the curves these are four pictures."""
NEAR = 0.8
"""Curves that end before this share of the text have an axis that ends there, and of which they are this share."""
ABOVE = 4
"""A trained length so many times above all that is drawn is said, not drawn."""


def distance_map(
    schemes: Scheme | Schedule | Mapping[str, Scheme] | None = None, *, length: int = 8192, trained: int | None = None
) -> Analysis:
    """Return the distance at which the rotation sees each pair of tokens; hidden pairs have none.

        explore.distance_map()
        explore.distance_map(mp.Scheme(mp.Rope(64), mp.LeakyRerope(512, 16), mp.causal), length=4096, trained=1024)
        explore.distance_map(mp.hwfa(12, 64, 512), length=1024, trained=512)

    schemes: a scheme, a schedule, whose distinct layers are shown, or at most three schemes by name; left out, ReRoPE,
    Self-Extend and dual chunk attention for a model trained at 2,048 tokens. trained: the rule in the last picture.
    Where nothing reads positions keys have no distance: in the numbers it is 0, and no curve is drawn of it. Maps have
    at most 128 cells a side.
    Look at the last picture: a method that reaches further keeps every distance under the rule. What it gives up shows
    as steps and flat lines, where different keys are seen at one distance.
    """
    demand.whole(distance_map, "length", length, least=2)
    if schemes is None and trained is None:
        trained = 2048
    if trained is not None:
        demand.whole(distance_map, "trained", trained)
    named = _named(schemes)
    shown = (
        {}
        if schemes is not None
        else {
            name: first_large(", ".join(in_words(part) for part in scheme.answering("place")))
            for name, scheme in named.items()
        }
    )
    index = torch.linspace(0, length - 1, min(CELLS, length), dtype=torch.float64).round().long()
    every = torch.arange(length)
    maps = {name: seen(scheme, index, index) for name, scheme in named.items()}
    # The last token's keys, the nearest first.
    rows = {name: seen(scheme, every[-1:], every.flip(0))[0] for name, scheme in named.items()}
    read = {name: bool(reads(scheme)) for name, scheme in named.items()}
    limits = _span(*(each for name in named if read[name] for each in (maps[name], rows[name])))
    tokens, behind = index.double().numpy(), every.double().numpy()
    thin = slice(None, None, -(-length // 1024))
    said = "; ".join(
        f"{name}: {int(np.isfinite(each).sum()):,} keys, "
        + (f"at most {np.nanmax(each):,.6g} away" if read[name] else "their distance is not read")
        for name, each in rows.items()
    )
    lines = {name: each for name, each in rows.items() if read[name]}
    most_seen = _span(*lines.values())[1]
    # The furthest key that any of the curves has, and what lies past it.
    furthest = max((int(np.flatnonzero(np.isfinite(each))[-1]) for each in lines.values()), default=0)
    short = 0 < furthest < NEAR * (length - 1)
    if short:
        thin = slice(0, math.ceil(furthest / NEAR) + 1, -(-furthest // 1024))
    above = trained is not None and trained > ABOVE * most_seen
    again = [name for name, scheme in named.items() if DualChunk in map(type, scheme.answering("place"))]
    return Analysis(
        "distance_map",
        _title(named, isinstance(schemes, Schedule), most_seen, length, trained),
        f"What the last of {length:,} tokens sees. {said}.",
        (
            axis("query", tokens, "tokens"),
            axis("key", tokens, "tokens"),
            axis("distance", behind, "tokens"),
            *(array(name, values, "tokens", "query", "key") for name, values in maps.items()),
            *(array(f"{name}, last token", values, "tokens", "distance") for name, values in rows.items()),
        ),
        (
            *(
                map_of(
                    shown.get(name, name),
                    values,
                    tokens,
                    tokens,
                    row_name="query",
                    column_name="key",
                    unit="distance",
                    limits=limits,
                    hidden="future keys" if _causal(named[name]) else "hidden keys",
                    marked=[(tokens[0], tokens[0], tokens[-1], tokens[-1])] if read[name] else [],
                    mark_name="distance 0",
                    flat="" if read[name] else "no distance read",
                )
                for name, values in maps.items()
            ),
            *(
                (
                    curves(
                        "What the last token sees",
                        behind[thin],
                        {name: broken_at_jumps(each[thin]) for name, each in lines.items()},
                        x_name="distance in the text, in tokens" + (f"; none past {furthest:,}" if short else ""),
                        y_name="distance as seen" + (f"; trained length, {trained:,}, is above" if above else ""),
                        level=None if trained is None or above else (float(trained), f"trained length, {trained:,}"),
                    ),
                )
                if lines
                else ()
            ),
        ),
        f"{length:,} tokens"
        + ("" if trained is None else f" · trained at {trained:,}")
        + (f" · {' and '.join(again)}: distances start again at each chunk of keys" if again else "")
        + "".join(f" · {each}" for each in _slowed(named)),
    )


def _span(*every: Numbers) -> tuple[float, float]:
    """Return the least and the largest of several arrays; what is hidden has no number."""
    return min((float(np.nanmin(each)) for each in every), default=0.0), max(
        (float(np.nanmax(each)) for each in every), default=0.0
    )


def _slowed(named: Mapping[str, Scheme]) -> list[str]:
    """Return what leaky methods do to far tokens, in words."""
    return [
        f"{name}: past {part.window:,} each token counts {_share(part.factor)}"
        for name, scheme in named.items()
        for part in scheme.answering("place")
        if isinstance(part, LeakyRerope)
    ]


def _share(factor: float) -> str:
    """Return how much a token counts that is slowed by a factor."""
    return f"1/{factor:g}" if factor > 1 else f"{1 / factor:g}"


def _title(named: Mapping[str, Scheme], layers: bool, most: float, length: int, trained: int | None) -> str:
    """Return whether every distance was met in training; layers: of one model, which are one way."""
    unread = [name for name, scheme in named.items() if not reads(scheme)]
    if layers and 0 < len(unread) < len(named):
        words = [
            f"{name} {_verb(name)} {'a window' if _windowed(scheme) else 'all keys'}"
            + (" but no distance" if name in unread else "")
            for name, scheme in named.items()
        ]
        return first_large(", ".join(words))
    if trained is None or trained >= length:
        return f"Distances as {_reader(named)} them"
    if most >= trained:
        return f"Distances go up to {most:,.0f}; training met those below {trained:,}"
    kept = f"within the {trained:,} trained"
    ways = "", "Two ways to keep every distance", "Three ways to keep every distance"
    return f"Every distance stays {kept}" if layers or len(named) == 1 else f"{ways[len(named) - 1]} {kept}"


def _verb(layers: str) -> str:
    """Return what one layer or several do."""
    return "see" if layers.startswith("layers") else "sees"


def _windowed(scheme: Scheme) -> bool:
    """True if keys behind are hidden, from some distance on."""
    zero, far = torch.zeros((), dtype=torch.long), torch.tensor([[1 << 24]])
    visible = scheme.see(zero, zero, far, torch.zeros_like(far))
    return visible is not None and not bool(visible.all())


def _reader(named: Mapping[str, Scheme]) -> str:
    """Return what sees the distances."""
    if all(scheme.answering("turn") for scheme in named.values()):
        return "the rotation sees"
    return "the method reads" if len(named) == 1 else "the methods read"


def _causal(scheme: Scheme) -> bool:
    """True if just the keys ahead are hidden."""
    at = torch.arange(64)
    hidden = torch.tensor(np.isnan(seen(scheme, at, at)))
    return bool(torch.equal(hidden, at[:, None] < at[None, :]))


def _named(schemes: Scheme | Schedule | Mapping[str, Scheme] | None) -> dict[str, Scheme]:
    """Return the schemes by name."""
    if schemes is None:
        rope = Rope(64)
        parts = {"ReRoPE": Rerope(1024), "Self-Extend": SelfExtend(8, 1024), "Dual chunks": DualChunk(1536, 256)}
        return {name: Scheme(rope, part, causal) for name, part in parts.items()}
    if isinstance(schemes, Scheme):
        shown = schemes.answering("place") or reads(schemes)
        return {", ".join(map(spell, shown)) or "no distances": schemes}
    if isinstance(schemes, Schedule):
        kinds: dict[str, list[int]] = {}
        for layer, scheme in enumerate(schemes):
            kinds.setdefault(str(scheme), []).append(layer)
        named = {f"layer{'s' * (len(each) > 1)} {ranges(each)}": schemes[each[0]] for each in kinds.values()}
    else:
        named = by_name(distance_map, schemes, '{"RoPE": Scheme(Rope(64), causal)}, or one Scheme or Schedule')
    if not all(isinstance(each, Scheme) for each in named.values()):
        raise TypeError("distance_map: give a Scheme, a Schedule, or a dict of names and schemes")
    if len(named) > MOST:
        raise ValueError(f"distance_map: {len(named)} maps in one picture; give at most {MOST}: {', '.join(named)}")
    return named


def reads(scheme: Scheme) -> list[Any]:
    """Return the parts that read the distances of pairs."""
    return list(dict.fromkeys(part for verb in ("turn", "bend", "relate") for part in scheme.answering(verb)))


def seen(scheme: Scheme, index: Tensor, key_index: Tensor) -> Numbers:
    """Return the distance of each pair [t s], NaN where it is hidden."""
    found = scheme.distances(index, key_index)[0]
    if not reads(scheme):
        found = torch.where(found.isnan(), found, 0.0)
    zero = torch.zeros((), dtype=torch.long)
    visible = scheme.see(zero, zero, index[:, None], key_index[None, :])
    return (found if visible is None else found.masked_fill(~visible, torch.nan)).cpu().numpy()
