"""Learned positions: a table with one row for each (Gehring et al., 2017, arXiv:1705.03122; BERT, GPT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner


class Learned(Learner):
    """Add a learned vector to each token embedding.

        x_i  ←  x_i + table[i],   i < length

    There is nothing past the end of the table: a longer text raises. Rows start at N(0, 0.02²), as in BERT and GPT-2.
    `grown` makes a longer table of a trained one, to fine-tune; `Hierarchical` reaches n² positions without new rows.
    """

    relative = False

    def __init__(self, length: int, model_dim: int) -> None:
        super().__init__()
        self.length, self.model_dim = length, model_dim
        demand.whole(self, "length", length)
        demand.whole(self, "model_dim", model_dim)
        self.table = nn.Parameter(torch.empty(length, model_dim))
        nn.init.normal_(self.table, std=0.02)

    def grown(self, length: int, generator: torch.Generator | None = None) -> Learned:
        """Return a longer table: the trained rows, then random ones, to be trained on longer texts."""
        demand.whole(self, "length", length)
        if length < self.length:
            raise ValueError(f"Learned(length={self.length}).grown({length}): a table grows; it does not shrink")
        longer = Learned(length, self.model_dim).to(self.table)
        with torch.no_grad():
            nn.init.normal_(longer.table, std=0.02, generator=generator)
            longer.table[: self.length] = self.table
        return longer

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.model_dim, "model_dim")
        return x + self.table[at_index(self, x, index, self.length)].to(x.dtype)


def at_index(owner: object, x: Tensor, index: Tensor | None, length: int) -> Tensor:
    """Return the index of embeddings x [b t D]; raise unless it is integers from 0 to length − 1."""
    index = demand.order(owner, x, index)
    name = f"{type(owner).__name__}({'longest' if hasattr(owner, 'longest') else 'length'}={length})"
    if index.is_floating_point():
        raise TypeError(f"{name}: index must be integers, given {index.dtype}")
    if demand.checking_values(x.device) and index.numel():
        first, last = int(index.min()), int(index.max())
        if first < 0:
            raise ValueError(f"{name}: index {first} is before the table; indices count from 0")
        if last >= length:
            longer = "raise longest" if hasattr(owner, "longest") else "make a longer table"
            raise ValueError(
                f"{name}: index {last} is past the table, which ends at {length - 1}; "
                f"{longer}, or use a method that is defined everywhere, such as Sinusoidal"
            )
    return index
