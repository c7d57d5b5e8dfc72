"""NTK-by-parts: slow pairs interpolated, fast ones kept (bloc97, 2023; Peng et al., arXiv:2309.00071)."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.seams import demand

Ramp = Literal["code", "paper"]


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
    _: KW_ONLY
    ramp: Ramp = "code"
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, least=1)
        check_ramp(self, self.trained, self.ramp, self.fast, self.slow, self.truncate)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        kept = share_kept(f, self.trained, self.ramp, self.fast, self.slow, self.truncate)
        return (1 - kept) * f / self.factor + kept * f

    def magnitude(self, length: Tensor) -> float:
        return 1.0


def check_ramp(owner: object, trained: int, ramp: str, fast: float, slow: float, truncate: bool) -> None:
    """Raise where arguments of the ramp are wrong."""
    demand.whole(owner, "trained", trained)
    demand.flag(owner, "truncate", truncate)
    demand.one_of(owner, "ramp", ramp, ("code", "paper"))
    demand.finite(owner, "slow", slow, above=0)
    # Where both ends are the same number the code's ramp is a step (Kimi K2); the paper's would divide by zero.
    if ramp == "paper":
        demand.finite(owner, "fast", fast, above=slow)
    else:
        demand.finite(owner, "fast", fast, least=slow)


def share_kept(f: Tensor, trained: int, ramp: Ramp, fast: float, slow: float, truncate: bool) -> Tensor:
    """Return γ, the share of each frequency that is kept, [pairs]."""
    if ramp == "paper":
        turns = trained * f / (2 * math.pi)
        return ((turns - slow) / (fast - slow)).clamp(0, 1)
    pairs = f.shape[-1]
    if pairs == 1:
        return torch.ones_like(f)
    n = torch.arange(pairs, dtype=f.dtype, device=f.device)
    # Frequencies fall geometrically: a pair that makes r turns is at ln(trained · θ_0 / 2πr) / fall.
    fall = (f[0].log() - f[-1].log()) / (pairs - 1)
    low = (math.log(trained / (2 * math.pi * fast)) + f[0].log()) / fall
    high = (math.log(trained / (2 * math.pi * slow)) + f[0].log()) / fall
    if truncate:
        low, high = low.floor(), high.ceil()
    low, high = low.clamp(min=0), high.clamp(max=2 * pairs - 1)
    # A step, as wide as the authors' code makes it.
    high = torch.where(low == high, high + 0.001, high)
    return 1 - ((n - low) / (high - low)).clamp(0, 1)
