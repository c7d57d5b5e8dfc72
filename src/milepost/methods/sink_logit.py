"""A learned sink: a logit of attending to nothing (gpt-oss, OpenAI, 2025, arXiv:2508.10925; SoftMax₁ at zero)."""

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner


class SinkLogit(Learner):
    """Add a learned sink to the softmax, so that a head may attend to nothing.

        weight_ij  =  e^score_ij / (e^logit_h + Σ_j e^score_ij)

    The logits start at zero, which is SoftMax₁.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        demand.whole(self, "heads", heads)
        self.logit = nn.Parameter(torch.zeros(heads))

    def rest(self) -> Tensor:
        return self.logit
