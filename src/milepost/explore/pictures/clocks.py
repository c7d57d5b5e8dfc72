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
RADIUS, CELL, LINE = 24.0, 60.0, 72.0
ACROSS = 9
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
        return max(min(len(self.shown), ACROSS) * CELL + 12, 540.0), self._foot + 30

    @property
    def shown(self) -> list[int]:
        """Return the dials that are drawn: those that training did not fill."""
        return [n for n in range(len(self.seen)) if self.seen[n] < 1 - 1e-9]

    @property
    def _foot(self) -> float:
        return math.ceil(len(self.shown) / ACROSS) * LINE + 26

    @property
    def full(self) -> str:
        """Return which dials are left out, in words."""
        left = [int(n) for n in np.flatnonzero(self.seen >= 1 - 1e-9)]
        if not left:
            return "the number is the pair of channels"
        first = [n for n in left if n - 1 not in left]
        last = [n for n in left if n + 1 not in left]
        names = ", ".join(
            self.names[a] + (f" to {self.names[b]}" if b > a else "") for a, b in zip(first, last, strict=True)
        )
        return f"the number is the pair of channels; left out: {names}, which met every angle in training"

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
                "x": 6 + (at % ACROSS + 0.5) * CELL - 4,
                "y": 12 + (at // ACROSS) * LINE + RADIUS,
                "seen": _wedge(0.0, min(self.seen[n], 1.0)),
                "new": _wedge(self.seen[n], min(self.now[n], 1.0)) if self.unseen()[n] > 1e-9 else "",
                "name": self.names[n],
            }
            for at, n in enumerate(self.shown)
        ]
        return markup("clocks.svg", dials=dials, radius=RADIUS, foot=self._foot, full=self.full)

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        from matplotlib.patches import Wedge

        for at, n in enumerate(self.shown):
            x, y = at % ACROSS, -1.35 * (at // ACROSS)
            axes.text(x, y - 0.55, self.names[n], ha="center", va="center", fontsize="x-small")
            axes.add_patch(Wedge((x, y), 0.4, 0, 360, fill=False, edgecolor="grey"))
            turns = min(self.seen[n], 1.0), min(self.now[n], 1.0)
            axes.add_patch(Wedge((x, y), 0.4, 90 - 360 * turns[0], 90, color="#6095c4"))
            if turns[1] > turns[0]:
                axes.add_patch(Wedge((x, y), 0.4, 90 - 360 * turns[1], 90 - 360 * turns[0], color="#a2492a"))
        lines = max(math.ceil(len(self.shown) / ACROSS), 1)
        axes.text(-0.5, -1.35 * lines + 0.3, f"blue: met in training, red: new; {self.full}", fontsize="x-small")
        axes.set(xlim=(-0.6, ACROSS - 0.4), ylim=(-1.35 * lines, 0.6), aspect="equal", title=self.title)
        axes.axis("off")


def _wedge(first: float, last: float) -> str:
    """Return a slice of a dial, clockwise from twelve, between two angles in turns."""
    if last - first >= 1 - 1e-9:
        return f"M0 {-RADIUS}A{RADIUS} {RADIUS} 0 1 1 0 {RADIUS}A{RADIUS} {RADIUS} 0 1 1 0 {-RADIUS}Z"
    (a, b), (c, d) = ((RADIUS * math.sin(math.tau * at), -RADIUS * math.cos(math.tau * at)) for at in (first, last))
    return f"M0 0L{a:.2f} {b:.2f}A{RADIUS} {RADIUS} 0 {int(last - first > 0.5)} 1 {c:.2f} {d:.2f}Z"


__all__ = ["Clocks"]
