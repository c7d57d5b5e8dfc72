"""A dial for each pair of channels: which angles were met, and which are met for the first time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
RADIUS, CELL, LINE = 17.0, 44.0, 56.0
ACROSS = 12
"""Dials in a line."""


@dataclass(frozen=True)
class Clocks:
    """Dials: the angle that each hand had gone through in training, and up to where it goes now, in turns."""

    title: str
    seen: Numbers
    """Up to where each hand went in training, in turns."""
    now: Numbers
    names: tuple[str, ...]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        count = len(self.seen)
        return min(count, ACROSS) * CELL + 12, math.ceil(count / ACROSS) * LINE + 26

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        fresh = int((self.unseen() > 1e-9).sum())
        return f"{len(self.seen)} dials, {fresh} of which reach angles that training never had"

    def unseen(self) -> Numbers:
        """Return how much of each dial is met for the first time, in turns."""
        return np.clip(np.minimum(self.now, 1.0) - self.seen, 0.0, None)

    def body(self) -> Markup:
        """Return the drawing."""
        dials = [
            {
                "x": 6 + (n % ACROSS + 0.5) * CELL - 4,
                "y": 12 + (n // ACROSS) * LINE + RADIUS,
                "seen": _wedge(0.0, min(self.seen[n], 1.0)),
                "new": _wedge(self.seen[n], min(self.now[n], 1.0)) if self.unseen()[n] > 1e-9 else "",
                "name": self.names[n],
            }
            for n in range(len(self.seen))
        ]
        foot = self.size[1] - 4
        return markup("clocks.svg", dials=dials, radius=RADIUS, foot=foot)

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        from matplotlib.patches import Wedge

        for n in range(len(self.seen)):
            x, y = n % ACROSS, -(n // ACROSS)
            axes.add_patch(Wedge((x, y), 0.4, 0, 360, fill=False, edgecolor="grey"))
            turns = min(self.seen[n], 1.0), min(self.now[n], 1.0)
            axes.add_patch(Wedge((x, y), 0.4, 90 - 360 * turns[0], 90, color="#6095c4"))
            if turns[1] > turns[0]:
                axes.add_patch(Wedge((x, y), 0.4, 90 - 360 * turns[1], 90 - 360 * turns[0], color="#a2492a"))
        lines = math.ceil(len(self.seen) / ACROSS)
        axes.set(xlim=(-0.6, ACROSS - 0.4), ylim=(-lines + 0.4, 0.6), aspect="equal", title=self.title)
        axes.axis("off")


def _wedge(first: float, last: float) -> str:
    """Return a slice of a dial, clockwise from twelve, between two angles in turns."""
    if last - first >= 1 - 1e-9:
        return f"M0 {-RADIUS}A{RADIUS} {RADIUS} 0 1 1 0 {RADIUS}A{RADIUS} {RADIUS} 0 1 1 0 {-RADIUS}Z"
    (a, b), (c, d) = ((RADIUS * math.sin(math.tau * at), -RADIUS * math.cos(math.tau * at)) for at in (first, last))
    return f"M0 0L{a:.2f} {b:.2f}A{RADIUS} {RADIUS} 0 {int(last - first > 0.5)} 1 {c:.2f} {d:.2f}Z"


__all__ = ["Clocks"]
