"""Axes of the pictures: round marks, numbers as they are read, powers of ten."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from milepost.lab.report.scale import Axis, marks, plain, step_of

Numbers = NDArray[np.float64]
Tick = tuple[float, str]
FREE = 36.0
"""From one mark of an axis to the next, at least."""
FEW = 12
"""So many cells of an axis are named one by one where their numbers are not evenly spaced."""


def number(value: float) -> str:
    """Return a number as it is read: 1,024, 0.125, −3.5."""
    whole = abs(value) >= 1000 or math.isclose(value, round(value), abs_tol=1e-9)
    small = 0 < abs(value) < 1e-3
    return _signed(f"{value:.0e}" if small else f"{value:,.0f}" if whole else f"{value:.3g}")


def evenly(count: int, most: int) -> Sequence[int]:
    """Return at most so many numbers below a count, evenly spread, the first and the last among them."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, most))})


def round_marks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return round numbers from low to high, about so many; whole ones if it is whole numbers that are marked."""
    steps = (step_of(high - low, count) for count in range(most, 0, -1))
    step = next((each for each in steps if not whole or each == round(each)), 1.0)
    return marks(low, high, step)


def straight(low: float, high: float, start: float, end: float, whole: bool = False, most: int = 6) -> Axis:
    """Return a linear axis, marked at about so many round numbers; whole ones if it is whole numbers that are drawn."""
    return Axis(((low, start), (high, end)), named(round_marks(low, high, most, whole)))


def named(values: Sequence[float]) -> tuple[Tick, ...]:
    """Return marks with their names, with as many decimals as they all need."""
    decimals = max((len(label.partition(".")[2]) for _, label in plain(values)), default=0)
    return tuple((value, _signed(f"{value:,.{decimals}f}")) for value in values)


def powers_of_ten(low: float, high: float, start: float, end: float, whole: bool = True) -> Axis:
    """Return a logarithmic axis, at most eight powers of ten of which are marked.

    whole: from one power to another; otherwise just from the least value to the largest.
    """
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    step = math.ceil((last - first) / 8)
    marked = [(10.0**n, power(n)) for n in range(first, last + 1, step)]
    if whole:
        low, high = 10.0**first, 10.0**last
    inside = tuple(each for each in marked if low * (1 - 1e-9) <= each[0] <= high * (1 + 1e-9))
    return Axis(((low, start), (high, end)), inside, log=True)


def power(n: int) -> str:
    """Return a power of ten as it is read: 10⁻², 1, 10, 10²."""
    return ("1", "10")[n] if n in (0, 1) else "10" + str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def of_cells(numbers: Numbers, start: float, extent: float, words: Sequence[str] = ()) -> list[Tick]:
    """Return where some of the cells of an axis lie, and their names: round numbers, or every so many cells.

    words: names of their own, for each cell.
    """
    count = len(numbers)
    cell = extent / count

    def at(places: Sequence[float], names: Sequence[str]) -> list[Tick]:
        return [(start + (place + 0.5) * cell, name) for place, name in zip(places, names, strict=True)]

    if words:
        return at(range(count), words)
    if count == 1:
        return at([0], [number(float(numbers[0]))])
    apart = np.diff(numbers)
    # Cells that were picked from many are apart by one number or the next.
    if apart.min() > 0 and np.ptp(apart) <= max(1.0, 1e-6 * apart.mean()) and apart.mean() > np.ptp(apart):
        whole = bool(np.array_equal(numbers, np.rint(numbers)))
        values = round_marks(float(numbers[0]), float(numbers[-1]), 5 if count > FEW else 8, whole)
        # Where the numbers begin is marked too, as far as its name does not touch the next.
        if whole and values and float(np.interp(values[0], numbers, np.arange(count))) * cell >= FREE:
            values = [float(numbers[0]), *values]
        return at(np.interp(values, numbers, np.arange(count)).tolist(), [name for _, name in named(values)])
    every = next((n for n in range(1, count) if (count - 1) % n == 0 and (count - 1) // n <= 5), count - 1)
    places = range(count) if count <= FEW else range(0, count, every)
    return at(places, [number(float(numbers[n])) for n in places])


def of_bar(low: float, high: float, top: float, height: float, apart: float = 16.0) -> list[Tick]:
    """Return the marks of a bar of colours: both its ends, and round numbers between them."""
    axis = Axis(((low, top + height), (high, top)), ())
    between = round_marks(low, high, 4)
    inner = [(axis.at(value), name) for value, name in named(between)]
    free = [each for each in inner if top + apart < each[0] < top + height - apart]
    return [(top + height, number(low)), *free, (top, number(high))]


def _signed(text: str) -> str:
    return text.replace("-", "−")


__all__ = [
    "Tick", "evenly", "named", "number", "of_bar", "of_cells", "power", "powers_of_ten", "round_marks", "straight",
]  # fmt: skip
