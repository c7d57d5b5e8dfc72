"""Regimes that cut a text into rectangles: rows that lie together and all see the same keys, which lie together, too.

Dual chunk attention is such a case. Where tokens count up by one, every row sees one stretch of keys in each regime.
Rows of one chunk that see the same stretch are a rectangle, those that see up to themselves a causal square:

    own chunk:  a square        the chunk before:  a rectangle        all older ones:  rectangles that grow, a staircase

All of this is found on the host, from what the layout says, once for a method and a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from milepost.memory.table import by_value
from milepost.memory.tape import aside
from milepost.seams.verbs import Bound, Regime

ENOUGH = 512
"""Blocks of rows that fill the chip well: a step of the staircase that has fewer is done together with the next."""
BLOCK = 128
EACH = 512
"""Rows for each rectangle, on average, without which one pass over all rows is quicker; but a few are always fine."""
A_FEW = 8


class Rectangle(NamedTuple):
    """Queries turned as in the regime `turn`, and the keys that they all see; `slanted`: each up to itself, a square.

    `times` of them lie `step` rows, and as many keys, after one another.
    """

    turn: int
    row: int
    rows: int
    key: int
    keys: int
    slanted: bool = False
    times: int = 1
    step: int = 0


class Stretches(NamedTuple):
    """The keys that each row sees in one regime, key … end, and where the row stands there."""

    number: int
    key: Tensor
    end: Tensor
    stands: Tensor

    @property
    def some(self) -> Tensor:
        """Return the rows that see any."""
        return self.key < self.end


@by_value(64)
def cut(
    place: Any, numbers: tuple[int, ...], first: int, rows: int, key_first: int, keys: int, heads: int, alone: bool
) -> tuple[Rectangle, ...] | None:
    """Rectangles that hold every pair of a causal text once, in the order of their rows; None where there are none.

    numbers: the regimes that count. first, key_first: the indices of the first query and key. heads: of all batches;
    alone: whether there is one batch, so that rectangles that look alike can be one.
    """
    # What is found here is no part of what a call does on its device.
    with aside(), torch.device("cpu"):
        found = _stretches([(number, place.place()[number]) for number in numbers], first, rows, key_first, keys)
        own = torch.arange(rows) + (first - key_first) + 1
        if found is None or not torch.stack([each.some for each in found]).any(0).all():
            return None
        most = max(A_FEW, rows // EACH)
        made: list[Rectangle] = []
        for each in _moved(found, own):
            steps = _steps(each, own, most)
            if steps is None:
                return None
            made += _in_pairs(steps, heads)
    made = sorted(_alike(made, heads) if alone else made, key=lambda each: (each.row, each.key))
    return tuple(made) if len(made) <= most else None


def _stretches(
    regimes: Sequence[tuple[int, Regime]], first: int, rows: int, key_first: int, keys: int
) -> list[Stretches] | None:
    """Return what rows see in every regime that has a visible pair; None where keys' positions differ."""
    index, key_index = torch.arange(first, first + rows), torch.arange(key_first, key_first + keys)
    found: list[Stretches] = []
    stands: Tensor | None = None
    for number, regime in regimes:
        start, end = torch.zeros_like(index), (index - key_first + 1).clamp(0, keys)
        for bound in regime.bounds:
            ends = _within(bound, index, key_index)
            if ends is None:
                return None
            start, end = torch.maximum(start, ends[0]), torch.minimum(end, ends[1])
        one = Stretches(number, start, end, regime.query(index))
        if not bool(one.some.any()):
            continue
        at = regime.key(key_index)
        if stands is not None and not torch.equal(at, stands):
            return None
        stands = at
        found.append(one)
    return found or None


