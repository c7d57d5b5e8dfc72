"""Llama 3.1's stretch: slow pairs divided by a factor, fast kept, a blend between (Meta, 2024, arXiv:2407.21783)."""

import math
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Llama3:
    """Blend by the number of turns a pair makes within the trained length.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/factor
        γ_n  =  (trained · θ_n/2π − low)/(high − low), kept within 0 … 1

    Pairs that make more than `high` turns are kept, those that make fewer than `low` divided.
    """

    factor: float
    trained: int
    _: KW_ONLY
    low: float = 1.0
    high: float = 4.0
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "low", self.low, above=0)
        demand.finite(self, "high", self.high, above=self.low)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        turns = self.trained * f / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - kept) * f / self.factor + kept * f

    def magnitude(self, length: Tensor) -> float:
        return 1.0
