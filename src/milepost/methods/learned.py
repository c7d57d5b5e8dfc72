"""Learned positions: a table with one row for each (Gehring et al., 2017, arXiv:1705.03122; BERT, GPT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from milepost import demand
from milepost.arguments import Learner


class Learned(Learner):
    """Add a learned vector to each token embedding.

        x_i  ←  x_i + table[i]

    There is nothing past the end of the table: a longer text raises. Rows start at N(0, 0.02²), as in BERT and GPT-2.
    """

    relative = False

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.length, self.dim = length, dim
        demand.whole(self, "length", length)
        demand.whole(self, "dim", dim)
        self.table = nn.Parameter(torch.empty(length, dim))
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.dim)
        index = demand.order(self, x, index)
        if index.is_floating_point():
            raise TypeError(f"Learned(length={self.length}): index must be integers, given {index.dtype}")
        if demand.checking_values(x.device) and index.numel():
            first, last = int(index.min()), int(index.max())
            if first < 0:
                raise ValueError(
                    f"Learned(length={self.length}): index {first} is before the table; indices count from 0"
                )
            if last >= self.length:
                raise ValueError(
                    f"Learned(length={self.length}): index {last} is past the table, which ends at {self.length - 1}; "
                    f"make a longer table, or use a method that is defined everywhere, such as Sinusoidal"
                )
        return x + self.table[index].to(x.dtype)
