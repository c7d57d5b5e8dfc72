"""Dots over two axes of one scale, with the line on which both are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.axes import straight
from milepost.explore.pictures.curves import look
from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
LEFT, TOP, SIDE, FOOT = 44.0, 44.0, 300.0, 44.0
LETTER = 6.6
MARKERS = ("m0", "m9", "m2", "m7")
"""Full and open in turn: without colour, and small, the kinds are apart."""


@dataclass(frozen=True)
class Scatter:
    """Dots (x, y) of several kinds, each with a marker of its own."""

    title: str
    dots: Mapping[str, tuple[Numbers, Numbers]]
    x_name: str
    y_name: str

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return LEFT + SIDE + 36, TOP + SIDE + FOOT

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return f"{self.y_name} by {self.x_name}: {', '.join(self.dots)}"

    def _limits(self) -> tuple[float, float]:
        every = np.concatenate([each for pair in self.dots.values() for each in pair])
        room = 0.04 * float(np.ptp(every)) or 0.5
        return float(every.min()) - room, float(every.max()) + room

    def body(self) -> Markup:
        """Return the drawing."""
        low, high = self._limits()
        x, y = straight(low, high, LEFT, LEFT + SIDE), straight(low, high, TOP + SIDE, TOP)
        kinds: list[dict[str, Any]] = []
        at = 0.0
        for n, (name, pair) in enumerate(self.dots.items()):
            places = [(x.at(float(a)), y.at(float(b))) for a, b in zip(*pair, strict=True)]
            marker = MARKERS[n % len(MARKERS)]
            kinds.append({"name": name, "look": look(n), "marker": marker, "at": at, "places": places})
            at += 28 + LETTER * len(name)
        return markup(
            "scatter.svg", picture=self, kinds=kinds, x=x, y=y, left=LEFT, top=TOP, side=SIDE,
        )  # fmt: skip

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        for (name, pair), marker in zip(self.dots.items(), "ox^s", strict=False):
            axes.scatter(*pair, s=12, marker=marker, alpha=0.7, label=name)
        axes.axline((0, 0), slope=1, color="grey", linestyle="dotted")
        axes.set(title=self.title, xlabel=self.x_name, ylabel=self.y_name, aspect="equal")
        axes.legend(fontsize="small")


__all__ = ["Scatter"]
