"""NTK-by-parts: slow pairs interpolated, fast ones left alone (bloc97, 2023; Peng et al., arXiv:2309.00071)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from milepost.methods.yarn import Ramp, check_ramp, share_kept
from milepost.seams import demand


@dataclass(frozen=True)
class ByParts:
    """Blend interpolation and no change, pair by pair: YaRN without its temperature.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/factor
        ramp="code":   γ_n  =  (high − n)/(high − low), kept within 0 … 1
        ramp="code":   low, high  =  the n with trained · θ_n/2π = fast and slow turns, within 0 … d − 1
        ramp="code", truncate=True:  low, high  ←  ⌊low⌋, ⌈high⌉
        ramp="paper":  γ_n  =  (trained · θ_n/2π − slow)/(fast − slow), kept within 0 … 1

    γ is YaRN's: 1 for pairs that make more than `fast` turns within the trained length, 0 for those that make fewer
    than `slow`. ramp="code" lets it fall evenly over the pairs, "paper" over the number of turns.
    """

    factor: float
    trained: int
    ramp: Ramp = "code"
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, least=1)
        demand.flag(self, "truncate", self.truncate)
        check_ramp(self, self.trained, self.ramp, self.fast, self.slow)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        kept = share_kept(f, self.trained, self.ramp, self.fast, self.slow, self.truncate)
        return (1 - kept) * f / self.factor + kept * f

    def magnitude(self, length: Tensor) -> float:
        return 1.0
