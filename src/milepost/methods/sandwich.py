"""Sandwich: a fixed bias, the inner product of two sinusoidal positions (Chi et al., 2023, arXiv:2212.10356)."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.numerics.precision import float64, returned
from milepost.seams import demand


@dataclass(frozen=True)
class Sandwich:
    """Raise the scores of near keys by a sum of cosines of the distance, more in the first heads than in the last.

        score  ←  score + heads/(8(h + 1)) · waves
        zeroed=False:  waves  =  Σ_n cos((p − r) · θ^(−2n/d))
        zeroed=True:   waves  =  Σ_n cos((p − r) · θ^(−2n/d)) − d/2
        start=0:  n  =  0 … d/2 − 1
        start=1:  n  =  1 … d/2

    head_dim sets how many waves are summed; it need not be the width of a head. start=1 and zeroed=True are the form of
    the NeMo port: d/2 is taken from the sum, so that distance 0 adds nothing. The softmax does not see that constant.
    """

    heads: int
    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    start: Literal[0, 1] = 0
    zeroed: bool = False
    relative = True
    additive = True
    costly = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)
        demand.even(self, "head_dim", self.head_dim, "each wavelength stands for a sine and a cosine")
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "start", self.start, (0, 1))
        demand.flag(self, "zeroed", self.zeroed)

    def waves(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sum of cosines at each distance, less d/2 where zeroed."""
        total = torch.zeros_like(distance, dtype=dtype)
        far = float64(distance)
        # Wave by wave: a tile of scores has no room for one more axis. Whole turns are taken off in float64.
        for n in range(self.start, self.start + self.head_dim // 2):
            turns = far * (self.theta ** (-2 * n / self.head_dim) / (2 * math.pi))
            total = total + returned((turns - turns.floor()) * (2 * math.pi), distance.device).to(dtype).cos()
        return total - self.head_dim // 2 if self.zeroed else total

    @property
    def constant_past(self) -> tuple[float, float]:
        """The waves never end."""
        return math.inf, math.inf

    def by_distance(self, distance: Tensor) -> Tensor:
        """Return what is added at each distance [n]: float64 [h n]."""
        head = torch.arange(self.heads, device=distance.device)[:, None]
        return self._added(distance, head, torch.float64)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self._added(p - r, head, score.dtype)

    def _added(self, distance: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
        return self.heads / 8 / (head + 1).to(dtype) * self.waves(distance, dtype)
