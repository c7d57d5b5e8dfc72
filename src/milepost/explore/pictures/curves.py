"""Curves over an axis, each named where it is apart from the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.axes import evenly, powers_of_ten, straight
from milepost.explore.pictures.naming import (
    GRID,
    LETTER,
    Box,
    Name,
    about,
    beneath,
    leader,
    level_name,
    named,
    on_grid,
)  # fmt: skip
from milepost.explore.pictures.written import markup
from milepost.lab.report.figure import APART, BOTTOM, INSET, LEFT, RIGHT, TOP, Curve, Panel, Point, told_apart
from milepost.lab.report.look import COLOURS, MARKERS, Look
from milepost.lab.report.scale import Axis, doubling

if TYPE_CHECKING:
    from markupsafe import Markup

DENSE = 24
"""Curves of more points carry no markers."""
SIDES = (LEFT + INSET, RIGHT - INSET)
BESIDE = 24.0
"""From the end of a curve to its name."""
CASING = 2.6
"""How much wider a curve is drawn where another lies on it."""
SWATCH = 24.0
"""How wide the sample of a pale edge is, with what is left free after it."""
FEW = 2
"""Ranges of more curves than these are fainter."""
LETTERS = 44
"""How many letters of a name are written."""
STYLES = ("solid", "dashed", "dotted", "dashdot", (0, (10, 3)), (0, (5, 2, 1, 2, 1, 2)))
"""What matplotlib calls the dashes d0 … d5."""
UNDER = "pale edge: curves coincide"
"""What the casings mean."""
Note = tuple[float, float, str]
"""A place by its values, and what is written there."""


@dataclass(frozen=True)
class Curves:
    """Several curves over one axis."""

    panel: Panel
    marked: bool = False
    """Whether points carry markers."""
    notes: tuple[Note, ...] = ()
    ranges: tuple[tuple[Point, ...], ...] = ()
    """For each curve both ends of what it is the middle of, from left to right; drawn pale."""
    outlined: tuple[float, float, str] | None = None
    """A range of values between dashed lines, and what it is."""
    at_ends: bool = False
    """Whether every name is written beside the end of its curve, and none along it."""

    @property
    def title(self) -> str:
        return self.panel.title

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        names = [BESIDE + LETTER * len(name.text) for name in self._names()[0] if name.end is not None]
        # Two more where the last number of the axis is wide.
        return RIGHT + max(names, default=16.0), float(self.panel.height) + (14.0 if self.outlined else 0.0)

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return self.panel.spoken

    def _names(self) -> tuple[list[Name], tuple[float, float] | None, list[NDArray[np.float64]], list[Box]]:
        """Return the names of curves, where the horizontal rule is named, the curves on the grid, and what is taken."""
        panel = self.panel
        places = [[(panel.x.at(point.x), _height(panel, point)) for point in curve.points] for curve in panel.curves]
        heights = [on_grid(each) for each in places]
        boxes = [
            level_name(label, panel.y.at(value), heights, ())
            for value, label in ([panel.level] if panel.level is not None and panel.level[1] else [])
        ]
        rule = ((boxes[0].left + boxes[0].right) / 2, boxes[0].bottom - 2) if boxes else None
        if len(places) == 1 and not panel.curves[0].name:
            return [], rule, heights, boxes
        ends = [each[-1][1] if each else None for each in places]
        level = [np.full(len(GRID), panel.y.at(panel.level[0]))] if panel.level is not None else []
        short = told_apart([curve.name for curve in panel.curves], LETTERS)
        low = max(BOTTOM, TOP + APART * len(panel.curves))
        names = named([short[curve.name] for curve in panel.curves], heights, ends, low, boxes, level, self.at_ends)
        return names, rule, heights, [*boxes, *(each.box for each in names if each.end is None)]

    def body(self) -> Markup:
        """Return the drawing."""
        panel = self.panel
        names, rule, heights, boxes = self._names()
        strokes = [
            {
                "curve": each.curve,
                "line": each.line,
                "markers": [
                    (panel.x.at(point.x), panel.y.at(point.y))
                    for point in each.curve.points
                    if self.marked and math.isfinite(point.y)
                ],
            }
            for each in panel.strokes()
        ]
        notes: list[tuple[str, float, float, str, str]] = []
        for x, y, text in self.notes:
            boxes.append(about(text, panel.x.at(x), panel.y.at(y), heights, boxes))
            tie = leader(panel.x.at(x), panel.y.at(y), boxes[-1])
            # In the colour of the curve that it is about.
            own = next((each.look.classes for each in panel.curves if Point(x, y) in each.points), "")
            notes.append((own, (boxes[-1].left + boxes[-1].right) / 2, boxes[-1].bottom - 2, text, tie))
        casings = [
            {"curve": panel.curves[n], "width": 2 + CASING * depth, "line": _along(heights[n], cells)}
            for n, depth, cells in beneath(heights)
        ]
        pale = UNDER if casings else ""
        # Beside the name of the upper axis, or of the lower one, or beneath that.
        wide = SWATCH + LETTER * (len(pale) + 2)
        foot = 34 if wide + LETTER * len(panel.x_name) / 2 < (panel.right - panel.left) / 2 else 48
        free = LETTER * len(panel.y_name) + wide < panel.right
        return markup(
            "curves.svg", panel=panel, casings=casings, strokes=strokes, names=names, rule=rule, notes=notes,
            outline=self._outline(), upright_at=self._upright_at(), pale=pale, casing=CASING,
            pale_at=(panel.right - LETTER * len(pale) * 0.88, 8 if free else panel.bottom + foot),
            ranges=self._ranges(), faint=0.2 if len(self.ranges) <= FEW else 0.12,
        )  # fmt: skip

    def _upright_at(self) -> float:
        """Return where the middle of the name of the vertical rule is: over it, and not past the edges."""
        if self.panel.upright is None:
            return 0.0
        value, name = self.panel.upright
        half = 0.46 * LETTER * len(name)
        return min(max(self.panel.x.at(value), LEFT + half), RIGHT + 10 - half)

    def _outline(self) -> tuple[float, float, str] | None:
        """Return where the outlined range begins and ends, from the top, and what it is."""
        if self.outlined is None:
            return None
        low, high, name = self.outlined
        return self.panel.y.at(high), self.panel.y.at(low), name

    def _ranges(self) -> list[tuple[str, str]]:
        """Return the pale range of each curve: its look, and its outline."""
        found: list[tuple[str, str]] = []
        for curve, points in zip(self.panel.curves, self.ranges, strict=False):
            places = [f"{self.panel.x.at(point.x):.1f} {self.panel.y.at(point.y):.1f}" for point in points]
            if places:
                found.append((curve.look.classes, f"M{'L'.join(places)}Z"))
        return found

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        panel = self.panel
        for n, depth, cells in beneath(self._names()[2]):
            start, end = GRID[cells][0], GRID[cells][-1]
            points = [each for each in panel.curves[n].points if start <= panel.x.at(each.x) <= end]
            x, y = ([getattr(point, name) for point in points] for name in ("x", "y"))
            width = 1.5 + 0.75 * CASING * depth
            axes.plot(x, y, color=f"C{n}", alpha=0.4, linewidth=width, solid_capstyle="butt", zorder=1)
        if self.outlined is not None:
            for value, name in zip(self.outlined[:2], (self.outlined[2], None), strict=True):
                axes.axhline(value, color="black", linestyle="dashed", linewidth=0.8, label=name)
        for n, points in enumerate(self.ranges):
            axes.fill([point.x for point in points], [point.y for point in points], color=f"C{n}", alpha=0.2)
        for n, curve in enumerate(panel.curves):
            dash = int(curve.look.classes.rpartition("d")[2])
            x, y = ([getattr(point, name) for point in curve.points] for name in ("x", "y"))
            axes.plot(x, y, color=f"C{n}", linestyle=STYLES[dash], label=curve.name or None)
        if panel.x.log:
            axes.set_xscale("log", base=2)
        if panel.y.log:
            axes.set_yscale("log")
        if panel.upright is not None:
            axes.axvline(panel.upright[0], color="grey", linestyle="dotted")
        if panel.level is not None:
            axes.axhline(panel.level[0], color="grey", linestyle="dotted")
        for x, y, text in self.notes:
            axes.annotate(text, (x, y), xytext=(0, -12), textcoords="offset points", ha="center", fontsize="small")
        axes.set(title=panel.title, xlabel=panel.x_name, ylabel=panel.y_name)
        if any(curve.name for curve in panel.curves):
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
    notes: Sequence[Note] = (),
    ranges: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]] | None = None,
    outlined: tuple[float, float, str] | None = None,
    at_ends: bool = False,
) -> Curves:
    """Return a picture of lines over x, in the order given; a value that is not finite leaves a gap.

    mark, level: a vertical and a horizontal rule, and their names; notes: words at a place. A line whose name is empty
    is the only one, which the title names. ranges: by the name of a line, the ends of what it is the middle of.
    outlined: a range of values, and what it is. at_ends: every name beside the end of its curve, as where curves run
    close to each other. Names of logarithmic axes say that they are.
    """
    drawn = [Curve(n, name, look(n), _points(x, values)) for n, (name, values) in enumerate(lines.items())]
    values = [point.y for curve in drawn for point in curve.points if math.isfinite(point.y)] or [0.0, 1.0]
    bounds = ranges or {}
    spans = [float(each) for pair in bounds.values() for side in pair for each in side if math.isfinite(each)]
    low, high = y_range or (min([*values, *spans]), max([*values, *spans]))
    if level is not None:
        low, high = min(low, level[0]), max(high, level[0])
    panel = Panel(
        title,
        tuple(drawn),
        _x_axis(x, x_scale),
        _y_axis(low, high, y_scale, all(map(float.is_integer, values))),
        x_name if x_scale == "straight" else f"{x_name} (log)",
        y_name if y_scale == "straight" else f"{y_name} (log)",
        upright=mark if mark is not None and float(x.min()) <= mark[0] <= float(x.max()) else None,
        level=level,
        dense=True,
    )
    pale = tuple(_range(x, *bounds[name]) if name in bounds else () for name in lines) if bounds else ()
    return Curves(panel, len(x) <= DENSE, tuple(notes), pale, outlined, at_ends)


def smoothed(values: NDArray[np.float64], run: int) -> NDArray[np.float64]:
    """Return the running mean over so many values around each; fewer at both ends, as many on either side."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    at = np.arange(len(values))
    half = np.minimum(np.minimum(at, at[::-1]), run // 2)
    return (sums[at + half + 1] - sums[at - half]) / (2 * half + 1)


def around(
    values: NDArray[np.float64], at: NDArray[np.int64], run: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean, the least and the largest of so many values around some of them, from every value.

    At both ends fewer values are around one: of these there is no mean, which would be of one side.
    """
    half = run // 2
    near = [values[max(0, each - half) : each + half + 1] for each in at.tolist()]
    means = [float(each.mean()) if len(each) == 2 * half + 1 else math.nan for each in near]
    return np.array(means), np.array([each.min() for each in near]), np.array([each.max() for each in near])


def _range(x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[Point, ...]:
    """Return the outline of a range: along its top, and back along its bottom."""
    there = np.isfinite(low) & np.isfinite(high)
    over = [Point(float(a), float(b)) for a, b in zip(x[there], high[there], strict=True)]
    return (*over, *(Point(float(a), float(b)) for a, b in zip(x[there][::-1], low[there][::-1], strict=True)))


def broken_at_jumps(values: NDArray[np.float64], share: float = 0.1) -> NDArray[np.float64]:
    """Return values with a gap where one is further from the next than a share of all that they span."""
    found = np.array(values, dtype=np.float64)
    there = values[np.isfinite(values)]
    if there.size:
        found[1:][np.abs(np.diff(values)) > share * np.ptp(there)] = np.nan
    return found


def _along(heights: NDArray[np.float64], cells: slice) -> str:
    """Return the path of a curve over some places of the grid."""
    places = [f"{x:.1f} {y:.1f}" for x, y in zip(GRID[cells], heights[cells], strict=True)]
    return f"M{'L'.join(places)}"


def _height(panel: Panel, point: Point) -> float:
    return panel.y.at(point.y) if math.isfinite(point.y) else math.nan


def _points(x: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[Point, ...]:
    """Return the points of a curve up to its last finite one, beside which its name is written."""
    points = [Point(float(a), float(b)) for a, b in zip(x, values, strict=True)]
    while points and not math.isfinite(points[-1].y):
        points.pop()
    return tuple(points)


def look(n: int) -> Look:
    """Return the look of the nth of several curves: a hue, a dash and a marker."""
    return Look(f"c{n % COLOURS} d{n % len(STYLES)}", f"m{n % MARKERS}")


def _x_axis(x: NDArray[np.float64], scale: str) -> Axis:
    low, high = float(x.min()), float(x.max())
    if scale == "doubling":
        return doubling([float(each) for each in x if each > 0], *SIDES)
    if scale == "decades":
        return powers_of_ten(low, max(high, low * 2), *SIDES, whole=False)
    # Few whole numbers are marked by themselves, and not between.
    whole = len(x) <= DENSE and np.array_equal(x, np.rint(x))
    return straight(low, high if high > low else low + 1, *SIDES, bool(whole), 8 if whole else 6)


def _y_axis(low: float, high: float, scale: str, whole: bool) -> Axis:
    if scale == "decades":
        return powers_of_ten(low, high, BOTTOM, TOP)
    room = (high - low) * 0.06 or max(abs(low) * 0.1, 0.5)
    return straight(low - room, high + room, BOTTOM, TOP, whole)


__all__ = ["Curves", "around", "broken_at_jumps", "curves", "evenly", "look", "smoothed"]
