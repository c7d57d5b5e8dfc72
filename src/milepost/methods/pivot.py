"""Pivot: in long texts, far keys count only if they outweigh all near ones (milepost's own, 2026)."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from milepost.numerics.precision import float64, returned
from milepost.seams import demand
from milepost.seams.verbs import Regime


@dataclass(frozen=True)
class Pivot:
    """Scale the scores of the keys that a method moves about the log-sum-exp of all others.

        score  ←  score + strength · ln max(1, n/trained) · (score − near)   for the keys that method moves
        near  =  ln Σ exp(score) over the other keys
        count="index":   n  =  i + 1
        count="length":  n  =  the length of the text

    The more keys there are, the more of them are similar by chance, and a softmax over all of them blurs. Here a far
    key that weighs less than the near ones together is lowered, and one that weighs more is raised. Where a query sees
    no near key, near is 0: nothing visible has no log-sum-exp, and a far score is then compared with a key of score 0.
    Within the trained length the method is as without it, and no training is needed. n is the query's index + 1
    (count="index", causal models) or the length of the text (count="length", encoders).
    """

    method: Any
    trained: int
    _: KW_ONLY
    strength: float = 0.5
    count: Literal["index", "length"] = "index"
    contrasts = True

    def __post_init__(self) -> None:
        demand.moves(self, self.method)
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "strength", self.strength, least=0)
        demand.one_of(self, "count", self.count, ("index", "length"))

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def needs_causal(self) -> bool:
        """True if keys ahead of the query have no position."""
        return getattr(self.method, "needs_causal", False)

    @property
    def by_length(self) -> bool:
        """True if the strength depends on the number of tokens."""
        return self.count == "length"

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        return near, *(each if each.spared else replace(each, contrast=self._strength) for each in far)

    def _strength(self, index: Tensor, length: Tensor) -> Tensor:
        """Return the strength for the scores of each query: index [b|1 t], length [b|1 t|1]."""
        n = float64(index + 1 if self.count == "index" else length)
        strength = self.strength * (torch.log(n.clamp(min=1)) - math.log(self.trained)).clamp(min=0)
        return returned(strength, index.device)
