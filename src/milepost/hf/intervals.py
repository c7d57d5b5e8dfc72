"""Means with 95 % intervals, and differences paired over the same tokens; the rules are the lab's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.lab.statistics.intervals import over_seeds, over_windows


@dataclass(frozen=True)
class Score:
    """A mean, half of its 95 % interval, and the values it is the mean of, one for each window.

    drawn: whether the windows were drawn at random, and so are independent; others stand in the order of the text.
    """

    mean: float
    half: float
    values: tuple[float, ...] = ()
    drawn: bool = False

    @property
    def perplexity(self) -> float:
        """e to the mean, where it is of nats."""
        return math.exp(min(self.mean, 700.0))


def score(values: Tensor, drawn: bool = False) -> Score:
    """The mean of values [n]; the interval is nan where there is only one.

    Windows of a text are correlated: neighbours come from one chapter, and may overlap. `over_windows` widens for that;
    values that were drawn have Student's interval.
    """
    numbers = tuple(float(each) for each in values.double().flatten())
    mean = sum(numbers) / len(numbers) if numbers else math.nan
    half = float((over_seeds if drawn else over_windows)(numbers))
    return Score(mean, half, numbers, drawn)


def paired(one: Score, two: Score) -> Score:
    """How much more one has than two, window by window: what the windows share falls out."""
    if len(one.values) != len(two.values):
        raise ValueError(f"paired: {len(one.values)} windows and {len(two.values)}; both must be judged on the same")
    differences = [a - b for a, b in zip(one.values, two.values, strict=True)]
    return score(torch.tensor(differences, dtype=torch.float64), one.drawn)


def plus_minus(half: float, form: str = ".3f", space: str = " ") -> str:
    """An interval as it is written after its mean; nothing where there is none, of a single window."""
    return f"{space}±{half:{form}}" if math.isfinite(half) else ""
