"""Axes: from a value to a place in the picture, and where the marks stand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ABOVE = 0.2
"""The share of the height that is left for what lies above a break."""


@dataclass(frozen=True)
class Axis:
    """Values to pixels: straight between knots, of the value or of its logarithm."""

    knots: tuple[tuple[float, float], ...]
    """(value, pixel), by value, values ascending."""
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    broken: float | None = None
    """Above this value the axis is compressed."""

    def at(self, value: float) -> float:
        """Return the pixel of a value; what lies outside is put on the edge."""
        places, pixels = [self._of(knot) for knot, _ in self.knots], [pixel for _, pixel in self.knots]
        return float(np.interp(self._of(value), places, pixels))

    def _of(self, value: float) -> float:
        return math.log2(value) if self.log else value


def step_of(span: float, most: int) -> float:
    """Return the least of 1, 2, 2.5 and 5 times a power of ten that fits `most` times into the span."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * (1 - 1e-9))


def marks(low: float, high: float, step: float) -> list[float]:
    """Return the multiples of a step from low to high."""
    return [round(n * step, 10) for n in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]


def plain(values: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Marks with as many decimals as they all need."""
    decimals = next((n for n in range(4) if all(abs(round(v, n) - v) < 1e-9 for v in values)), 4)
    return tuple((value, f"{value:.{decimals}f}") for value in values)


def straight(low: float, high: float, bottom: float, top: float, most: int = 6) -> Axis:
    """Return a linear axis over just these values, marked where they are round."""
    return Axis(((low, bottom), (high, top)), plain(marks(low, high, step_of(high - low, most))))


def broken(values: Sequence[float], firsts: Sequence[float], bottom: float, top: float, near: float = 0.6) -> Axis:
    """Return a linear axis for what lies near the least value; what is far off is compressed into the top fifth.

    Without the break, one row that fails would press all that hold into a single line. `firsts`, the values where every
    row should hold, are below it, but for those of a few rows that are spoiled from the first.
    """
    low, high = min(values), max(values)
    middle = statistics.median_high(firsts or [low])
    cap = max(low + near, max([each for each in firsts if each <= middle + near], default=low) + near / 4)
    if high <= low + 1.5 * (cap - low):
        room = max(0.2 - (high - low), 0.1 * (high - low)) / 2
        return straight(low - room, high + room, bottom, top)
    step = step_of(cap - low, 5)
    low, cap = low - 0.06 * (cap - low), math.ceil(cap / step - 1e-6) * step
    high += 0.06 * (high - cap)
    bend = bottom + (top - bottom) * (1 - ABOVE)
    # The mark of the break itself stands already.
    far = [each for each in marks(cap, high, step_of(high - cap, 3)) if each > cap + (high - cap) / 4]
    return Axis(((low, bottom), (cap, bend), (high, top)), plain(marks(low, cap, step)) + plain(far), broken=cap)


def doubling(values: Sequence[float], left: float, right: float, most: int = 8) -> Axis:
    """An axis on which every doubling is as wide as the next, marked at the values themselves, or at powers of two."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low / 2, high * 2
    marked = sorted(set(values))
    if len(marked) > most:
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        marked = [2.0**n for n in powers if (powers[-1] - n) % math.ceil(len(powers) / most) == 0]
    return Axis(((low, left), (high, right)), tuple((each, f"{each:,.0f}") for each in marked), log=True)


def decades(low: float, high: float, left: float, right: float) -> Axis:
    """Return a logarithmic axis marked at 1, 10, 100 …, and at its end."""
    low, high = max(low, 1), max(high, 2, low + 1)
    powers = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    marked = [each for each in powers if each * 2 < high] + [high]
    return Axis(((low, left), (high, right)), tuple((each, f"{each:,.0f}") for each in marked), log=True)
