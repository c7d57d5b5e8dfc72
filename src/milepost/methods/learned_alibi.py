"""Learned ALiBi for encoders: a trained slope for each head and each side (Press et al., 2022, learned form)."""

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.facets import Slopes


class LearnedAlibi(Learner):
    """Lower scores by distance, with slopes of their own to the left and to the right.

        score  ←  score − σ(left_h) · (p − r)  where p ≥ r,   score − σ(right_h) · (r − p)  where p < r

    Slopes start at σ(N(−2, 1)). The squashing happens in every call, so the parameters stay parameters.
    """

    additive = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        demand.whole(self, "heads", heads)
        self.left = nn.Parameter(torch.empty(heads))
        self.right = nn.Parameter(torch.empty(heads))
        nn.init.normal_(self.left, mean=-2.0)
        nn.init.normal_(self.right, mean=-2.0)

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slopes of each head to the left and to the right, [h], float32 or better."""
        dtype = torch.promote_types(self.left.dtype, torch.float32)
        left, right = self.left.to(dtype).sigmoid(), self.right.to(dtype).sigmoid()
        return Slopes(left, right)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        distance = (p - r).to(score.dtype)
        left, right = self.left[head].to(score.dtype).sigmoid(), self.right[head].to(score.dtype).sigmoid()
        return score - torch.where(distance >= 0, left, -right) * distance
