"""What a page draws, as CSV: through the writer of analyses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from milepost.explore.analysis import Analysis, Array, array, axis
from milepost.explore.scene import Dials, Figure, Lines, Map, Scene


def to_csv(scene: Scene) -> str:
    """Return every curve, map and clock of a scene as CSV, a table for each figure."""
    return "\n".join(_analysis(each).to_csv() for each in scene.figures if isinstance(each, (Lines, Map, Dials)))


def _analysis(figure: Figure) -> Analysis:
    match figure:
        case Lines():
            at = axis(figure.x.en, figure.at)
            lines = [array(each.name.en, _numbers(each.values), figure.y.en, at.name) for each in figure.lines]
            arrays = (at, *_apart(lines, at.name))
        case Map():
            # Words are counted; the table has their places.
            rows, columns = (
                axis(name, list(range(len(each))) if isinstance(each[0], str) else [float(one) for one in each])
                for name, each in ((figure.y.en, figure.ys), (figure.x.en, figure.xs))
            )
            cells = array("value", [_numbers(row) for row in figure.values], figure.unit.en, rows.name, columns.name)  # pyright: ignore
            arrays = (rows, columns, cells)
        case Dials():
            pair = axis("pair", [float(n) for n in range(len(figure.dials))])
            seen = array("turns in training", [each.seen for each in figure.dials], "turns", "pair")
            arrays = (pair, seen, array("turns", [each.reached for each in figure.dials], "turns", "pair"))
        case _:
            arrays = ()
    return Analysis("explore", figure.title.en, "", arrays, ())


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if each is None else float(each) for each in values]


def _apart(arrays: list[Array], taken: str) -> list[Array]:
    """Return arrays whose names differ."""
    found: dict[str, Array] = {}
    for each in arrays:
        name, n = each.name, 1
        while name in found or name == taken:
            n += 1
            name = f"{each.name} {n}"
        found[name] = Array(name, each.values, each.unit, each.over)
    return list(found.values())


__all__ = ["to_csv"]
