"""What a page draws, as CSV: through the writer of analyses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from milepost.explore.analysis import Analysis, Array, array, axis
from milepost.explore.scene import Dials, Figure, Lines, Map, Scene


def to_csv(scene: Scene) -> str:
    """Return every curve, map and clock of a scene as CSV.

    Figures over the same axes are one table, with a column for each that has its scheme's name. Where one of them lacks
    a place of an axis, it has no number there.
    """
    found = [_analysis(each) for each in scene.figures if isinstance(each, (Lines, Map, Dials))]
    axes: dict[tuple[str, ...], list[Analysis]] = {}
    for each in found:
        axes.setdefault(tuple(one.name for one in each.arrays if one.over == (one.name,)), []).append(each)
    return "\n".join(_joined(names, each).to_csv() for names, each in axes.items())


def _joined(names: Sequence[str], each: Sequence[Analysis]) -> Analysis:
    """Return analyses over axes of the same names as one."""
    if len(each) == 1:
        return each[0]
    units = {array.name: array.unit for array in each[0].arrays}
    every = {name: np.unique(np.concatenate([one[name] for one in each])) for name in names}
    columns: list[Array] = []
    for one in each:
        at = np.ix_(*(np.searchsorted(every[name], one[name]) for name in names))
        for values in one.arrays:
            if values.name not in names:
                whole = np.full([len(every[name]) for name in names], math.nan)
                whole[at] = values.values
                columns.append(Array(values.name, whole, values.unit, tuple(names)))
    made = [axis(name, every[name], units[name]) for name in names]
    return Analysis("explore", each[0].title, "", (*made, *_apart(columns, "")), ())


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
            values = [_numbers(row) for row in figure.values]
            cells = array(figure.of or "value", values, figure.unit.en, rows.name, columns.name)  # pyright: ignore
            arrays = (rows, columns, cells)
        case Dials():
            pair = axis("pair", [float(each.name) for each in figure.dials])
            whose = f"{figure.of}, " if figure.of else ""
            seen = array(f"{whose}turns in training", [each.seen for each in figure.dials], "turns", "pair")
            now = array(f"{whose}turns", [each.reached for each in figure.dials], "turns", "pair")
            arrays = (pair, seen, now)
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
