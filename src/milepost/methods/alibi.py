"""ALiBi: a penalty that grows with distance (Press, Smith, Lewis, 2022, arXiv:2108.12409)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milepost import demand


@dataclass(frozen=True)
class Alibi:
    """Lower each score by a per-head slope times the distance.

        score  ←  score − slope_h · |p − r|,   slope_h = 2^(−8(h + 1)/heads)

    Extends without change: the penalty is defined at every distance. It is added after the softmax scale, as the paper
    has it. For head counts that are not powers of two the slopes follow the authors' code.
    """

    heads: int
    relative: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope of each head."""
        return tuple(map(float, slope_of(torch.arange(self.heads), self.heads, torch.float64)))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        distance = (p - r).abs().to(score.dtype)
        return torch.addcmul(score, slope_of(head, self.heads, score.dtype), distance, value=-1)


def slope_of(head: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """The slope of each head, by formula, so that a kernel needs no table.

    The first c = 2^⌊log2 heads⌋ heads get 2^(−8(h + 1)/c); the others every second slope of a list twice as fine.
    """
    c = 1 << (heads.bit_length() - 1)
    coarse, fine = -8 * (head + 1) / c, -4 * (2 * (head - c) + 1) / c
    return torch.exp2(torch.where(head < c, coarse, fine).to(dtype))
