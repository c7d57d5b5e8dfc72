"""SoftMax₁: a query may attend to nothing (Miller, 2023; the zero sink of Xiao et al., arXiv:2309.17453)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class SoftmaxOne:
    """Add one to the softmax's denominator.

        weight_ij  =  e^score_ij / (1 + Σ_j e^score_ij)

    It is a key of score 0 and value 0 that every query sees. `SinkLogit` learns the score.
    """

    heads: int
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)

    def rest(self) -> Tensor:
        return torch.zeros(self.heads)
