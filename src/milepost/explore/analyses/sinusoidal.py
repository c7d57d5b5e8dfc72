"""Sinusoidal positions: the table as a picture, one component under several bases, and how far apart rows lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import curves, evenly
from milepost.explore.pictures.maps import map_of
from milepost.explore.pictures.strips import strips
from milepost.explore.words import in_words
from milepost.methods.embeddings import Sinusoidal
from milepost.seams import demand
from milepost.seams.arguments import spell

Numbers = NDArray[np.float64]
MOST = 256
"""How many rows and columns of a map are drawn."""


def sinusoidal_map(
    encoding: Sinusoidal,
    *,
    length: int = 100,
    pair: int = 10,
    bases: Sequence[float] = (2, 10, 100, 1_000, 10_000),
) -> Analysis:
    """Draw a sinusoidal table, the sine of one pair under several bases, and the distance of its rows.

        explore.sinusoidal_map(mp.Sinusoidal(100))
        explore.sinusoidal_map(mp.Sinusoidal(512), length=2048, pair=128, bases=(10_000, 1_000_000))

    Look at the two consequences of a larger base: each component repeats later, and whole rows lie closer together. A
    larger base does not make positions easier to distinguish. The distance of two rows depends on their distance in the
    text alone.
    """
    if not isinstance(encoding, Sinusoidal):
        given = getattr(encoding, "__name__", repr(encoding))
        raise TypeError(f"sinusoidal_map({given}): give the table that is drawn, such as Sinusoidal(100)")
    demand.whole(sinusoidal_map, "length", length, least=2)
    demand.whole(sinusoidal_map, "pair", pair, least=0)
    if pair >= encoding.model_dim // 2:
        raise ValueError(f"sinusoidal_map(pair={pair}): {spell(encoding)} has {encoding.model_dim // 2} pairs")
    demand.several(sinusoidal_map, "bases", bases)
    at = torch.arange(length)
    sine = 2 * pair if encoding.layout == "interleaved" else pair
    tables = {float(each): replace(encoding, theta=each).table(at) for each in bases}
    periods = {base: math.tau / _step(table, sine, sine + _cosine(encoding)) for base, table in tables.items()}
    # A row and another differ by their distance in the text alone, so the first row serves for all.
    apart = {base: _apart(table.numpy(), 1)[0] for base, table in tables.items()}
    least = {base: float(each[1:].min()) for base, each in apart.items()}
    size = encoding.amplitude
    own, positions = encoding.table(at).numpy(), np.arange(length, dtype=np.float64)
    ordered = np.array(list(tables))
    components = np.stack([table[:, sine].numpy() for table in tables.values()])
    rows, columns = evenly(length, MOST), evenly(own.shape[1], MOST)
    shown, drawn = positions[rows], own[rows]
    # Sines and cosines in turn would be stripes one channel wide.
    count = own.shape[1]
    order = [*range(0, count, 2), *range(1, count, 2)] if encoding.layout == "interleaved" else list(range(count))
    least_names = ", ".join(f"{each:.2f} (base {_short(base)})" for base, each in least.items())
    return Analysis(
        "sinusoidal_map",
        "Sinusoidal positions: a larger base repeats later, and the nearest rows lie closer together",
        f"Period of pair {pair}: {', '.join(f'{each:.1f}' for each in periods.values())} tokens at bases "
        f"{', '.join(_short(base) for base in periods)}. Least distance of two rows: {least_names}.",
        (
            axis("position", positions, "tokens"),
            axis("channel", np.arange(own.shape[1], dtype=np.float64)),
            axis("base", ordered),
            axis("apart", positions, "tokens"),
            array("table", own, "", "position", "channel"),
            array("component", components, "", "base", "position"),
            array("period", list(periods.values()), "tokens", "base"),
            array("distance of rows", np.stack(list(apart.values())), "", "base", "apart"),
            array("least distance", list(least.values()), "", "base"),
        ),
        (
            map_of("The table", drawn[:, order][:, columns], shown, np.array(columns, np.float64),
                   row_name="position", column_name="channel, sines first", unit="value", signed=True,
                   border=(count / 2, "sines", "cosines")),
            map_of(f"Distance of two rows, base {_short(encoding.theta)}", _apart(drawn), shown, shown,
                   row_name="position", column_name="position", unit="distance"),
            strips(f"One component by base: the sine of pair {pair}", positions,
                   {f"base {_short(base)}": each for base, each in zip(tables, components, strict=True)},
                   x_name="position", y_name="value", limits=(-size, size)),
            curves("Distance of two rows, by base", positions,
                   {f"base {_short(base)}: least {least[base]:.2f}": each for base, each in apart.items()},
                   x_name="tokens apart", y_name="Euclidean distance; least: of any two rows", at_ends=True),
        ),
        f"{in_words(encoding)} unless a base is named · {length:,} positions",
    )  # fmt: skip


def _cosine(encoding: Sinusoidal) -> int:
    """Return how many channels after its sine the cosine of a pair lies."""
    return 1 if encoding.layout == "interleaved" else encoding.model_dim // 2


def _step(table: Any, sine: int, cosine: int) -> float:
    """Return by how much a pair turns from one row to the next, in radians."""
    (a, b), (c, d) = ((float(row[sine]), float(row[cosine])) for row in table[:2])
    return math.atan2(c * b - a * d, b * d + a * c)


def _apart(rows: Numbers, first: int | None = None) -> Numbers:
    """Return the distance of the first rows, all if left out, from every row."""
    return np.stack([np.sqrt(np.square(rows - each).sum(-1)) for each in rows[:first]])


def _short(base: float) -> str:
    return f"{base:,.10g}" if base < 1e6 else f"{base:.4g}"


__all__ = ["sinusoidal_map"]
