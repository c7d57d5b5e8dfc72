"""Maps of numbers over two axes: lighter is less, darker is more, and blank is hidden."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.axes import number, of_bar, of_cells
from milepost.explore.pictures.written import markup

if TYPE_CHECKING:
    from markupsafe import Markup

TOP, SIDE = 26.0, 250.0
"""Where the map begins, and how long its sides are: as high as a picture of curves."""
LETTER = 6.3
BAR = 12.0
SCALE = ((222, 231, 239), (170, 199, 224), (96, 149, 196), (38, 95, 158), (12, 36, 74))
"""From least to most: lightness falls all the way, so that the map can be read without colour.

The least is darker than the paper, which is where nothing is.
"""
SIGNED = ((138, 58, 10), (222, 148, 84), (240, 236, 228), (96, 149, 196), (12, 36, 74))
"""From negative to positive, light at 0; positive values go further down, so that without colour they are darker."""
NEUTRAL = (150, 150, 146, 255)
"""Of what has no number: a grey on which dark and light letters can be read in their outline."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Map:
    """Values [rows columns], drawn as cells; the first row is at the top."""

    title: str
    values: Numbers
    rows: Numbers
    columns: Numbers
    row_name: str
    column_name: str
    unit: str
    limits: tuple[float, float]
    hidden: str = "hidden"
    """What the blank cells are."""
    words: tuple[str, ...] = ()
    """What the cells of both axes are called, instead of their numbers."""
    border: tuple[float, str, str] | None = None
    """A rule before the column of a number, and what is on either side of it."""
    signed: bool = False
    """Two hues that meet at 0; the limits are as far from it on both sides."""
    wide: float = SIDE
    """How wide the cells are together."""
    marked: tuple[tuple[float, float, float, float], ...] = ()
    """Lines from a row and a column to others, by their numbers: what the picture points at."""
    mark_name: str = ""
    flat: str = ""
    """Why there are no shades: what is not hidden is of one grey, with this on it, and there is no bar."""

    @property
    def left(self) -> float:
        """Where the cells begin."""
        names = [name for _, name in of_cells(self.rows, 0.0, SIDE, self.words)]
        return 12 + LETTER * max(3, *map(len, names))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all."""
        levels = max(len(name) for _, name in of_bar(*self.limits, TOP, SIDE))
        bar = 0.0 if self.flat else 14 + BAR + 8 + max(LETTER * levels, LETTER * len(self.unit) - BAR)
        return self.left + self.wide + bar, TOP + SIDE + self._foot + 10

    @property
    def _foot(self) -> float:
        """How far beneath the cells the name of their axis is."""
        return 34.0 if not self.words else 20.0 + 0.8 * LETTER * max(map(len, self.words))

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        low, high = self.limits
        if self.flat:
            return f"{self.title} by {self.row_name} and {self.column_name}: {self.flat}"
        return f"{self.unit or self.title} by {self.row_name} and {self.column_name}, {low:.4g} to {high:.4g}"

    def body(self) -> Markup:
        """Return the drawing."""
        bar = np.linspace(self.limits[1], self.limits[0], 64)[:, None]
        border = None
        if self.border is not None:
            value, before, after = self.border
            at = self.left + self.wide * float((self.columns < value).mean())
            # Where there is no room on the left, both names are on the right.
            beside = at - LETTER * len(before) - 12 > LETTER * len(self.row_name)
            border = (at, before, after) if beside else (at, "", f"left of it: {before}")
        return markup(
            "map.svg",
            map=self,
            left=self.left,
            top=TOP,
            side=SIDE,
            wide=self.wide,
            foot=self._foot,
            bar=self.left + self.wide + 14,
            bar_width=BAR,
            cells=image(self._shades()),
            note=self._middle() if self.flat else None,
            scale=image(shades(bar, self.limits, self.signed)),
            x=of_cells(self.columns, self.left, self.wide, self.words),
            y=of_cells(self.rows, TOP, SIDE, self.words),
            z=of_bar(*self.limits, TOP, SIDE),
            hidden=self._hides(),
            border=border,
            marks=self._marks(),
        )

    def _shades(self) -> NDArray[np.uint8]:
        """Return the colours of the cells."""
        if not self.flat:
            return shades(self.values, self.limits, self.signed)
        return np.where(np.isfinite(self.values)[..., None], np.array(NEUTRAL, np.uint8), np.uint8(0))

    def _middle(self) -> tuple[float, float]:
        """Return the middle of the cells that are not hidden."""
        rows, columns = np.nonzero(np.isfinite(self.values))
        count, wide = self.values.shape
        return self.left + self.wide * (float(columns.mean()) + 0.5) / wide, TOP + SIDE * (
            float(rows.mean()) + 0.5
        ) / count

    def _marks(self) -> str:
        """Return the path of the lines that point at something."""
        ends = [
            (self.left + self.wide * _place(self.columns, column), TOP + SIDE * _place(self.rows, row))
            for a, b, c, d in self.marked
            for row, column in ((a, b), (c, d))
        ]
        return "".join(f"{'L' if n % 2 else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(ends))

    def _hides(self) -> bool:
        return bool((~np.isfinite(self.values)).any())

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        axes.imshow(self._shades(), aspect="auto", interpolation="nearest")
        for side, name, numbers in (("x", self.column_name, self.columns), ("y", self.row_name, self.rows)):
            ticks = of_cells(numbers, -0.5, float(len(numbers)), self.words)
            getattr(axes, f"set_{side}ticks")(*zip(*ticks, strict=True))
            getattr(axes, f"set_{side}label")(name)
        if self.words:
            axes.tick_params(axis="x", rotation=60)
        if self.border is not None:
            axes.axvline(float((self.columns < self.border[0]).sum()) - 0.5, color="black", linestyle="dashed")
            axes.set_xlabel(f"{self.column_name}; dashed: from {self.border[1]} to {self.border[2]}")
        for ends in self.marked:
            (y, x), (v, u) = ends[:2], ends[2:]
            places = [np.interp(each, at, np.arange(len(at))) for each, at in ((x, self.columns), (u, self.columns))]
            heights = [np.interp(each, at, np.arange(len(at))) for each, at in ((y, self.rows), (v, self.rows))]
            axes.plot(places, heights, color="black", linestyle="dashed", label=self.mark_name)
        low, high = map(number, self.limits)
        white = f"; white: {self.hidden}" if self._hides() else ""
        axes.set_title(
            f"{self.title}\n{self.flat or f'{self.unit} {low} to {high}'}{white}".rstrip(), fontsize="medium"
        )


def map_of(
    title: str,
    values: Numbers,
    rows: Numbers,
    columns: Numbers,
    *,
    row_name: str,
    column_name: str,
    unit: str,
    limits: tuple[float, float] | None = None,
    hidden: str = "hidden",
    words: Sequence[str] = (),
    border: tuple[float, str, str] | None = None,
    signed: bool = False,
    wide: float = SIDE,
    marked: Sequence[tuple[float, float, float, float]] = (),
    mark_name: str = "",
    flat: str = "",
) -> Map:
    """Return a map; unit: what its shades are; limits: the least and the largest finite value if left out.

    signed: in two hues that meet at 0. marked: lines from a row and a column to others, and what they are.
    flat: why there are no shades, where only what is hidden is shown.
    """
    found = values[np.isfinite(values)]
    if limits is None:
        limits = (float(found.min()), float(found.max())) if found.size else (0.0, 1.0)
    if limits[0] == limits[1]:
        limits = limits[0], limits[0] + 1.0
    if signed:
        limits = -max(map(abs, limits)), max(map(abs, limits))
    return Map(
        title, values, rows, columns, row_name, column_name, unit, limits, hidden, tuple(words), border, signed, wide,
        tuple(marked), mark_name, flat,
    )  # fmt: skip


def _place(numbers: Numbers, value: float) -> float:
    """Return where a number lies among cells, as a share of their extent."""
    return float((np.interp(value, numbers, np.arange(len(numbers))) + 0.5) / len(numbers))


def shades(values: Numbers, limits: tuple[float, float], signed: bool = False) -> NDArray[np.uint8]:
    """Return the colour of each value, [rows columns 4]; what is not finite is transparent."""
    low, high = limits
    share = np.clip((np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / (high - low), 0.0, 1.0)
    scale = SIGNED if signed else SCALE
    stops = np.linspace(0.0, 1.0, len(scale))
    made = np.zeros((*values.shape, 4), np.uint8)
    for n in range(3):
        made[..., n] = np.interp(share, stops, [each[n] for each in scale]).round()
    made[..., 3] = np.where(np.isfinite(values), 255, 0)
    return made


def image(pixels: NDArray[np.uint8]) -> str:
    """Return pixels [rows columns 4] as a PNG that a page can hold."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = (
        (b"IHDR", struct.pack(">2I5B", width, height, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    written = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + written).decode()


__all__ = ["Map", "image", "map_of", "shades"]
