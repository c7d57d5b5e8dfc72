"""Turned queries and keys, one view a regime, and what masks them: what the fast backends start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from milepost.backends.rotary.by_table import rotated
from milepost.call.call import Call, span_of
from milepost.memory.internals import forward_mode
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.seams.verbs import Regime, Relation
from milepost.seams.visible import ALL, NONE, Range


@dataclass(frozen=True)
class View:
    """Queries and keys as they stand in one regime: q [b h t d], k [b g s d], turned."""

    call: Call
    regime: Regime
    q: Tensor
    k: Tensor

    @property
    def p(self) -> Tensor:
        """Return where queries stand, [b|1 t], of several axes the first."""
        return _first_axis(self.call.places(self.regime)[0])

    @property
    def r(self) -> Tensor:
        """Return where keys stand, [b|1 s]."""
        return _first_axis(self.call.places(self.regime)[1])


def _first_axis(position: Tensor) -> Tensor:
    return position[..., 0] if position.dim() == 3 else position


def views(call: Call, dtype: torch.dtype) -> list[View]:
    """Turn queries and keys for every regime that anybody can see, in the given dtype."""
    return [View(call, regime, *turned(call, dtype, number)) for number, regime in seen_regimes(call)]


def seen_regimes(call: Call) -> list[tuple[int, Regime]]:
    """Return the regimes in which anybody can be seen, with their numbers among all."""
    skips = call.scheme.is_causal and call.at_index
    regimes = enumerate(call.scheme.place())
    return [(number, regime) for number, regime in regimes if not skips or regime.distances()[1] >= 0]


def turned(call: Call, dtype: torch.dtype, number: int = 0) -> tuple[Tensor, Tensor]:
    """Return queries and keys, turned where they stand in the regime of that number."""
    scheme = call.scheme
    if not scheme.answering("turn"):
        return call.q.to(dtype), call.k.to(dtype)
    regime = scheme.place()[number]
    # Tables of cosines and sines are looked up by positions alone, and a kernel has a grid.
    by_table = (not regime.by_index or call.position_is_index) and beyond_grid(call) is None
    at_once = rotated(call, dtype, number) if by_table else None
    if at_once is not None:
        return at_once
    p, r = call.places(regime)
    q, k = scheme.turn(call.q.to(dtype), p, "query", call.length), call.k.to(dtype)
    return q, k if call.keys_turned else scheme.turn(k, r, "key", call.key_length)


def values(call: Call, dtype: torch.dtype) -> Tensor:
    """Return the values, turned where a part turns them."""
    v = call.v if call.v.dtype is dtype else call.v.to(dtype)
    parts: tuple[Any, ...] = call.scheme.answering("turn")
    # Most rotations leave values alone, and say so.
    by_cosines = len(call.scheme.answering("cos_sin")) == len(parts)
    if by_cosines and all(part.for_values(v.shape[-1]) is None for part in parts):
        return v
    return call.scheme.turn(v, call.key_position, "value", call.key_length)


def sharpened(call: Call) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return turned queries, times what sharpens them, turned keys, values, and the scale that is left."""
    factor = call.factor()
    sharp = isinstance(factor, Tensor)
    # A sharpened query is rounded once, after the product.
    q, k = turned(call, call.score_dtype if sharp else call.q.dtype)
    q = (q * factor).to(call.q.dtype) if sharp else q
    return q, k.to(call.q.dtype), values(call, call.v.dtype), 1.0 if sharp else factor


def relations(call: Call, seen: list[View], only: Tensor | None = None) -> tuple[Relation, ...]:
    """Return the tables looked up by distance, long enough for every distance in the call, or for `only` those."""
    if not call.scheme.answering("relate"):
        return ()
    if call.span is not None:
        span = call.span * max(view.regime.growth for view in seen)
    else:
        span = max(span_of(view.p, view.r) for view in seen)
    return fitting(call, call.scheme.relate(span, only))


