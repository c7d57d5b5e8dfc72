"""Sandwich: a fixed bias, the inner product of two sinusoidal positions (Chi et al., 2023, arXiv:2212.10356)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Sandwich:
    """Raise near keys by a sum of cosines of the distance, more in the first heads than in the last.

        score  ←  score + heads/(8(h + 1)) · waves
        zeroed=False:  waves  =  Σ_n cos((p − r) · θ^(−2n/d))
        zeroed=True:   waves  =  Σ_n cos((p − r) · θ^(−2n/d)) − d/2
        start=0:  n  =  0 … d/2 − 1
        start=1:  n  =  1 … d/2

    dim sets how many waves are summed; it need not be the width of a head. start=1 and zeroed=True are the form of
    the NeMo port: d/2 is taken from the sum, so that distance 0 adds nothing. The softmax does not see that constant.
    """

    heads: int
    dim: int
    theta: float = 10000.0
    start: Literal[0, 1] = 0
    zeroed: bool = False
    relative: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    costly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)
        demand.even(self, "dim", self.dim, "each wavelength stands for a sine and a cosine")
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "start", self.start, (0, 1))
        demand.flag(self, "zeroed", self.zeroed)

    def waves(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of cosines at each distance, less d/2 where zeroed."""
        total = torch.zeros_like(distance, dtype=dtype)
        far = distance.double()
        # Wave by wave: a tile of scores has no room for one more axis. Whole turns are taken off in float64.
        for n in range(self.start, self.start + self.dim // 2):
            turns = far * (self.theta ** (-2 * n / self.dim) / (2 * math.pi))
            total = total + ((turns - turns.floor()) * (2 * math.pi)).to(dtype).cos()
        return total - self.dim // 2 if self.zeroed else total

    @property
    def constant_past(self) -> tuple[float, float]:
        """The waves never end."""
        return math.inf, math.inf

    def by_distance(self, distance: Tensor) -> Tensor:
        """What is added at each distance [n]: float64 [h n]."""
        head = torch.arange(self.heads, device=distance.device)[:, None]
        return self._added(distance, head, torch.float64)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self._added(p - r, head, score.dtype)

    def _added(self, distance: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
        return self.heads / 8 / (head + 1).to(dtype) * self.waves(distance, dtype)
