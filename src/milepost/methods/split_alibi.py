"""Split ALiBi for encoders: half the heads look left, half right (Press et al., 2022, nonsymmetric form)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.methods.alibi import both_sides, slope_of
from milepost.seams import demand
from milepost.seams.facets import Slopes


@dataclass(frozen=True)
class SplitAlibi:
    """Lower scores by distance; the first half of the heads sees keys at or before the query, the rest at or after.

        score  ←  score − slope_h · |p − r|;   head h < heads/2 sees j ≤ i, the others j ≥ i
        slope_h  =  those of Alibi(heads/2), twice

    Both halves use the slopes of heads/2 heads. Unlike the symmetric penalty it distinguishes left from right.
    """

    heads: int
    relative = True
    additive = True
    by_head = True

    def __post_init__(self) -> None:
        demand.even(self, "heads", self.heads, "half of the heads look left and half look right")

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slope of each head, float64 [h]; the other side of a head is hidden."""
        half = self.heads // 2
        return both_sides(slope_of(torch.arange(self.heads) % half, half, torch.float64))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        half = self.heads // 2
        distance = (p - r).abs().to(score.dtype)
        return torch.addcmul(score, slope_of(head % half, half, score.dtype), distance, value=-1)

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(head < self.heads // 2, j <= i, j >= i)
