"""Far keys of which the first are split off, as a regime of their own that is spared what is done to the others."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from milepost.seams.verbs import Bound, Regime


def is_of_keys(bound: Bound) -> bool:
    """True if a bound measures the key alone."""
    return bound.mirrored and bound.measure is torch.zeros_like


def is_split(first: Regime, later: Regime) -> bool:
    """True if two regimes are one, but for the first keys, which are spared."""
    cut = later.bounds[-1] if later.bounds else Bound()
    return (
        first.spared
        and (first.query, first.key, first.bounds[:-1]) == (later.query, later.key, later.bounds[:-1])
        and is_of_keys(cut)
        and first.bounds[-1] == replace(cut, low=-math.inf, high=cut.low)
    )


def sinks_of(later: Regime) -> int:
    """Return how many keys are split off a regime."""
    return math.ceil(later.bounds[-1].low)


def whole(later: Regime) -> Regime:
    """Return a regime with the keys that were split off it."""
    return replace(later, bounds=later.bounds[:-1])
