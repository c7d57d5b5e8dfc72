"""Offset ALiBi for encoders: keys behind count half a step nearer (Ruoss et al., 2023, arXiv:2305.16843)."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.methods.alibi import slope_of
from milepost.seams import demand
from milepost.seams.facets import Slopes


@dataclass(frozen=True)
class OffsetAlibi:
    """Lower scores by distance on both sides, and keys behind the query by half a step less.

        score  ←  score − slope_h · ( |p − r| − offset · [p > r] )
        slope_h  =  those of Alibi(heads)

    The offset breaks the symmetry: with |p − r| alone an encoder cannot distinguish left from right.
    """

    heads: int
    _: KW_ONLY
    offset: float = 0.5
    relative = True
    additive = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)
        demand.finite(self, "offset", self.offset)

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slope of each head, float64 [h], and what the offset returns to the keys behind."""
        slope = slope_of(torch.arange(self.heads), self.heads, torch.float64)
        return Slopes(slope, slope, slope * self.offset)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        ahead = (r - p).to(score.dtype)
        distance = torch.where(ahead < 0, -ahead - self.offset, ahead)
        return torch.addcmul(score, slope_of(head, self.heads, score.dtype), distance, value=-1)