def _within(bound: Bound, index: Tensor, key_index: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the keys within a bound, from the first up to the end; measures never fall."""
    own, others = bound.measure(index).double(), (bound.key_measure or bound.measure)(key_index).double()
    if own.dim() != 1 or bool((others.diff() < 0).any()):
        return None
    if bound.mirrored:
        # low ≤ other − own < high
        return torch.searchsorted(others, own + bound.low), torch.searchsorted(others, own + bound.high)
    # own − high < other ≤ own − low
    ends = [torch.searchsorted(others, own - limit, right=True) for limit in (bound.high, bound.low)]
    return ends[0], ends[1]


def _moved(found: list[Stretches], own: Tensor) -> list[Stretches]:
    """Return the same with adjoining keys that a row sees from one position in two regimes as one, of the later.

    Past a distance both the chunk before and older ones are seen from the largest position there is.
    """
    found = list(found)
    for number, each in enumerate(found):
        for later in range(number + 1, len(found)):
            key, end, some = each.key, each.end, each.some
            other = found[later]
            meets = (other.end == key) | ~other.some
            moves = some & meets & (each.stands == other.stands) & (end < own)
            start = torch.where(moves & ~other.some, key, other.key)
            found[later] = other._replace(key=start, end=torch.where(moves, end, other.end))
            each = found[number] = each._replace(end=torch.where(moves, key, end))
    return [each for each in found if bool(each.some.any())]


def _steps(each: Stretches, own: Tensor, most: int) -> list[Rectangle] | None:
    """Return the rectangles of one regime; None where they are too many to be worth it.

    Rows that see up to themselves and begin late in what they see are a rectangle and a square.
    """
    slanted = each.some & (each.end == own)
    looks = torch.stack([each.some, slanted, each.key, torch.where(slanted, 0, each.end)])
    changes: list[int] = (looks.diff(dim=1) != 0).any(0).nonzero().flatten().add(1).tolist()  # pyright: ignore
    if len(changes) > 4 * most + 1:
        return None
    found: list[Rectangle] = []
    for row, end in pairwise([0, *changes, len(own)]):
        if not bool(each.some[row]):
            continue
        key, last, rows = int(each.key[row]), int(each.end[row]), end - row
        if not bool(slanted[row]):
            found.append(Rectangle(each.number, row, rows, key, last - key))
            continue
        start = int(own[row]) - 1
        if key < start:
            found.append(Rectangle(each.number, row, rows, key, start - key))
        found.append(Rectangle(each.number, row, rows, start, rows, True))
    return found


def _in_pairs(steps: list[Rectangle], heads: int) -> list[Rectangle]:
    """Return two steps of a staircase as the one rectangle that they share, and what the second sees besides.

    Only where one alone leaves the chip idle.
    """
    found: list[Rectangle] = []
    before: Rectangle | None = None
    for each in steps:
        follows = (
            before is not None
            and not (before.slanted or each.slanted)
            and before.key == each.key
            and before.row + before.rows == each.row
            and before.keys <= each.keys
            and _leaves_idle(max(before.rows, each.rows), heads)
        )
        if before is None or not follows:
            found.append(each)
            before = each
            continue
        found[-1] = before._replace(rows=before.rows + each.rows)
        if before.keys < each.keys:
            more = each.keys - before.keys
            found.append(each._replace(key=each.key + before.keys, keys=more))
        before = None
    return found


def _leaves_idle(rows: int, heads: int) -> bool:
    """True if so many rows leave a good part of the chip idle in their last round."""
    return heads * -(-rows // BLOCK) < ENOUGH


def _alike(rectangles: list[Rectangle], heads: int) -> list[Rectangle]:
    """Return those of one shape that lie evenly after one another, as one, where one alone leaves the chip idle."""
    by_shape: dict[Any, list[Rectangle]] = {}
    for each in rectangles:
        by_shape.setdefault((each.turn, each.rows, each.keys, each.slanted), []).append(each)
    found: list[Rectangle] = []
    for some in by_shape.values():
        steps = {(later.row - each.row, later.key - each.key) for each, later in pairwise(some)}
        step, along = next(iter(steps), (0, 0))
        if len(steps) == 1 and step == along > 0 and _leaves_idle(some[0].rows, heads):
            found.append(some[0]._replace(times=len(some), step=step))
        else:
            found += some
    return found
