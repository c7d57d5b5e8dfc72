"""A text, word by word: a bar above each word, and numbers beneath it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
WIDE, LINE, LETTER = 528.0, 15.0, 6.8
TALL, BARS = 300.0, (34.0, 96.0)
"""As high as a picture of curves, as far as bars between these two make it so."""


@dataclass(frozen=True)
class Sentence:
    """Words in their order, as many in a line as fit."""

    title: str
    words: tuple[str, ...]
    bars: Numbers
    bar_name: str
    limits: tuple[float, float]
    rows: Mapping[str, tuple[str, ...]]
    """Lines of numbers beneath the words, by name."""

    @property
    def left(self) -> float:
        """Where the words begin."""
        return 10 + 6.2 * max(len(name) for name in (*self.rows, self._ends[0], "continued"))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return WIDE, (self._places()[-1][1] + self._tall if self.words else 0.0) + 4

    @property
    def _tall(self) -> float:
        return self._bar + self._beneath_bar

    @property
    def _beneath_bar(self) -> float:
        return LINE * (1 + len(self.rows)) + 22

    @property
    def _bar(self) -> float:
        """How high a whole bar is."""
        lines = len(set(self._downs()))
        return min(max(TALL / max(lines, 1) - self._beneath_bar, BARS[0]), BARS[1])

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return f"{len(self.words)} words, {self.bar_name} above each, {', '.join(self.rows)} beneath"

    def _places(self) -> list[tuple[float, float, float]]:
        """Return where each word begins, how far down its line is, and its width."""
        found: list[tuple[float, float, float]] = []
        x, last = self.left, 0
        for width, line in zip(self._widths(), self._downs(), strict=True):
            x = self.left if line > last else x
            found.append((x, line * self._tall, width))
            x, last = x + width, line
        return found

    def _widths(self) -> list[float]:
        return [
            10 + LETTER * max(len(word), *(len(row[n]) for row in self.rows.values()), 2)
            for n, word in enumerate(self.words)
        ]

    def _downs(self) -> list[int]:
        """Return the line of each word."""
        found: list[int] = []
        x, line = self.left, 0
        for width in self._widths():
            if x + width > WIDE and x > self.left:
                x, line = self.left, line + 1
            found.append(line)
            x += width
        return found

    def _cells(self) -> list[tuple[float, float, float, float, tuple[str, ...]]]:
        """Return each word's place, width, height of its bar, and what is written beneath that."""
        low, high = self.limits
        shares = np.nan_to_num(np.clip((self.bars - low) / (high - low), 0.0, 1.0))
        beneath = zip(self.words, *self.rows.values(), strict=True)
        return [
            (x, y, width, float(self._bar * share), lines)
            for (x, y, width), share, lines in zip(self._places(), shares, beneath, strict=True)
        ]

    @property
    def _ends(self) -> tuple[str, str]:
        """Return the names of the ends of a bar."""
        return f"{self.limits[1]:.3g} {self.bar_name}", f"{self.limits[0]:.3g}"

    def body(self) -> Markup:
        """Return the drawing."""
        cells = self._cells()
        return markup(
            "sentence.svg",
            cells=cells,
            names=list(self.rows),
            lines=sorted({y for _, y, *_ in cells}),
            left=self.left,
            bar=self._bar,
            line=LINE,
            ends=self._ends,
            right=WIDE,
        )

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        from matplotlib.patches import Rectangle

        cells, width = self._cells(), self.size[0]
        text = {"fontsize": 7.5, "va": "baseline"}
        full = self._bar
        for y in sorted({y for _, y, *_ in cells}):
            names = ((8.0, self._ends[0]), (full, self._ends[1]), *self._beneath(self.rows))
            for down, name in names:
                axes.text(self.left - 6, y + down, name, ha="right", color="grey", **text)
            axes.plot((self.left, width), (y + full, y + full), color="grey", linewidth=0.8)
        for x, y, wide, bar, lines in cells:
            axes.add_patch(Rectangle((x + 2, y + full - bar), wide - 4, bar, color="#6095c4"))
            axes.text(x + wide / 2, y + full + LINE, lines[0], ha="center", weight="bold", **text)
            for down, name in self._beneath(lines[1:]):
                axes.text(x + wide / 2, y + down, name, ha="center", **text)
        # As tall as the other picture beside it at most: letters are as large as they are.
        axes.set(xlim=(0, width), ylim=(max(self.size[1], 0.72 * width), 0), title=self.title)
        axes.axis("off")

    def _beneath(self, lines: Iterable[str]) -> list[tuple[float, str]]:
        return [(self._bar + LINE * (n + 2), name) for n, name in enumerate(lines)]


def sentence(
    title: str,
    words: Sequence[str],
    bars: Numbers,
    rows: Mapping[str, Sequence[str]],
    *,
    bar_name: str,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Sentence:
    """Return a picture of words; rows are written beneath them."""
    return Sentence(title, tuple(words), bars, bar_name, limits, {name: tuple(row) for name, row in rows.items()})


__all__ = ["Sentence", "sentence"]
