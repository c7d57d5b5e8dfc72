"""A part for some of the heads that it was made for: what tensor parallelism and exchanged heads run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from milepost.memory.fixed import OURS
from milepost.seams.arguments import spell
from milepost.seams.facets import FACETS, SHOWN_BY, Slopes, has_facet
from milepost.seams.verbs import Relation, Side, Table, answers


@dataclass(frozen=True)
class Heads:
    """Heads first … first + heads − 1 of a part that was made for more. What it learns is the part's own.

    It answers what the part answers, verb by verb and facet by facet, with the part's answers for these heads.
    """

    part: Any
    first: int
    heads: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "part":
            raise AttributeError(name)
        if name in FACETS and name not in SHOWN_BY and not has_facet(self.part, name):
            raise AttributeError(name)
        found = getattr(self.part, name)
        return functools.partial(_TAKEN[name], self, found) if name in _TAKEN and callable(found) else found

    @property
    def all(self) -> int | None:
        """How many heads the part has, where it cares."""
        return getattr(self.part, "heads", None)

    def of(self, values: Tensor, axis: int = 0) -> Tensor:
        """Return those of these heads; along the axis values has all heads, or one for all."""
        return values if values.shape[axis] == 1 != self.all else values.narrow(axis, self.first, self.heads)


def taken(part: object, first: int, count: int) -> object:
    """Return a part for the heads first … first + count − 1; itself where it treats all heads alike."""
    if getattr(part, "gates", None) == "own":
        raise ValueError(
            f"scheme.take_heads: {spell(part)} makes keys for all heads from the layer inputs, and some of the heads "
            f"cannot be taken"
        )
    own = type(part).__module__.startswith(OURS)
    by_head = isinstance(getattr(part, "heads", None), int) or getattr(part, "by_head", False)
    if by_head and answers(part, "turn") and not (own and getattr(part, "turns_first", False)):
        raise ValueError(
            f"scheme.take_heads: {spell(part)} turns keys head by head, and which of the key heads go with some of the "
            f"heads is not known"
        )
    # A class of another's may read the head unannounced.
    reads = not own and any(answers(part, verb) for verb in _TAKEN)
    return Heads(part, first, count) if by_head or reads else part


def _bend(
    own: Heads, bend: Callable[..., Tensor], score: Tensor, batch: Tensor, head: Tensor, *at: Any, **length: Any
) -> Tensor:
    return bend(score, batch, head + own.first, *at, **length)


def _see(own: Heads, see: Callable[..., Tensor], batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return see(batch, head + own.first, i, j)


def _turn(
    own: Heads, turn: Callable[..., Tensor], x: Tensor, position: Tensor, side: Side = "query",
    length: Tensor | int | None = None,
) -> Tensor:  # fmt: skip
    """Turn queries x [b h t d] among zeros for all other heads."""
    if own.all is None or side != "query":
        return turn(x, position, side, length)
    whole = x.new_zeros(x.shape[0], own.all, *x.shape[2:]).slice_scatter(x, 1, own.first, own.first + own.heads)
    return own.of(turn(whole, position, side, length), 1)


def _sharpen(own: Heads, sharpen: Callable[..., Tensor], index: Tensor, length: Tensor) -> Tensor:
    factor = sharpen(index, length)
    return own.of(factor, 1) if factor.dim() == 3 and factor.shape[1] > 1 else factor


def _relate(own: Heads, relate: Callable[..., Relation], asked: Any) -> Relation:
    def table(found: Table | None) -> Table | None:
        return found if found is None else replace(found, rows=own.of(found.rows))

    found = relate(asked)
    shift = None if found.shift is None else own.of(found.shift)
    return Relation(table(found.keys), queries=table(found.queries), values=table(found.values), shift=shift)


def _rest(own: Heads, rest: Callable[[], Tensor]) -> Tensor:
    return own.of(rest())


def _slopes(own: Heads, slopes: Callable[..., Slopes], length: Tensor | int | None = None) -> Slopes:
    found = slopes(length)
    step = None if found.step is None else own.of(found.step, -1)
    return Slopes(own.of(found.behind, -1), own.of(found.ahead, -1), step)


def _first_axis(own: Heads, asked: Callable[[Tensor], Any], given: Tensor) -> Any:
    found = asked(given)
    return own.of(found) if isinstance(found, Tensor) else tuple(own.of(each) for each in found)


def _by_bucket(own: Heads, by_bucket: Callable[..., tuple[Tensor, Tensor]], *asked: Any) -> tuple[Tensor, Tensor]:
    table, rows = by_bucket(*asked)
    return own.of(table, 1), rows


_TAKEN: Mapping[str, Callable[..., Any]] = {
    "bend": _bend, "see": _see, "turn": _turn, "sharpen": _sharpen, "relate": _relate, "relate_at": _relate,
    "rest": _rest, "slopes": _slopes, "by_distance": _first_axis, "two_numbers": _first_axis, "by_share": _first_axis,
    "by_bucket": _by_bucket,
}  # fmt: skip
"""What of a part's answers differs from head to head; all others serve any heads as they are."""
