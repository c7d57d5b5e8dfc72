"""Curves over an axis, named at their ends, as the reports draw them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.written import markup
from milepost.lab.report.figure import BOTTOM, INSET, LEFT, RIGHT, TOP, Curve, Panel, Point, Stroke
from milepost.lab.report.look import COLOURS, MARKERS, Look
from milepost.lab.report.scale import Axis, decades, doubling, plain, straight

if TYPE_CHECKING:
    from markupsafe import Markup

DENSE = 24
"""Curves of more points carry no markers."""
SIDES = (LEFT + INSET, RIGHT - INSET)
STYLES = ("solid", "dashed", "dotted", "dashdot")
"""What matplotlib calls the dashes d0 … d3."""


@dataclass(frozen=True)
class Curves:
    """Several curves over one axis."""

    panel: Panel

    @property
    def title(self) -> str:
        return self.panel.title

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return float(self.panel.width + self.panel.beside), float(self.panel.height)

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return self.panel.spoken

    def body(self) -> Markup:
        """Return the drawing."""
        return markup("curves.svg", panel=self.panel, strokes=[_without_gaps(each) for each in self.panel.strokes()])

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        panel = self.panel
        for curve in panel.curves:
            dash = int(curve.look.classes.rpartition("d")[2])
            x, y = ([getattr(point, name) for point in curve.points] for name in ("x", "y"))
            axes.plot(x, y, linestyle=STYLES[dash], label=curve.name)
        if panel.x.log:
            axes.set_xscale("log", base=2)
        if panel.y.log:
            axes.set_yscale("log")
        if panel.upright is not None:
            axes.axvline(panel.upright[0], color="grey", linestyle="dotted")
        if panel.level is not None:
            axes.axhline(panel.level[0], color="grey", linestyle="dotted")
        axes.set(title=panel.title, xlabel=panel.x_name, ylabel=panel.y_name)
        axes.legend(fontsize="small")


def curves(
    title: str,
    x: NDArray[np.float64],
    lines: Mapping[str, NDArray[np.float64]],
    *,
    x_name: str,
    y_name: str,
    x_scale: Literal["straight", "doubling", "decades"] = "straight",
    y_scale: Literal["straight", "decades"] = "straight",
    mark: tuple[float, str] | None = None,
    level: tuple[float, str] | None = None,
    y_range: tuple[float, float] | None = None,
) -> Curves:
    """Return a picture of lines over x, in the order given; a value that is not finite leaves a gap.

    mark, level: a vertical and a horizontal rule, and their names.
    """
    drawn = [Curve(n, name, look(n), _points(x, values)) for n, (name, values) in enumerate(lines.items())]
    values = [point.y for curve in drawn for point in curve.points if math.isfinite(point.y)] or [0.0, 1.0]
    low, high = y_range or (min(values), max(values))
    if level is not None:
        low, high = min(low, level[0]), max(high, level[0])
    panel = Panel(
        title,
        tuple(drawn),
        _x_axis(x, x_scale),
        _y_axis(low, high, y_scale),
        x_name,
        y_name,
        upright=mark if mark is not None and float(x.min()) <= mark[0] <= float(x.max()) else None,
        level=level,
        dense=len(x) > DENSE,
    )
    return Curves(panel)


def _points(x: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[Point, ...]:
    """Return the points of a curve up to its last finite one, beside which its name is written."""
    points = [Point(float(a), float(b)) for a, b in zip(x, values, strict=True)]
    while points and not math.isfinite(points[-1].y):
        points.pop()
    return tuple(points)


def look(n: int) -> Look:
    """Return the look of the nth of several curves: a hue, a dash and a marker."""
    return Look(f"c{n % COLOURS} d{n % len(STYLES)}", f"m{n % MARKERS}")


def _without_gaps(stroke: Stroke) -> Stroke:
    """Return a stroke whose markers are those of finite points."""
    pairs = zip(stroke.markers, stroke.curve.points, strict=False)
    return replace(stroke, markers=tuple(place for place, point in pairs if math.isfinite(point.y)))


def _x_axis(x: NDArray[np.float64], scale: str) -> Axis:
    low, high = float(x.min()), float(x.max())
    if scale == "doubling":
        return doubling([float(each) for each in x if each > 0], *SIDES)
    if scale == "decades":
        return decades(low, high, *SIDES)
    if len(x) <= DENSE and high > low and np.array_equal(x, np.rint(x)):
        # Few whole numbers are marked by themselves, and not between.
        marked = [float(x[n]) for n in evenly(len(x), 9)]
        return Axis(((low, SIDES[0]), (high, SIDES[1])), plain(marked))
    return straight(low, high if high > low else low + 1, *SIDES)


def _y_axis(low: float, high: float, scale: str) -> Axis:
    if scale == "decades":
        return powers_of_ten(low, high, BOTTOM, TOP)
    room = (high - low) * 0.06 or max(abs(low) * 0.1, 0.5)
    return straight(low - room, high + room, BOTTOM, TOP)


def powers_of_ten(low: float, high: float, start: float, end: float) -> Axis:
    """Return a logarithmic axis from one power of ten to another, at most eight of them marked."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    step = math.ceil((last - first) / 8)
    marked = tuple((10.0**n, _power(n)) for n in range(first, last + 1, step))
    return Axis(((10.0**first, start), (10.0**last, end)), marked, log=True)


def _power(n: int) -> str:
    """Return a power of ten as it is read."""
    return f"{10.0**n:,g}" if -4 < n < 5 else "10" + str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def evenly(count: int, most: int) -> Sequence[int]:
    """Return at most so many numbers below a count, evenly spread, the first and the last among them."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, most))})


__all__ = ["Curves", "curves", "evenly", "look", "powers_of_ten"]
