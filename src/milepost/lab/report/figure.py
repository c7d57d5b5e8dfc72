"""Pictures as data: what each shows, and where in it everything stands; figure.html draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from milepost.lab.report.look import Look
from milepost.lab.report.scale import Axis

WIDTH, HEIGHT, BESIDE = 400, 320, 148
LEFT, RIGHT, TOP, BOTTOM = 40.0, 390.0, 26.0, 276.0
"""The edges of the drawing; the curves keep a little away from its sides."""
INSET = 10.0
APART = 13.0
"""The least distance between two names."""
LETTERS = 24
"""How many letters of a name fit beside a picture."""
DODGE = 1.3
"""How far apart two curves are drawn where they stand at the same x, so that bars do not hide one another."""


@dataclass(frozen=True)
class Point:
    """A place on a curve, in the axes' own units, and half its interval."""

    x: float
    y: float
    half: float | None = None


@dataclass(frozen=True)
class Curve:
    """What one row contributes to a picture."""

    row: int
    name: str
    look: Look
    points: tuple[Point, ...]
    trivial: bool = False


@dataclass(frozen=True)
class Stroke:
    """A curve as it is drawn: paths, markers, and what the pointer tells at each key."""

    curve: Curve
    line: str
    bars: str
    markers: tuple[tuple[float, float], ...]
    values: str


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    curves: tuple[Curve, ...]
    x: Axis
    y: Axis
    x_name: str
    y_name: str
    beneath: tuple[str, ...] = ()
    """A second line under each mark of the x axis."""
    upright: tuple[float, str] | None = None
    """A vertical rule and its name: the trained length."""
    level: tuple[float, str] | None = None
    """A horizontal rule and its name: a guess, or the window."""
    level_beneath: bool = False
    """Whether the name stands beneath its rule."""
    dense: bool = False
    """Curves of so many points that they carry no markers."""
    decimals: int = 3
    unit: str = ""

    width, beside = WIDTH, BESIDE
    left, right, top, bottom = LEFT, RIGHT, TOP, BOTTOM

    @property
    def height(self) -> int:
        """Of the drawing, with room for every name."""
        return HEIGHT + int(self._low - BOTTOM)

    @property
    def spoken(self) -> str:
        """Return what a reader hears who sees no picture; the numbers are in the tables."""
        return f"{self.y_name} by {self.x_name}: {', '.join(curve.name for curve in self.curves)}"

    @property
    def keys(self) -> list[float]:
        """Return every x at which a curve has a point."""
        return sorted({point.x for curve in self.curves for point in curve.points})

    @property
    def places(self) -> list[float]:
        """Where the keys stand."""
        return [self.x.at(key) for key in self.keys]

    def strokes(self) -> list[Stroke]:
        """The curves as they are drawn: those that are trivial first, beneath the others and farthest to the left."""
        apart, middle = 0.0 if self.dense else DODGE, (len(self.curves) - 1) / 2
        return [self._stroke(curve, apart * (n - middle)) for n, curve in enumerate(self.curves)]

    def _stroke(self, curve: Curve, aside: float) -> Stroke:
        places = [
            (self.x.at(point.x) + aside, self.y.at(point.y if math.isfinite(point.y) else self.y.knots[0][0]))
            for point in curve.points
        ]
        drawn = [math.isfinite(point.y) for point in curve.points]
        line = "".join(
            f"{'L' if n and drawn[n - 1] else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(places) if drawn[n]
        )
        bars = "".join(
            f"M{x:.1f} {self.y.at(point.y - point.half):.1f}V{self.y.at(point.y + point.half):.1f}"
            for (x, _), point in zip(places, curve.points, strict=True)
            if point.half
        )
        by_key = {point.x: point for point in curve.points}
        values = "|".join(self._said(by_key[key]) if key in by_key else "" for key in self.keys)
        return Stroke(curve, line, bars, () if self.dense else tuple(places), values)

    def _said(self, point: Point) -> str:
        """Return a value and its interval, as the pointer tells it."""
        half = "" if point.half is None else f" ±{point.half:.{self.decimals}f}"
        return f"{point.y:.{self.decimals}f}{half}{self.unit}"

    def names(self) -> list[tuple[Curve, float, float]]:
        """Return the curves from the top down, with the heights at which each ends and at which its name stands."""
        last = [(curve, self.y.at(curve.points[-1].y)) for curve in self.curves if curve.points]
        ends = sorted(last, key=lambda each: each[1])
        heights = spread([y for _, y in ends], APART, TOP, self._low)
        return [(curve, y, at) for (curve, y), at in zip(ends, heights, strict=True)]

    def short(self) -> dict[str, str]:
        """Return the names as they fit beside the picture, no two of them the same where their curves are not."""
        return told_apart([curve.name for curve in self.curves], LETTERS)

    @property
    def _low(self) -> float:
        """Return how far down names may stand."""
        return max(BOTTOM, TOP + APART * len(self.curves))


def told_apart(names: Sequence[str], most: int) -> dict[str, str]:
    """Names of at most so many letters. Long ones that begin alike are cut at their beginning, where they are alike."""
    found: dict[str, str] = {}
    for name in names:
        begun = name[: most - 1]
        alike = [each for each in dict.fromkeys(names) if each.startswith(begun)]
        if len(name) <= most or len(alike) < 2:
            found[name] = name if len(name) <= most else f"{begun}…"
            continue
        shared = next((n for n, letters in enumerate(zip(*alike, strict=False)) if len(set(letters)) > 1), most)
        # From the beginning of the word in which they part.
        start = max(name.rfind(sign, 0, shared) for sign in " [,") + 1
        rest = name[start:]
        found[name] = f"…{rest}" if len(rest) < most else f"…{rest[: most - 2]}…"
    # Some may still look alike: of these both ends are shown.
    head = most // 2 - 2
    often = Counter(found.values())
    ends = {name: f"{name[:head]}…{name[head + 1 - most :]}" for name, short in found.items() if often[short] > 1}
    return found | ends


def spread(wanted: Sequence[float], apart: float, top: float, bottom: float) -> list[float]:
    """Heights as near to those wanted, ascending, as being `apart` from each other allows, between top and bottom."""
    # Less n · apart each, the heights need only not descend: neighbours that do are put at their common mean.
    pools: list[tuple[float, int]] = []
    for n, each in enumerate(wanted):
        mean, count = each - n * apart, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean, count = (before * members + mean * count) / (members + count), members + count
        pools.append((mean, count))
    room = bottom - apart * (len(wanted) - 1)
    level = [min(max(mean, top), max(room, top)) for mean, count in pools for _ in range(count)]
    return [each + n * apart for n, each in enumerate(level)]


def finite(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points that can be drawn."""
    return tuple(point for point in points if math.isfinite(point.y))


def ends_of_bars(points: Sequence[Point]) -> list[float]:
    """Return what an axis must have room for: every value, and both ends of its interval."""
    return [point.y + side * (point.half or 0.0) for point in finite(points) for side in (-1, 1)]
