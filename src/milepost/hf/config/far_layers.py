"""Which layers of a model see further than it reads now: those that `plan` is about, and that `extend` stretches."""

from __future__ import annotations

import math
from collections.abc import Iterable

import milepost as mp
from milepost.configs.reader import LENGTH, Reader


def reach(reader: Reader, schemes: Iterable[mp.Scheme], trained: int) -> int:
    """Return the length that a config promises: its longest, or the trained one times the factor of a stretch."""
    parts = [part for scheme in schemes for part in scheme.parts]
    if any(isinstance(part, mp.Learned) for part in parts):
        # RoBERTa's longest length counts two rows that no token uses.
        return trained
    ropes = [part.method if isinstance(part, mp.Partial) else part for part in parts]
    stretches = [rope.stretch for rope in ropes if isinstance(rope, mp.Rope)]
    factors = [each.factor for each in stretches if isinstance(each, (mp.Interpolate, mp.LongRope, mp.Llama3, mp.Yarn))]
    return max(trained, int(reader.get(*LENGTH) or 0), *(int(trained * factor) for factor in factors))


def sees(scheme: mp.Scheme) -> float:
    """Return how many keys back a layer looks, the query's own among them."""
    band = scheme.band()
    if band is None or band.sinks:
        return math.inf
    return min(band.behind, math.inf if band.chunk is None else band.chunk)
