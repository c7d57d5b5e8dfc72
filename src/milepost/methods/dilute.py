"""Dilute: far keys together weigh no more than in training, however many there are (milepost's own, 2026)."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from milepost.numerics.precision import float64, returned
from milepost.seams import demand
from milepost.seams.verbs import Regime


@dataclass(frozen=True)
class Dilute:
    """Lower the scores of the keys that a method moves, by the logarithm of how many more there are than in training.

        score  ←  score − strength · ln max(1, (i + 1 − near)/(trained − near))   for the keys that method moves
        near  =  how many keys it leaves where they are

    A head that attends broadly, or prefers far keys, gave its far keys a share of its attention
    that grew with their number; past the trained length that share swallows the near ones. With strength 1 all far keys
    together weigh what an average of them weighed in training; a larger one trusts them less. Every key is still seen,
    within the trained length the method is as without it, and no training is needed. For causal models.
    """

    method: Any
    trained: int
    _: KW_ONLY
    strength: float = 1.0
    needs_causal = True

    def __post_init__(self) -> None:
        demand.moves(self, self.method)
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "strength", self.strength, least=0)
        if self.near >= self.trained:
            raise ValueError(
                f"Dilute({self.method!r}, trained={self.trained}): {self.near} keys are near, so that none was far in "
                f"training; give the length of the training, or a method that moves keys closer by"
            )

    @property
    def near(self) -> float:
        """The number of keys that are not moved."""
        return self.method.place()[0].distances()[1] + 1

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def contrasts(self) -> bool:
        """True if far keys are compared with near ones, as by a Pivot inside."""
        return getattr(self.method, "contrasts", False)

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        return near, *(each if each.spared else replace(each, shift=self._shift) for each in far)

    def _shift(self, index: Tensor, length: Tensor) -> Tensor:
        """Return what is added to the far scores of each query: index [b|1 t]."""
        more = torch.log(float64((index + 1 - self.near).clamp(min=1))) - math.log(self.trained - self.near)
        return returned(-self.strength * more.clamp(min=0), index.device)
