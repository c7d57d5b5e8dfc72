"""Small curves under one another, all over one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.axes import named, number, round_marks
from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
WIDE, TOP, TALL, FOOT, LETTER = 350.0, 26.0, 250.0, 34.0, 6.3


@dataclass(frozen=True)
class Strips:
    """Curves over x, each between the same limits and under its own name."""

    title: str
    x: Numbers
    lines: Mapping[str, Numbers]
    x_name: str
    y_name: str
    limits: tuple[float, float]

    @property
    def _left(self) -> float:
        return 14 + LETTER * max(map(len, self.lines))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return self._left + WIDE + 40, TOP + TALL + FOOT + 10

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return f"{self.y_name} by {self.x_name}: {', '.join(self.lines)}"

    def body(self) -> Markup:
        """Return the drawing."""
        each = TALL / len(self.lines)
        low, high = self.limits
        right = self._left + WIDE
        at = np.interp(self.x, (self.x[0], self.x[-1]), (self._left, right))
        strips: list[dict[str, Any]] = []
        for n, (name, values) in enumerate(self.lines.items()):
            top, bottom = TOP + n * each + 4, TOP + (n + 1) * each - 4
            down = np.interp(values, (low, high), (bottom, top))
            line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(at, down, strict=True))
            strips.append({"name": name, "top": top, "bottom": bottom, "line": line})
        marked = named(round_marks(float(self.x[0]), float(self.x[-1]), 5))
        ticks = [(float(np.interp(value, self.x, at)), label) for value, label in marked]
        return markup(
            "strips.svg", strips=strips, ticks=ticks, left=self._left, right=right, bottom=TOP + TALL,
            picture=self, low=number(low), high=number(high),
        )  # fmt: skip

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        low, high = self.limits
        for n, values in enumerate(self.lines.values()):
            axes.plot(self.x, (values - low) / (high - low) * 0.84 - n, color="#2667ad")
        axes.set_yticks([0.42 - n for n in range(len(self.lines))], list(self.lines))
        axes.set(title=self.title, xlabel=self.x_name)


__all__ = ["Strips"]
