"""Maps of numbers over two axes: lighter is less, darker is more, and hatched is hidden."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.curves import evenly
from milepost.explore.pictures.written import markup
from milepost.lab.report.scale import Axis, marks, plain, step_of

if TYPE_CHECKING:
    from markupsafe import Markup

LEFT, TOP, SIDE = 54.0, 20.0, 256.0
"""Where the map begins, and how long its longer side is."""
BAR = 12.0
SCALE = ((246, 243, 236), (176, 204, 226), (96, 149, 196), (38, 95, 158), (12, 36, 74))
"""From least to most: lightness falls all the way, so that the map can be read without colour."""
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

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height of the cells; a map of few rows is not drawn as a square."""
        t, s = self.values.shape
        return (
            (SIDE, max(SIDE * t / s, min(SIDE, 14.0 * t))) if s >= t else (max(SIDE * s / t, min(SIDE, 14.0 * s)), SIDE)
        )

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all."""
        width, height = self.extent
        return LEFT + width + BAR + 66, TOP + height + 44

    @property
    def spoken(self) -> str:
        """Return what is drawn, in words."""
        low, high = self.limits
        return f"{self.unit or self.title} by {self.row_name} and {self.column_name}, {low:.4g} to {high:.4g}"

    def body(self) -> Markup:
        """Return the drawing."""
        width, height = self.extent
        bar = np.linspace(self.limits[1], self.limits[0], 64)[:, None]
        return markup(
            "map.svg",
            map=self,
            left=LEFT,
            top=TOP,
            width=width,
            height=height,
            bar=LEFT + width + 14,
            bar_width=BAR,
            cells=image(shades(self.values, self.limits)),
            scale=image(shades(bar, self.limits)),
            x=_ticks(self.columns, LEFT, width),
            y=_ticks(self.rows, TOP, height),
            z=self._levels(TOP, height),
            hidden=bool((~np.isfinite(self.values)).any()),
        )

    def _levels(self, top: float, height: float) -> list[tuple[float, str]]:
        low, high = self.limits
        axis = Axis(((low, top + height), (high, top)), plain(marks(low, high, step_of(high - low, 5))))
        return [(axis.at(value), label) for value, label in axis.ticks]

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        axes.imshow(shades(self.values, self.limits), aspect="auto", interpolation="nearest")
        for side, name, numbers in (("x", self.column_name, self.columns), ("y", self.row_name, self.rows)):
            at = evenly(len(numbers), 5)
            getattr(axes, f"set_{side}ticks")(at, [_name(numbers[n]) for n in at])
            getattr(axes, f"set_{side}label")(name)
        axes.set_title(f"{self.title}, {self.limits[0]:.3g} to {self.limits[1]:.3g} {self.unit}".rstrip())


def map_of(
    title: str,
    values: Numbers,
    rows: Numbers,
    columns: Numbers,
    *,
    row_name: str,
    column_name: str,
    unit: str = "",
    limits: tuple[float, float] | None = None,
) -> Map:
    """Return a map; limits are the least and the largest finite value if left out."""
    found = values[np.isfinite(values)]
    if limits is None:
        limits = (float(found.min()), float(found.max())) if found.size else (0.0, 1.0)
    if limits[0] == limits[1]:
        limits = limits[0], limits[0] + 1.0
    return Map(title, values, rows, columns, row_name, column_name, unit, limits)


def shades(values: Numbers, limits: tuple[float, float]) -> NDArray[np.uint8]:
    """Return the colour of each value, [rows columns 4]; what is not finite is transparent."""
    low, high = limits
    share = np.clip((np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / (high - low), 0.0, 1.0)
    stops = np.linspace(0.0, 1.0, len(SCALE))
    made = np.zeros((*values.shape, 4), np.uint8)
    for n in range(3):
        made[..., n] = np.interp(share, stops, [each[n] for each in SCALE]).round()
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


def _ticks(numbers: Numbers, start: float, extent: float) -> list[tuple[float, str]]:
    """Return where some of the cells of an axis lie, and their names."""
    cell = extent / len(numbers)
    return [(start + (n + 0.5) * cell, _name(numbers[n])) for n in evenly(len(numbers), 5)]


def _name(number: float) -> str:
    """Return a whole number with all its digits, and another with four."""
    return f"{number:,.0f}" if number == round(number) and abs(number) < 1e7 else f"{number:,.4g}"


__all__ = ["Map", "image", "map_of", "shades"]
