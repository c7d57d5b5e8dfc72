"""Write methods of your own in a file: one fixed, one that learns (waves are an example, from no paper).

    milepost compare rope 'examples/waves.py:WaveBias(heads)' 'examples/waves.py:LearnedWave(heads)'
    milepost compare rope --methods examples/waves.py --row 'rope: waves = Rope(dim) + WaveBias(heads)'

A method is a class with a verb, here `bend`. What has nothing to learn is a frozen dataclass; what learns is a Learner,
which keeps what it was given under the names of its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import milepost as mp


@dataclass(frozen=True)
class WaveBias:
    """Lower each score by a wave of the distance.

    score  ←  score − height · (1 − cos |p − r|)
    """

    heads: int
    height: float = 1.0

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self.height * (1 - torch.cos((p - r).abs().to(score.dtype)))


class LearnedWave(mp.Learner):
    """The same with a height that each head learns."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.height = nn.Parameter(torch.ones(heads))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self.height[head] * (1 - torch.cos((p - r).abs().to(score.dtype)))
