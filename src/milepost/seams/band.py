"""The normal form of what is visible: four numbers that a kernel reads in place of an expression."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

MOST = 64
"""How many strips an expression may fall into before nobody looks for its normal form any more."""


@dataclass(frozen=True)
class Band:
    """Which keys a query sees: those near it, and the first few.

        j − i ≤ ahead   and   ( i − j < behind  or  j < sinks )   and   ( no chunk,  or  ⌊i/chunk⌋ = ⌊j/chunk⌋ )

    i and j are indices, which count from 0. behind and ahead are whole numbers, or ±inf: behind = inf where nothing
    behind is hidden, −inf where the first keys alone are seen; ahead = 0 is causal and ahead < 0 hides the nearest.
    """

    behind: float
    ahead: float
    sinks: int
    chunk: int | None


@dataclass(frozen=True)
class Strip:
    """Keys at most `ahead` after the query, less than `behind` before it, among the first `first`, of its own chunk.

    What two strips share is a strip again, so every expression falls into a few of them.
    """

    behind: float = math.inf
    ahead: float = math.inf
    first: float = math.inf
    chunk: int | None = None

    @property
    def furthest(self) -> tuple[float, float]:
        """How far behind and ahead a key can be: inside a chunk less than its size, and the last of the first few."""
        size = math.inf if self.chunk is None else self.chunk
        return min(self.behind, size), min(self.ahead, size - 1, self.first - 1)

    @property
    def empty(self) -> bool:
        behind, ahead = self.furthest
        return behind <= -ahead or self.first <= 0

    def within(self, other: Strip) -> bool:
        """Whether every pair of this strip lies in the other."""
        behind, ahead = self.furthest
        same_chunk = other.chunk is None or (self.chunk is not None and other.chunk % self.chunk == 0)
        return same_chunk and behind <= other.behind and ahead <= other.ahead and self.first <= other.first

    def trimmed(self) -> Strip:
        """The same pairs, without limits that no pair meets."""
        behind, ahead = replace(self, behind=math.inf, ahead=math.inf).furthest
        return replace(
            self,
            behind=math.inf if self.behind >= behind else self.behind,
            ahead=math.inf if self.ahead >= ahead else self.ahead,
        )


Strips = Sequence[Strip] | None
"""Pairs that lie in any of the strips; None where the pairs are not made of strips."""


def strips_of(band: Band | None) -> Strips:
    """The strips of a normal form."""
    if band is None:
        return None
    near = Strip(band.behind, band.ahead, chunk=band.chunk)
    return either([near], [replace(near, behind=math.inf, first=band.sinks)])


def both(one: Strips, other: Strips) -> Strips:
    """What lies in both."""
    if one is None or other is None:
        return None
    shared = [_shared(a, b) for a in one for b in other]
    return _tidy([strip for strip in shared if strip is not None]) if None not in shared else None


def either(one: Strips, other: Strips) -> Strips:
    """What lies in one of the two."""
    return None if one is None or other is None else _tidy([*one, *other])


def outside(strips: Strips) -> Strips:
    """What lies in none of the strips."""
    left: Strips = [Strip()]
    for strip in strips or ():
        # Neither `later than the first few` nor `of another chunk` is a strip.
        if strip.first != math.inf or strip.chunk is not None:
            return None
        left = both(left, [Strip(behind=-strip.ahead), Strip(ahead=-strip.behind)])
    return None if strips is None else left


def fitted(strips: Strips) -> Band | None:
    """The one band that the strips make together, or None."""
    if strips is None or len(strips) > 2:
        return None
    if not strips:
        return Band(-math.inf, math.inf, 0, None)
    near = [strip for strip in strips if strip.first == math.inf]
    first = [strip for strip in strips if strip.first != math.inf]
    if len(near) > 1 or len(first) > 1 or any(strip.behind != math.inf for strip in first):
        return None
    if not first:
        return Band(near[0].behind, near[0].ahead, 0, near[0].chunk)
    sinks = int(first[0].first)
    if not near:
        return Band(-math.inf, first[0].ahead, sinks, first[0].chunk)
    # One limit ahead serves both: no first key may lie past it, and none that it lets in may be hidden.
    ahead = near[0].ahead
    if near[0].chunk != first[0].chunk or first[0].furthest[1] > ahead or near[0].behind < -first[0].ahead:
        return None
    return Band(near[0].behind, ahead, sinks, near[0].chunk)


def common(bands: Iterable[Band | None]) -> Band | None:
    """The normal form of what is seen by all: None where one has none, or where they make no band together."""
    strips: Strips = [Strip()]
    for band in bands:
        strips = both(strips, strips_of(band))
    return fitted(strips)


def _shared(a: Strip, b: Strip) -> Strip | None:
    """The strip of the pairs in both; None where neither chunk is made of whole ones of the other."""
    chunks = sorted(strip.chunk for strip in (a, b) if strip.chunk is not None)
    if chunks and chunks[-1] % chunks[0]:
        return None
    limits = min(a.behind, b.behind), min(a.ahead, b.ahead), min(a.first, b.first)
    return Strip(*limits, chunk=chunks[0] if chunks else None)


def _tidy(strips: list[Strip]) -> Strips:
    """The same pairs in the fewest strips that are found: none empty, none within another, neighbours joined."""
    kept = list(dict.fromkeys(strip.trimmed() for strip in strips if not strip.empty))
    if len(kept) > MOST:
        return None
    for a, b in combinations(kept, 2):
        joined = _joined(a, b)
        if joined is not None:
            return _tidy([strip for strip in kept if strip not in (a, b)] + [joined])
    return kept


def _joined(a: Strip, b: Strip) -> Strip | None:
    """One strip for two, where they make one."""
    if a.within(b) or b.within(a):
        return b if a.within(b) else a
    if a.chunk != b.chunk:
        return None
    if (a.behind, a.ahead) == (b.behind, b.ahead):
        return replace(a, first=max(a.first, b.first))
    if a.first == b.first and a.behind >= -b.ahead and b.behind >= -a.ahead:
        return replace(a, behind=max(a.behind, b.behind), ahead=max(a.ahead, b.ahead))
    return None
