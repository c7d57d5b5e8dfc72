"""Soft capping: scores squashed into ±cap (Gemma Team, 2024, arXiv:2408.00118)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class SoftCap:
    """Limit scores to ±cap, smoothly.

        score  ←  cap · tanh(score / cap)

    It acts where it is listed among the parts that bend: after a bias listed before it, before one listed after.
    """

    cap: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "cap", self.cap, above=0)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return self.cap * torch.tanh(score / self.cap)