def fitting(call: Call, related: tuple[Relation, ...]) -> tuple[Relation, ...]:
    """Refuse tables of another width than what they meet."""
    for part, relation in zip(call.scheme.answering("relate"), related, strict=True):
        tables = {"queries": relation.keys, "keys": relation.queries, "values": relation.values}
        for (name, table), met in zip(tables.items(), (call.q, call.k, call.v), strict=True):
            if table is None or table.rows.shape[-1] == met.shape[-1]:
                continue
            if name == "values":
                raise ValueError(
                    f"{spell(part)}: adds vectors of {table.rows.shape[-1]} channels to values of {met.shape[-1]} "
                    f"channels; give value_dim={met.shape[-1]}, or values=False"
                )
            demand.width(part, met, table.rows.shape[-1])
    return related


MOST_PROGRAMS = 65_535
"""Programs along the second and third axis of a CUDA grid, where kernels have rows of a batch and heads."""


def beyond_grid(call: Call, together: bool = False) -> str | None:
    """Return why no kernel can be launched for so many rows and heads; together: it has both on one axis."""
    b, h = call.q.shape[:2]
    if call.q.device.type != "cuda" or (b * h if together else max(b, h)) <= MOST_PROGRAMS:
        return None
    return f"a batch of {b:,} with {h:,} heads is more than a CUDA grid takes, {MOST_PROGRAMS:,} to an axis"


def refusal(call: Call, cannot: Mapping[str, str]) -> str | None:
    """Return why a backend that cannot answer these verbs must refuse."""
    for verb, does in cannot.items():
        for part in call.scheme.answering(verb):
            return f"{spell(part)} {does}"
    # Asked of whoever runs fused kernels; a graph that is traced has no dual numbers.
    if not torch.compiler.is_compiling() and forward_mode():
        return "forward-mode differentiation is unsupported by fused kernels"
    return None


def mask(call: Call, rows: slice = slice(None), keys: slice = slice(None)) -> Tensor | None:
    """Return which keys are visible, [b|1 h|1 t s], or None where all are."""
    if not call.scheme.answering("see") and call.documents is None:
        return None
    i, j = call.index[:, None, rows, None], call.key_index[:, None, None, keys]
    seen = call.scheme.see(*batch_and_head(call), i, j)
    if call.documents is not None and call.key_documents is not None:
        own, other = call.documents[:, None, rows, None], call.key_documents[:, None, None, keys]
        together = (own == other) & (own >= 0)
        seen = together if seen is None else seen & together
    return seen


def batch_and_head(call: Call) -> tuple[Tensor, Tensor]:
    """Return the number of each row of the batch, [b 1 1 1], and of each head, [h 1 1]."""
    b, h = (torch.arange(count, device=call.q.device) for count in call.q.shape[:2])
    return b.view(-1, 1, 1, 1), h.view(-1, 1, 1)


def possible_keys(call: Call, first: int, last: int) -> slice:
    """Return the keys that any of the rows first … last can see, as the layout and the visible parts alone can tell."""
    low, high = _meet(call, "within", first, last)
    keys = slice(int(max(low, 0)), int(min(high + 1, call.keys.count)))
    return keys if keys.start < keys.stop else slice(0, 1)


def sure_keys(call: Call, first: int, last: int) -> slice:
    """Return keys that all of the rows first … last see, told in the same way; empty where nothing is sure."""
    low, high = _meet(call, "surely", first, last)
    return slice(int(max(low, 0)), int(min(high + 1, call.keys.count))) if low <= high else slice(0, 0)


def _meet(call: Call, question: Literal["within", "surely"], first: int, last: int) -> Range:
    """Return what all visible parts answer for a range of rows, met; as numbers of keys, not as their indices."""
    layout = call.layout
    assert layout is not None
    low, high = ALL
    for part in call.scheme.answering("see"):
        answer = getattr(part, question, None)
        unknown = ALL if question == "within" else NONE
        a, b = unknown if answer is None else answer(first + layout.first, last + layout.first)
        low, high = max(low, a), min(high, b)
    return low - layout.key_first, high - layout.key_first
