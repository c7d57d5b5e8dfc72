"""Positions written in digits: each place of a number with the hand of its pair of channels."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
LEFT, TOP, CELL, LINE, RADIUS = 60.0, 46.0, 84.0, 44.0, 16.0
FOOT = 22.0


@dataclass(frozen=True)
class Wheels:
    """Numbers [rows places], the largest place first, each beside a dial with a hand.

    digits, angles: [rows places], angles in radians. largest: [places], the largest digit that training had. seen:
    [places], how far each hand went in training, in turns.
    """

    title: str
    row_name: str
    trained: int
    """How many positions training had."""
    rows: Numbers
    places: tuple[str, ...]
    digits: Numbers
    angles: Numbers
    largest: Numbers
    seen: Numbers
    pairs: tuple[int, ...] = ()
    """The pair of channels of each place, written above it."""
    note: str = ""
    """What is written beneath."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return LEFT + len(self.places) * CELL + 8, TOP + len(self.rows) * LINE + FOOT

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        written = (
            f"{row:,.0f} is {' '.join(map(digit_of, line))}" for row, line in zip(self.rows, self.digits, strict=True)
        )
        return f"{self.row_name}, in digits: {'; '.join(written)}"

    def larger(self) -> NDArray[np.bool_]:
        """Return which digits are larger than any of training, [rows places].

        A fraction in the last place lies between two digits that training had.
        """
        digits: Numbers = np.array(self.digits)
        digits[:, -1] = np.floor(digits[:, -1] + 1e-9)
        return digits > self.largest + 1e-9

    def unseen(self) -> NDArray[np.bool_]:
        """Return which hands point to angles that training never had, [rows places]."""
        return (self.angles % math.tau > self.seen * math.tau + 1e-9) & (self.seen < 1)

    def body(self) -> Markup:
        """Return the drawing."""
        new, ringed = self.larger(), self.unseen()
        cells = [
            {
                "x": LEFT + place * CELL,
                "y": TOP + row * LINE,
                "digit": digit_of(self.digits[row, place]),
                "larger": bool(new[row, place]),
                "unseen": bool(ringed[row, place]),
                "seen": wedge(min(float(self.seen[place]), 1.0)),
                "hand": tip(float(self.angles[row, place])),
            }
            for row in range(len(self.rows))
            for place in range(len(self.places))
        ]
        names = [(LEFT + (n + 0.5) * CELL, name) for n, name in enumerate(self.places)]
        rows = [(TOP + (n + 0.5) * LINE + 4, f"{each:,.0f}") for n, each in enumerate(self.rows)]
        return markup(
            "wheels.svg",
            picture=self,
            cells=cells,
            names=names,
            pairs=[(LEFT + (n + 0.5) * CELL, f"pair {pair}") for n, pair in enumerate(self.pairs)],
            rows=rows,
            cell=CELL,
            line=LINE,
            radius=RADIUS,
            left=LEFT,
            top=TOP,
            foot=TOP + len(self.rows) * LINE + 14,
            between=self.note or self._between(),
        )

    def _between(self) -> str:
        """Return why a fraction is not striped, where there is one."""
        last = self.digits[:, -1]
        # Only one that lies between the largest digit of training and the next.
        fractions = last[(np.abs(last - np.rint(last)) > 1e-6) & (last > self.largest[-1]) & ~self.larger()[:, -1]]
        if not fractions.size:
            return ""
        most = float(fractions.max())
        return f"a fraction is not boxed: {digit_of(most)} is on the way from {math.floor(most)} to the next digit"

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        from matplotlib.patches import Circle, Rectangle, Wedge

        new, ringed = self.larger(), self.unseen()
        for row, each in enumerate(self.rows):
            axes.text(-0.15, -row, f"{each:,.0f}", ha="right", va="center")
            for place in range(len(self.places)):
                if new[row, place]:
                    hatch = "///" if ringed[row, place] else ""
                    axes.add_patch(Rectangle((place + 0.52, -row - 0.4), 0.44, 0.8, fill=False, hatch=hatch, lw=0.5))
                middle = place + 0.25, -row
                axes.add_patch(Wedge(middle, 0.2, 90 - 360 * min(self.seen[place], 1.0), 90, color="#b7cfe8"))
                axes.add_patch(Circle(middle, 0.2, fill=False, edgecolor="grey"))
                angle = float(self.angles[row, place])
                end = middle[0] + 0.2 * math.sin(angle), middle[1] + 0.2 * math.cos(angle)
                axes.plot(*zip(middle, end, strict=True), color="#a2492a" if ringed[row, place] else "black")
                axes.text(place + 0.74, -row, digit_of(self.digits[row, place]), ha="center", va="center")
        for place, name in enumerate(self.places):
            axes.text(place + 0.5, 0.6, name, ha="center", color="grey")
        axes.set(xlim=(-1, len(self.places)), ylim=(-len(self.rows) + 0.4, 1), aspect="equal", title=self.title)
        axes.axis("off")


def digit_of(value: float) -> str:
    """Return a digit as it is read: whole, or with one decimal of its fraction."""
    near = round(float(value))
    return str(near) if abs(value - near) < 1e-6 else f"{value:.1f}"


def wedge(share: float) -> str:
    """Return a slice of a dial, clockwise from twelve, over a share of a turn."""
    if share >= 1 - 1e-9:
        return f"M0 {-RADIUS}A{RADIUS} {RADIUS} 0 1 1 0 {RADIUS}A{RADIUS} {RADIUS} 0 1 1 0 {-RADIUS}Z"
    x, y = tip(share * math.tau)
    return f"M0 0V{-RADIUS}A{RADIUS} {RADIUS} 0 {int(share > 0.5)} 1 {x:.2f} {y:.2f}Z"


def tip(angle: float) -> tuple[float, float]:
    """Return where the hand of a dial ends, clockwise from twelve."""
    return RADIUS * math.sin(angle), -RADIUS * math.cos(angle)


@dataclass(frozen=True)
class WheelKey:
    """What the signs of the dials mean, drawn as they are there."""

    title: str
    trained: int

    @property
    def lines(self) -> tuple[str, str, str]:
        """Return what is written beside each sign."""
        return (
            "shaded: angles met in training",
            "ring and stripes: an angle that training never met",
            f"box: a digit above those of the {self.trained:,} trained positions, at an angle that training met",
        )

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return LEFT + 4 * CELL + 8, 24 + LINE * len(self.lines)

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return "; ".join(self.lines)

    def body(self) -> Markup:
        """Return the drawing."""
        share = 0.16
        return markup(
            "wheel_key.svg",
            radius=RADIUS,
            seen=wedge(share),
            hands=(tip(0.5), tip(1.75)),
            rows=[(24 + LINE * n, textwrap.wrap(line, 46)) for n, line in enumerate(self.lines)],
        )

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        for n, line in enumerate(self.lines):
            axes.text(0.0, -n, textwrap.fill(line, 46), va="center")
        axes.set(xlim=(0, 1), ylim=(-len(self.lines), 1), title=self.title)
        axes.axis("off")


__all__ = ["WheelKey", "Wheels", "digit_of"]
