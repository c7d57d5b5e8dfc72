"""Small maps side by side: methods down, what is compared across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.axes import number
from milepost.explore.pictures.maps import image, shades
from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

Numbers = NDArray[np.float64]
GAP, HEAD, NOTE, FOOT = 14.0, 18.0, 16.0, 26.0
LETTER = 6.4
Limits = tuple[float, float]


@dataclass(frozen=True)
class Tile:
    """One small map [rows columns] and what is written beneath it; without values it is crossed out."""

    values: Numbers | None
    note: str = ""


@dataclass(frozen=True)
class Tiles:
    """Maps in a grid, from light to dark: those of a line over their common range, or all over the same limits."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    tiles: tuple[tuple[Tile, ...], ...]
    across: str
    """What counts to the right in every map."""
    down: str
    """What counts downwards in every map."""
    limits: Limits | None = None
    unit: str = ""
    side: tuple[float, float] = (92.0, 92.0)
    """Width and height of a map."""
    keys: tuple[tuple[str, float], ...] = ()
    """What values are called, where there are few of them; a bar of all shades if left out."""
    ends: tuple[str, str] = ("", "")
    """What is written at both ends of the bar, instead of the limits."""
    hidden: str = "hidden"
    """What is blank."""
    signed: bool = False
    """Two hues that meet at 0, as far from it on both sides."""

    @property
    def left(self) -> float:
        """Where the first map begins."""
        return 8 + LETTER * max(len(name) for name in self.rows)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all."""
        step, line = self._steps
        return max(self.left + step * len(self.columns), 320.0), HEAD + line * len(self.rows) + FOOT + (
            0 if self.keys else 17
        )

    @property
    def _steps(self) -> tuple[float, float]:
        noted = any(tile.note for line in self.tiles for tile in line)
        return self.side[0] + GAP, self.side[1] + (NOTE if noted else 0) + 8

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        missing = sum(tile.values is None for line in self.tiles for tile in line)
        return (
            f"{len(self.rows)} rows ({', '.join(self.rows)}) of {len(self.columns)} maps ({', '.join(self.columns)}), "
            f"{missing} crossed out"
        )

    def body(self) -> Markup:
        """Return the drawing."""
        step, line = self._steps
        limits = [self._limits(row) for row in self.tiles]
        cells = [
            {
                "x": self.left + m * step,
                "y": HEAD + n * line,
                "image": "" if tile.values is None else image(shades(tile.values, limits[n], self.signed)),
                "hidden": tile.values is not None and bool((~np.isfinite(tile.values)).any()),
                "note": tile.note,
            }
            for n, row in enumerate(self.tiles)
            for m, tile in enumerate(row)
        ]
        bar = image(shades(np.linspace(0.0, 1.0, 64)[None], (0.0, 1.0), self.signed))
        low, high = ("least", "most") if self.limits is None else map(number, self.limits)
        if self.ends[1]:
            low, high = self.ends
        places, at = list[tuple[float, str, str]](), self.left
        for name, value in self.keys:
            places.append((at, name, image(shades(np.array([[value]]), limits[0]))))
            at += 34 + LETTER * len(name)
        return markup(
            "tiles.svg",
            tiles=self,
            cells=cells,
            columns=[(self.left + m * step + self.side[0] / 2, name) for m, name in enumerate(self.columns)],
            rows=[(HEAD + n * line + self.side[1] / 2 + 4, name) for n, name in enumerate(self.rows)],
            foot=self.size[1] - (6 if self.keys else 23),
            bar=bar,
            start=max(self.left, 6 + LETTER * len(low)),
            keys=places,
            end=at,
            hidden=any(cell["hidden"] for cell in cells),
            low=low,
            high=f"{high} {self.unit}".rstrip(),
        )

    def _limits(self, row: Sequence[Tile]) -> Limits:
        if self.limits is not None:
            return self.limits
        found = [tile.values[np.isfinite(tile.values)] for tile in row if tile.values is not None]
        every = np.concatenate(found) if found else np.zeros(0)
        low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
        if self.signed:
            low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
        # What is the same everywhere is one middle shade.
        return (low, high) if high - low > 1e-12 * max(abs(low), abs(high)) else (low - 1.0, high + 1.0)

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        axes.axis("off")
        axes.set_title(self.title)
        high, wide = 1 / len(self.rows), 1 / len(self.columns)
        for n, row in enumerate(self.tiles):
            for m, tile in enumerate(row):
                inner = axes.inset_axes((m * wide, 1 - (n + 0.85) * high, 0.85 * wide, 0.65 * high))
                inner.set(xticks=(), yticks=())
                if tile.values is not None:
                    inner.imshow(
                        shades(tile.values, self._limits(row), self.signed), aspect="auto", interpolation="nearest"
                    )
                else:
                    inner.plot((0, 1), (0, 1), color="grey")
                inner.set_title(self.columns[m] if n == 0 else "", fontsize="x-small")
                inner.set_xlabel(tile.note, fontsize="x-small", labelpad=1)
                inner.set_ylabel(self.rows[n] if m == 0 else "", fontsize="x-small")


def tiles(
    title: str,
    lines: Sequence[tuple[str, Sequence[Tile]]],
    columns: Sequence[str],
    *,
    across: str,
    down: str,
    limits: Limits | None = None,
    unit: str = "",
    side: tuple[float, float] = (92.0, 92.0),
    keys: Sequence[tuple[str, float]] = (),
    ends: tuple[str, str] = ("", ""),
    hidden: str = "hidden",
    signed: bool = False,
) -> Tiles:
    """Return a picture of lines of tiles, each under its name."""
    names, made = tuple(name for name, _ in lines), tuple(tuple(row) for _, row in lines)
    return Tiles(
        title, names, tuple(columns), made, across, down, limits, unit, side, tuple(keys), ends, hidden, signed
    )


__all__ = ["Tile", "Tiles", "tiles"]
