"""What a call would cost: a coarse model, good enough to choose by. Only the order of the answers matters."""

from __future__ import annotations

import torch

from milepost.call.call import Call, Layout
from milepost.memory.table import by_value
from milepost.seams.band import Band

RATE = {"cpu": 4e10, "cuda": 2.5e14}
"""Multiply-adds a second of fused attention, on a common machine of each kind."""
LAUNCH = {"cpu": 4e-6, "cuda": 8e-6}
"""Seconds that one operation costs whatever its size."""
SAMPLES = 16
TRACED = 1e-3
"""Seconds of plain attention that a traced call is taken to cost, whatever its shapes."""


def seconds(call: Call, pairs: float, each: float = 1.0, launches: int = 1) -> float:
    """Return the time of a call that forms the scores of `pairs` queries and keys in every head.

    each: what a score costs, against plain fused attention. launches: how many operations it takes.
    """
    kind = call.q.device.type if call.q.device.type in RATE else "cpu"
    if torch.compiler.is_compiling():
        # A graph serves many lengths, and must not be chosen, or guarded, by the one it was traced at.
        return TRACED * each + launches * LAUNCH[kind]
    b, h, _, d = call.q.shape
    return b * h * pairs * (d + call.v.shape[-1]) * each / RATE[kind] + launches * LAUNCH[kind]


def all_pairs(call: Call) -> float:
    """Every query with every key."""
    return call.queries.count * call.keys.count


def seen_pairs(call: Call) -> float:
    """Return the pairs that are seen, as far as the layout tells."""
    layout, band = call.layout, call.scheme.band()
    if layout is None or band is None or torch.compiler.is_compiling():
        return all_pairs(call)
    return band_pairs(band, layout, call.queries.count, call.keys.count)


@by_value(256)
def band_pairs(band: Band, layout: Layout, t: int, s: int) -> float:
    """Return how many pairs lie in a band: the keys of some rows, counted, and taken for all."""
    rows = range(0, t, max(1, t // SAMPLES))
    found = [keys_of(band, layout, row, row, s) for row in rows]
    return sum(sinks + keys.stop - keys.start for sinks, keys in found) / len(rows) * t if t else 0.0


def keys_of(band: Band, layout: Layout, first: int, last: int, s: int) -> tuple[int, slice]:
    """Return the keys in a band of any of the rows first … last: how many of the first, and which of the others."""
    i = layout.offset + first
    low, high = max(0.0, min(i - band.behind + 1, s)), min(s - 1.0, layout.offset + last + band.ahead)
    if band.chunk is not None:
        low = max(low, (i + layout.key_first) // band.chunk * band.chunk - layout.key_first)
    sinks = int(max(0, min(band.sinks - layout.key_first, low, high + 1)))
    return sinks, slice(int(low), max(int(low), int(high) + 1))
