"""CoPE on a text: which gates are open, what they count, and what is looked up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import milepost as mp
from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.maps import map_of
from milepost.explore.pictures.sentence import sentence
from milepost.seams import demand
from milepost.seams.arguments import spell

SPOKEN = {".": "“.” stop", ",": "“,” comma"}
"""Marks that are too small to read beside a map without their names."""
TEXT = "Alice sings in the hall. Bob sleeps. Carol reads the letter. Who sleeps?"


def cope_counts(
    cope: mp.Cope | None = None,
    *,
    text: str | Sequence[str] = TEXT,
    opens: Sequence[str] | Mapping[str, float] | None = (".",),
    logit: float = 8.0,
    q: Tensor | None = None,
    k: Tensor | None = None,
    query: int = -1,
    seed: int = 0,
) -> Analysis:
    """Show which words open a gate of CoPE, the counts that come of it, and what is looked up for each.

        explore.cope_counts()
        explore.cope_counts(opens={".": 1.0, "reads": 0.5})     # a gate half open: counts between whole numbers
        explore.cope_counts(opens=None, logit=40.0)             # every gate open: relative positions
        explore.cope_counts(cope, text=words, q=q, k=k)         # a head of a model, [t head_dim] each

    Where the full stops alone open a gate, all words of a sentence have one count: how many sentences ago it was. Where
    all gates are open, the count is the distance + 1, and CoPE is a learned relative position.

    cope: the part; one of 8 positions with a table drawn at random if left out. text: words, or one that is cut into
    words and marks. q, k: left out, they are made so that every query scores `logit` on the words that `opens` names,
    on every word if it is None, and −logit on the others; a dict says how far each word opens its gate. query: the word
    whose row is drawn by itself.
    """
    demand.finite(cope_counts, "logit", logit)
    words: list[str] = re.findall(r"\w+|[^\w\s]", text) if isinstance(text, str) else list(text)
    if not words:
        raise ValueError(f"cope_counts(text={text!r}): there is no word in it")
    if not -len(words) <= query < len(words):
        raise ValueError(f"cope_counts(query={query}): the text has {len(words)} words, counted from 0")
    part = _drawn(seed) if cope is None else cope
    if part.gates not in ("scores", "keys"):
        raise ValueError(f'cope_counts: {spell(part)} reads what is not here; give one of gates="scores" or "keys"')
    if (q is None) != (k is None):
        raise ValueError("cope_counts: q and k come together; give both, or neither")
    drawn = q is None or k is None
    if q is None or k is None:
        q, k = _opening(words, opens, logit, part.head_dim, seed)
    for name, each in (("q", q), ("k", k)):
        if each.shape != (len(words), part.head_dim):
            raise ValueError(f"cope_counts: {name} must be [{len(words)} {part.head_dim}], given {list(each.shape)}")
    q, k = q.detach().double()[None, None], k.detach().double()[None, None]
    with torch.no_grad():
        plain, bent = mp.scores(q, k, mp.Scheme(mp.causal)), mp.scores(q, k, mp.Scheme(part, mp.causal))
        hidden = plain[0, 0] == -torch.inf
        gates, counts, added = (
            each[0, 0].double().masked_fill(hidden, torch.nan).numpy()
            for each in (part.opened(plain, q, k), part.counts(plain, q, k), bent - plain)
        )
        entries = part.by_count(q)[0, 0].double().numpy()
    row = query % len(words)
    at, places = np.arange(len(words), dtype=np.float64), np.arange(part.positions, dtype=np.float64)
    says = (
        f"{words[row]!r} is {row} words and marks after the first word; the gates between count {counts[row, 0]:.2f}. "
        f"On average a gate is {np.nanmean(gates):.0%} open; the table has rows for counts up to {part.positions - 1}."
    )
    reach = slice(0, row + 1)
    numbers = {
        "count": [f"{each:.1f}" for each in counts[row, reach]],
        "distance": [f"{row - n}" for n in range(row + 1)],
        "added": [f"{each:+.2f}".replace("-", "−") for each in added[row, reach]],
    }
    # More words than these would be written over one another.
    labels = [SPOKEN.get(each, each if each.isalnum() else f"“{each}”") for each in words] if len(words) <= 20 else ()
    by_hand: Mapping[str, float] = opens if drawn and isinstance(opens, Mapping) else {}
    gates_set = ", ".join(f"{SPOKEN.get(word, word)} {share:g}" for word, share in by_hand.items())
    names: dict[str, Any] = {"row_name": "query", "column_name": "key", "hidden": "future keys", "words": labels}
    return Analysis(
        "cope_counts",
        "CoPE: a position is the number of gates that are open on the way",
        says,
        (
            axis("query", at),
            axis("key", at),
            axis("count", places),
            array("gate", gates, "", "query", "key"),
            array("counted", counts, "open gates", "query", "key"),
            array("added", added, "score", "query", "key"),
            array("looked up", entries, "score", "query", "count"),
        ),
        (
            sentence(
                f"The text as {words[row]!r} sees it, {row} words and marks after the first",
                words[reach],
                gates[row, reach],
                numbers,
                bar_name="gate",
            ),
            curves(
                f"What {words[row]!r} adds at each count; between counts, linear",
                places,
                {"": entries[row]},
                x_name="count of open gates",
                y_name="added to the score",
            ),
            map_of(
                "How far each key opens its gate for each query", gates, at, at, unit="gate", **names, limits=(0.0, 1.0)
            ),
            map_of(
                "Count: the gates open from the key to the query",
                counts,
                at,
                at,
                unit="count",
                **names,
                limits=(0.0, max(1.0, float(np.nanmax(counts)))),
            ),
        ),
        f"CoPE, {part.positions} learned positions · gate = σ(q·k/√d) · count, a key's position: the gates from it to "
        "the query, summed" + (f" · gates set by hand: {gates_set}; all others 0" if gates_set else ""),
    )


def _drawn(seed: int) -> mp.Cope:
    part = mp.Cope(32, 8).double()
    torch.nn.init.normal_(part.table, generator=torch.Generator().manual_seed(seed))
    return part


def _opening(
    words: Sequence[str], opens: Sequence[str] | Mapping[str, float] | None, logit: float, dim: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return queries and keys [t dim] that score ±logit by the word of the key; equal words are equal."""
    demand.whole(cope_counts, "head_dim", dim, least=2)
    known = {word: n for n, word in enumerate(dict.fromkeys(words))}
    drawn = torch.randn(len(known), dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = drawn[[known[word] for word in words]]
    k = torch.zeros_like(q)
    # The first channel carries the score; the others are free to look something up.
    q[:, 0] = 1.0
    k[:, 0] = torch.tensor([_logit(word, opens, logit) for word in words]) * dim**0.5
    return q, k


def _logit(word: str, opens: Sequence[str] | Mapping[str, float] | None, most: float) -> float:
    """Return what every query scores on a word: the logit of how far it opens its gate, at most so much."""
    if not isinstance(opens, Mapping):
        return most if opens is None or word in opens else -most
    share = opens.get(word, 0.0)
    demand.finite(cope_counts, "opens", share, least=0)
    if share > 1:
        raise ValueError(f"cope_counts(opens={{{word!r}: {share!r}}}): a gate is open by 0 … 1")
    if share in (0, 1):
        return most if share else -most
    return min(max(math.log(share / (1 - share)), -most), most)


__all__ = ["cope_counts"]
