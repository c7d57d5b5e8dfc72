"""A score with its two intervals, and the difference of two scores on the same windows, with its own two.

What windows have in common, a hard passage say, falls out of a difference; so it is far more certain than either score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from milepost.lab.statistics.intervals import chance, freedom_over_windows, over_seeds, over_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST = 3
"""Seeds of a verdict. One seed speaks of its checkpoint; an interval over two says next to nothing."""


@dataclass(frozen=True)
class Measure:
    """A mean, and half the width of each of its 95 % intervals."""

    mean: float
    half: float | None
    """Over windows: what these very checkpoints would score on more of such text."""
    seeds: int
    judged: int
    """How many bytes, or answers, were judged for it."""
    between: float | None = None
    """Over seeds: what the method would score on this very text. None for one seed."""
    by_seed: Mapping[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]], repr=False)
    """By seed, one number a window; nothing where windows were not kept."""
    drawn: bool = False
    """Whether windows were drawn at random, and so are independent."""

    @property
    def interval(self) -> float | None:
        """Half the interval that is shown: over seeds where there are several."""
        return self.between if self.seeds > 1 else self.half


@dataclass(frozen=True)
class Difference:
    """How much more one row has than another, window by window, with half the width of each 95 % interval."""

    mean: float
    windows: float | None
    """Over windows: of these checkpoints."""
    seeds: float | None
    """Over seeds: of the methods. None for one seed, which ranks no method."""
    count: int = 1
    """How many seeds both rows have."""
    p: float | None = None
    """Two-sided, by the interval that gives the larger one, and of one comparison alone."""

    @property
    def half(self) -> float | None:
        """Return the wider of the two, or None where one cannot be given, as with two seeds."""
        if 1 < self.count < FEWEST:
            return None
        wanted = (self.windows,) if self.count == 1 else (self.windows, self.seeds)
        known = [each for each in wanted if each is not None]
        return max(known) if len(known) == len(wanted) else None

    @property
    def sign(self) -> int:
        """1 or −1 where the difference is significant by every interval there is, else 0."""
        if 1 < self.count < FEWEST:
            return 0
        if self.mean == math.inf or self.mean == -math.inf:
            return 1 if self.mean > 0 else -1
        if self.half is None or not abs(self.mean) > self.half:
            return 0
        return 1 if self.mean > 0 else -1


def measured(by_seed: Mapping[int, tuple[float, ...]], drawn: bool = False, judged: int = 0) -> Measure:
    """Return the measure of some seeds, from the bits of every window."""
    values = _together(list(by_seed.values()))
    if values is None:
        # Seeds that were judged on different windows have means, and no interval over windows.
        means = np.array([sum(each) / len(each) for each in by_seed.values()], dtype=np.float64)
        return Measure(float(means.mean()), None, len(means), judged, known(over_seeds(means)), by_seed, drawn)
    windows, seeds = halves(values, drawn)
    return Measure(float(values.mean()), known(windows), len(values), judged, known(seeds), by_seed, drawn)


def paired(one: Measure | None, other: Measure | None) -> Difference | None:
    """Return how much more one has than the other on the same windows; None where they have none in common."""
    if one is None or other is None:
        return None
    seeds = [seed for seed in one.by_seed if seed in other.by_seed]
    values = _together([each.by_seed[seed] for each in (one, other) for seed in seeds])
    if values is None:
        return None
    with np.errstate(all="ignore"):
        values = values[: len(seeds)] - values[len(seeds) :]
        windows, between = halves(values, one.drawn)
        mean, freedom = float(values.mean()), freedom_over_windows(values.shape[1], one.drawn)
        of_each = ((windows, freedom), (between, len(seeds) - 1))
        chances = [chance(mean, float(half), each) for half, each in of_each if each]
        largest = max(filter(math.isfinite, chances), default=None)
        return Difference(mean, known(windows), known(between), len(seeds), largest)


def halves(values: NDArray[np.float64], drawn: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Half the widths of both intervals of the mean of [… seeds, windows]: over windows, and over seeds."""
    with np.errstate(all="ignore"):
        return (over_seeds if drawn else over_windows)(values.mean(-2)), over_seeds(values.mean(-1))


def known(half: float | NDArray[np.float64]) -> float | None:
    """Return a half that is a number, or None."""
    return float(half) if math.isfinite(float(half)) else None


def _together(rows: Sequence[tuple[float, ...]]) -> NDArray[np.float64] | None:
    """Rows of equally many windows as one array; None where there are none, or they differ."""
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        return None
    return np.array(rows, dtype=np.float64)
