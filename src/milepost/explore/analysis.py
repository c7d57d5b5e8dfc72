"""What an analysis returns: named arrays with units, which write themselves, and pictures, which draw themselves."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.pictures.picture import Picture, drawn
from milepost.lab.report.layout import write_whole
from milepost.refusal import need

if TYPE_CHECKING:
    from torch import Tensor

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Array:
    """Numbers with a name and a unit.

    over: for each axis the name of the array that counts along it, such as ("query", "key"). An array without any is a
    single number, one over itself counts an axis.
    """

    name: str
    values: Numbers
    unit: str = ""
    over: tuple[str, ...] = ()


def array(name: str, values: Tensor | Numbers | Sequence[float] | float, unit: str = "", *over: str) -> Array:
    """Return an array from a tensor, an array, a list or a number, in float64."""
    made: Any = values
    plain = made.detach().cpu().numpy() if hasattr(made, "detach") else made
    return Array(name, np.asarray(plain, dtype=np.float64), unit, over)


def axis(name: str, values: Tensor | Numbers | Sequence[float], unit: str = "") -> Array:
    """Return an array that counts an axis."""
    return array(name, values, unit, name)


@dataclass(frozen=True)
class Analysis:
    """Named arrays with units, and pictures of them.

    found = explore.angles_seen(mp.Rope(128), trained=4096, length=32_768)
    found["turns"]          # an array
    found.to_csv(), found.to_json()
    found.svg()             # in a notebook it draws itself
    """

    name: str
    title: str
    says: str
    """What the picture shows, in a sentence or two, with the numbers that were found."""
    arrays: tuple[Array, ...]
    pictures: tuple[Picture, ...]
    settings: str = ""
    """What it was computed with, in words; written under the title."""
    across: int = 0
    """So many pictures in a line at most; as many as the pages have it if left out."""

    def __post_init__(self) -> None:
        known = {each.name: each for each in self.arrays}
        if len(known) < len(self.arrays):
            raise ValueError(f"{self.name}: two arrays have one name: {[each.name for each in self.arrays]}")
        for each in self.arrays:
            sizes = tuple(len(known[over].values) for over in each.over)
            if each.values.shape != sizes:
                raise ValueError(f"{self.name}: {each.name} is {each.values.shape} over {each.over}, which is {sizes}")

    def __getitem__(self, name: str) -> Numbers:
        for each in self.arrays:
            if each.name == name:
                return each.values
        raise KeyError(f"{self.name} has no array {name!r}; it has {', '.join(each.name for each in self.arrays)}")

    def __repr__(self) -> str:
        lines = [f"{each.name} {list(each.values.shape)} {each.unit}".rstrip() for each in self.arrays]
        return "\n".join([f"{self.title}. {self.says}", *(f"  {line}" for line in lines)])

    def to_json(self) -> str:
        """Return everything but the pictures as JSON; what is not a finite number is null."""
        arrays = {
            each.name: {"unit": each.unit, "over": list(each.over), "values": _plain(each.values.tolist())}
            for each in self.arrays
        }
        plain = {"name": self.name, "title": self.title, "settings": self.settings, "says": self.says, "arrays": arrays}
        return json.dumps(plain, ensure_ascii=False)

    def to_csv(self) -> str:
        """Return the arrays as CSV: a table for all that are counted by the same axes, an empty line between tables.

        The first line of a table has names and units; numbers are written with every digit.
        """
        known = {each.name: each for each in self.arrays}
        tables: dict[tuple[str, ...], list[Array]] = {}
        for each in self.arrays:
            if each.over != (each.name,):
                tables.setdefault(each.over, []).append(each)
        return "\n".join(_table([known[name] for name in over], columns) for over, columns in tables.items())

    def svg(self) -> str:
        """Return the pictures as one SVG, which needs nothing else and follows light and dark."""
        return drawn(self.title, self.pictures, self.settings, says=self.says, across=self.across)

    def _repr_html_(self) -> str:
        return self.svg()

    def save(self, path: str | Path) -> Path:
        """Write what the name of the file asks for: .svg, .png, .csv or .json; png needs matplotlib."""
        path = Path(path)
        if path.suffix == ".png":
            need("Analysis.save", "plot", ("matplotlib",))
            from milepost.explore.pictures.png import write_png

            write_png(self.title, self.pictures, path, self.settings)
            return path
        written = {".svg": self.svg, ".csv": self.to_csv, ".json": self.to_json}
        if path.suffix not in written:
            raise ValueError(f"Analysis.save({str(path)!r}): name a file that ends in .svg, .png, .csv or .json")
        write_whole(written[path.suffix](), path)
        return path


def _plain(values: Any) -> Any:
    if isinstance(values, list):
        return [_plain(each) for each in values]  # pyright: ignore[reportUnknownVariableType]
    return values if math.isfinite(values) else None


def _shortest(value: float) -> str:
    """Return the fewest digits that give the number back."""
    return repr(value).removesuffix(".0")


def _table(axes: Sequence[Array], columns: Sequence[Array]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"{each.name} ({each.unit})" if each.unit else each.name for each in (*axes, *columns)])
    for place in product(*(range(len(each.values)) for each in axes)):
        at = [each.values[n] for each, n in zip(axes, place, strict=True)]
        writer.writerow([_shortest(float(each)) for each in (*at, *(column.values[place] for column in columns))])
    return out.getvalue()


__all__ = ["Analysis", "Array", "array", "axis"]
