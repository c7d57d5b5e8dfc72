"""Frequencies read back: the base, the factor and the ramp behind a list of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SAME = 2e-5
"""Relative difference that float32 may make."""


@dataclass(frozen=True)
class Curve:
    """What made a list of frequencies.

        θ_n  =  base^(−2n/d) · ( γ_n + (1 − γ_n)/factor )

    γ is 1 where a pair is kept and 0 where it is divided by the factor. factor is 1 for plain RoPE. ramp is "none"
    where all pairs are divided alike, "pairs" where γ falls evenly over the pairs (YaRN's code), "turns" where it falls
    evenly over the frequencies (YaRN's paper, Llama 3), "other" beyond. low and high are where it begins and ends.
    """

    base: float
    factor: float = 1.0
    ramp: str = "none"
    low: float = math.nan
    high: float = math.nan

    @property
    def whole(self) -> bool:
        """Whether the ramp begins and ends at whole pairs, as YaRN's truncate has it."""
        return all(abs(each - round(each)) < 1e-3 for each in (self.low, self.high))


def curve_of(f: Tensor, base: float | None = None) -> Curve | None:
    """The curve behind frequencies [pairs]; None where it is none of these. base, where it is known."""
    pairs = len(f)
    if pairs < 3 or bool((f <= 0).any()):
        return None
    n = torch.arange(pairs, dtype=torch.float64)
    logs = f.log()
    fall = logs[:-1] - logs[1:]
    if bool((fall - fall[0]).abs().max() < SAME * 10):
        # A straight line: plain, or all pairs divided by one factor.
        steady = (logs[0] - logs[-1]) / (pairs - 1)
        return Curve(float((steady * pairs).exp()), float(1 / f[0]) if abs(float(f[0]) - 1) > SAME else 1.0)
    if base is None:
        # The fast pairs are kept by all ramps, so the first step is that of the base.
        base = float((fall[0] * pairs).exp())
    plain = base ** (-n / pairs)
    factor = float(plain[-1] / f[-1])
    if abs(factor - 1) < 1e-3:
        return None
    kept = (f / plain - 1 / factor) / (1 - 1 / factor)
    if bool((kept > 1 + 1e-3).any()) or bool((kept < -1e-3).any()):
        return Curve(base, factor, "other")
    return _ramped(base, factor, kept, n, plain)


def _ramped(base: float, factor: float, kept: Tensor, n: Tensor, plain: Tensor) -> Curve:
    inside = ((kept > 1e-3) & (kept < 1 - 1e-3)).nonzero().flatten()
    if len(inside) < 2:
        # A step, or one pair between: the ends are as near as whole pairs can say.
        return Curve(base, factor, "pairs", float((kept > 1 - 1e-3).sum() - 1), float(len(kept) - (kept < 1e-3).sum()))
    for name, x in (("pairs", n), ("turns", plain)):
        slope, start, off = _line(x[inside], kept[inside])
        if off < 1e-3:
            low, high = (1 - start) / slope, -start / slope
            return Curve(base, factor, name, low, high)
    return Curve(base, factor, "other")


def _line(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """The line through points: its slope, its height at 0, and how far a point lies from it at most."""
    across = x - x.mean()
    slope = float((across * y).sum() / across.square().sum())
    start = float(y.mean()) - slope * float(x.mean())
    return slope, start, float((slope * x + start - y).abs().max())


def near(one: float, two: float, within: float = 1e-4) -> bool:
    """Whether two numbers are the same but for what float32 loses."""
    return abs(one - two) <= within * max(abs(one), abs(two), 1e-12)
