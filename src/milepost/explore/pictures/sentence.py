"""A text, word by word: a bar above each word, and numbers beneath it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
WIDE, BAR, LINE, LETTER = 560.0, 34.0, 15.0, 6.8


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
        return 10 + 6.2 * max(len(name) for name in (*self.rows, f"{self.limits[1]:.3g} {self.bar_name}"))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return WIDE, (self._places()[-1][1] + self._tall if self.words else 0.0) + 4

    @property
    def _tall(self) -> float:
        return BAR + LINE * (1 + len(self.rows)) + 16

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        return f"{len(self.words)} words, {self.bar_name} above each, {', '.join(self.rows)} beneath"

    def _places(self) -> list[tuple[float, float, float]]:
        """Return where each word begins, how far down its line is, and its width."""
        found: list[tuple[float, float, float]] = []
        x, y = self.left, 0.0
        for n, word in enumerate(self.words):
            width = 10 + LETTER * max(len(word), *(len(row[n]) for row in self.rows.values()), 2)
            if x + width > WIDE and x > self.left:
                x, y = self.left, y + self._tall
            found.append((x, y, width))
            x += width
        return found

    def body(self) -> Markup:
        """Return the drawing."""
        low, high = self.limits
        shares = np.clip((self.bars - low) / (high - low), 0.0, 1.0)
        places = self._places()
        cells = [
            {
                "x": x,
                "y": y,
                "width": width,
                "bar": float(BAR * share) if np.isfinite(share) else 0.0,
                "word": word,
                "numbers": [row[n] for row in self.rows.values()],
            }
            for n, ((x, y, width), word, share) in enumerate(zip(places, self.words, shares, strict=True))
        ]
        return markup(
            "sentence.svg",
            cells=cells,
            names=list(self.rows),
            lines=sorted({y for _, y, _ in places}),
            left=self.left,
            bar=BAR,
            line=LINE,
            top=f"{high:.3g} {self.bar_name}",
            bottom=f"{low:.3g}",
            right=WIDE,
        )

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        at = np.arange(len(self.words))
        axes.bar(at, np.nan_to_num(self.bars), color="#6095c4")
        beneath = ["\n".join((word, *(row[n] for row in self.rows.values()))) for n, word in enumerate(self.words)]
        axes.set_xticks(at, beneath, fontsize="x-small")
        axes.set(title=self.title, ylabel=self.bar_name, ylim=self.limits)
        axes.set_xlabel(", ".join(self.rows))


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
