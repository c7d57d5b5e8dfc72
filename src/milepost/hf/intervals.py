"""Means with 95 % intervals, and differences paired over the same tokens."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """A mean, half of its 95 % interval by Student's t, and the values it is the mean of, one for each window."""

    mean: float
    half: float
    values: tuple[float, ...] = ()

    @property
    def perplexity(self) -> float:
        """e to the mean, where it is of nats."""
        return math.exp(min(self.mean, 700.0))


def score(values: Tensor) -> Score:
    """The mean of independent values [n]; the interval is nan where there is only one."""
    numbers = [float(each) for each in values.double().flatten()]
    if len(numbers) < 2:
        return Score(numbers[0] if numbers else math.nan, math.nan, tuple(numbers))
    stats: Any = importlib.import_module("scipy.stats")
    mean = sum(numbers) / len(numbers)
    if max(numbers) == min(numbers):
        return Score(mean, 0.0, tuple(numbers))
    low, high = stats.ttest_1samp(numbers, 0.0).confidence_interval(0.95)
    return Score(mean, float(high - low) / 2, tuple(numbers))


def paired(one: Score, two: Score) -> Score:
    """How much more one has than two, window by window: what the windows share falls out."""
    if len(one.values) != len(two.values):
        raise ValueError(f"paired: {len(one.values)} windows and {len(two.values)}; both must be judged on the same")
    return score(torch.tensor([a - b for a, b in zip(one.values, two.values, strict=True)], dtype=torch.float64))


def plus_minus(half: float, form: str = ".3f", space: str = " ") -> str:
    """An interval as it is written after its mean; nothing where there is none, of a single window."""
    return f"{space}±{half:{form}}" if math.isfinite(half) else ""
