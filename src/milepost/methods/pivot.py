"""Pivot: in long texts, far keys must outweigh all near ones to be read (milepost's own, 2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.verbs import Regime


@dataclass(frozen=True)
class Pivot:
    """Turn the scores of the keys that a method moves about what all the others offer together.

        score  ←  score + strength · ln max(1, n/trained) · (score − near)   for the keys that method moves
        near  =  ln Σ exp(score) over the other keys
        count="index":   n  =  i + 1
        count="length":  n  =  the length of the text

    The more keys there are, the more of them are alike by chance, and a softmax over all of them blurs. Here a far key
    that does not weigh as much as the near ones together sinks, and one that weighs more rises. Within the trained
    length the method is as without it, and no training is needed. n is the query's index + 1 (count="index", causal
    models) or the length of the text (count="length", encoders).
    """

    method: Any
    trained: int
    strength: float = 0.5
    count: Literal["index", "length"] = "index"
    contrasts: ClassVar[bool] = True

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
        """Whether keys ahead of the query have no place."""
        return getattr(self.method, "needs_causal", False)

    @property
    def by_length(self) -> bool:
        """Whether the strength depends on how many tokens there are."""
        return self.count == "length"

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        return near, *(each if each.spared else replace(each, contrast=self._strength) for each in far)

    def _strength(self, index: Tensor, length: Tensor) -> Tensor:
        """How strongly the scores of each query are turned: index [b|1 t], length [b|1 t|1]."""
        n = (index + 1 if self.count == "index" else length).double()
        return self.strength * (torch.log(n.clamp(min=1)) - math.log(self.trained)).clamp(min=0)
