"""Small curves under one another, all over one axis: what would tangle in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.axes import Tick, named, number, round_marks
from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
WIDE, TOP, TALL, FOOT, LETTER = 350.0, 26.0, 250.0, 34.0, 6.3
NAME, LEAST, APART = 17.0, 80.0, 10.0
"""The height of a name above its strip, the least height of a strip, and what is between two."""


@dataclass(frozen=True)
class Strips:
    """Curves over x, each between the same limits and under its own name; one of NaN leaves its place blank."""

    title: str
    x: Numbers
    lines: Mapping[str, Numbers]
    x_name: str
    y_name: str
    limits: tuple[float, float]
    ranges: Mapping[str, tuple[Numbers, Numbers]] = field(default_factory=dict[str, "tuple[Numbers, Numbers]"])
    """By the name of a line, the ends of what it is the middle of; drawn pale."""
    shaded: tuple[float, float, str] | None = None
    """A range of values, from and to, that is shaded in every strip, and what it is."""
    mark: tuple[float, str] | None = None
    """A vertical rule, and its name."""

    @property
    def _left(self) -> float:
        return 10 + LETTER * max(len(name) for _, name in self._levels)

    @property
    def _levels(self) -> tuple[Tick, ...]:
        """Return the round values that are marked at every strip, and their names."""
        return named(round_marks(*self.limits, 3))

    @property
    def _each(self) -> float:
        """From one strip to the next."""
        return max(TALL / len(self.lines), NAME + LEAST + APART)

    @property
    def _bottom(self) -> float:
        return TOP + self._each * len(self.lines)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        beneath = 14.0 if self.shaded else 0.0
        return self._left + WIDE + 16, max(self._bottom, TOP + TALL) + FOOT + 10 + beneath

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return f"{self.y_name} by {self.x_name}: {', '.join(filter(None, self.lines))}"

    def body(self) -> Markup:
        """Return the drawing."""
        low, high = self.limits
        left, right = self._left, self._left + WIDE
        at = np.interp(self.x, (self.x[0], self.x[-1]), (left, right))
        strips: list[dict[str, Any]] = []
        for n, (name, values) in enumerate(self.lines.items()):
            if np.isnan(values).all():
                continue
            top = TOP + n * self._each + NAME
            bottom = TOP + (n + 1) * self._each - APART

            def down(each: Numbers | float, top: float = top, bottom: float = bottom) -> Numbers:
                return np.asarray(np.interp(each, (low, high), (bottom, top)), np.float64)

            strips.append(
                {
                    "name": name,
                    "top": top,
                    "bottom": bottom,
                    "line": _path(at, down(values)),
                    "pale": "" if name not in self.ranges else _outline(at, *map(down, self.ranges[name])),
                    "levels": [(float(down(each)), name, not each) for each, name in self._levels],
                    "shade": None
                    if self.shaded is None
                    else (float(down(self.shaded[1])), float(down(self.shaded[0]))),
                }
            )
        marked = named(round_marks(float(self.x[0]), float(self.x[-1]), 5))
        ticks = [(float(np.interp(value, self.x, at)), label) for value, label in marked]
        rule = None
        if self.mark is not None and self.x[0] <= self.mark[0] <= self.x[-1]:
            rule = float(np.interp(self.mark[0], self.x, at)), self.mark[1]
        return markup(
            "strips.svg", strips=strips, ticks=ticks, left=left, right=right, bottom=self._bottom, picture=self,
            rule=rule, top=TOP, shaded="" if self.shaded is None else self.shaded[2],
        )  # fmt: skip

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        low, high = self.limits

        def up(values: Numbers | float, n: int) -> Any:
            return (np.clip(values, low, high) - low) / (high - low) * 0.84 - n

        for n, (name, values) in enumerate(self.lines.items()):
            if np.isnan(values).all():
                continue
            if self.shaded is not None:
                axes.axhspan(up(self.shaded[0], n), up(self.shaded[1], n), color="#eeeeee", zorder=0)
            if name in self.ranges:
                axes.fill_between(self.x, *(up(each, n) for each in self.ranges[name]), color="#2667ad", alpha=0.25)
            axes.plot(self.x, up(values, n), color="#2667ad")
        if self.mark is not None:
            axes.axvline(self.mark[0], color="grey", linestyle="dotted")
        axes.set_yticks([0.42 - n for n in range(len(self.lines))], list(self.lines))
        axes.set(title=f"{self.title}\n{self.y_name}, each from {number(low)} to {number(high)}", xlabel=self.x_name)


def strips(
    title: str,
    x: Numbers,
    lines: Mapping[str, Numbers],
    *,
    x_name: str,
    y_name: str,
    limits: tuple[float, float] | None = None,
    ranges: Mapping[str, tuple[Numbers, Numbers]] | None = None,
    shaded: tuple[float, float, str] | None = None,
    mark: tuple[float, str] | None = None,
) -> Strips:
    """Return curves one under another; limits: what is drawn, and 0, if left out."""
    pale = dict(ranges or {})
    if limits is None:
        drawn = np.concatenate([*lines.values(), *(each for pair in pale.values() for each in pair)])
        limits = min(float(np.nanmin(drawn)), 0.0), max(float(np.nanmax(drawn)), 0.0)
    if limits[0] == limits[1]:
        limits = limits[0], limits[0] + 1.0
    if shaded is not None:
        shaded = max(shaded[0], limits[0]), min(shaded[1], limits[1]), shaded[2]
    return Strips(title, x, lines, x_name, y_name, limits, pale, shaded, mark)


def _path(across: Numbers, down: Numbers) -> str:
    """Return the path of a line; a value that is not finite leaves a gap."""
    there = np.isfinite(down)
    return "".join(
        f"{'L' if n and there[n - 1] else 'M'}{a:.1f} {b:.1f}"
        for n, (a, b) in enumerate(zip(across, down, strict=True))
        if there[n]
    )


def _outline(across: Numbers, low: Numbers, high: Numbers) -> str:
    """Return the path around a range."""
    over = [f"{a:.1f} {b:.1f}" for a, b in zip(across, high, strict=True)]
    under = [f"{a:.1f} {b:.1f}" for a, b in zip(across[::-1], low[::-1], strict=True)]
    return f"M{'L'.join(over + under)}Z"


__all__ = ["Strips", "strips"]
