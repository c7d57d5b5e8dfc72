"""Which layers of a model see further than it reads now: those that `plan` is about, and that `extend` stretches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import milepost as mp
from milepost.configs.reader import LENGTH, Reader
from milepost.seams.arguments import spell


def reach(reader: Reader, schemes: Iterable[mp.Scheme], trained: int) -> int:
    """Return the length that a config promises: its longest, or the trained one times the factor of a stretch."""
    parts = [part for scheme in schemes for part in scheme.parts]
    if any(isinstance(part, mp.Learned) for part in parts):
        # RoBERTa's longest length counts two rows that no token uses.
        return trained
    turns = [part.method if isinstance(part, mp.Partial) else part for part in parts]
    stretches: list[Any] = [getattr(turn, "stretch", None) for turn in turns if getattr(turn, "rotary", False)]
    times = (times_of(reader, each) for each in stretches if each is not None)
    return max(trained, int(reader.get(*LENGTH) or 0), *(int(trained * each) for each in times))


def times_of(reader: Reader, stretch: Any) -> float:
    """Return how many times the trained length a stretch says that it reaches; refuse one that says nothing of it."""
    if not hasattr(stretch, "times"):
        raise ValueError(
            f"{reader.called}: {spell(stretch)} does not say how many times the trained length it reaches, so how far "
            f"this model reads is not known; give {type(stretch).__name__} a property times, 1.0 where its numbers say "
            f"nothing of lengths"
        )
    return float(stretch.times)


def sees(scheme: mp.Scheme) -> float:
    """Return how many keys back a layer looks, the query's own among them."""
    band = scheme.band()
    if band is None or band.sinks:
        return math.inf
    return min(band.behind, math.inf if band.chunk is None else band.chunk)
