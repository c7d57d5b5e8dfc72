"""Recurrent positions: each vector is made from the one before (Su, 2021, kexue.fm/archives/8130, section 1.3)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from milepost.methods.learned import at_index
from milepost.numerics.opaque import opaque
from milepost.seams import demand
from milepost.seams.arguments import Learner


class Recurrent(Learner):
    """Add to each token embedding a vector that a small network makes from the vector before it.

        x_i  ←  x_i + p_i,   p_0 learned
        cell="gru":   p_{i+1}  =  GRU(0, p_i)
        cell="tanh":  p_{i+1}  =  tanh(W p_i + b)

    Any length is defined, but position i takes i steps one after the other; `table(n)` makes n vectors at once, to be
    kept while nothing is trained. An index past `longest` raises, since it would take as many steps.
    """

    relative = False

    def __init__(self, model_dim: int, *, cell: Literal["gru", "tanh"] = "gru", longest: int = 65536) -> None:
        super().__init__()
        self.model_dim, self.cell, self.longest = model_dim, cell, longest
        demand.whole(self, "model_dim", model_dim)
        demand.one_of(self, "cell", cell, ("gru", "tanh"))
        demand.whole(self, "longest", longest)
        gates = 3 if cell == "gru" else 1
        self.start = nn.Parameter(torch.empty(model_dim).normal_(std=0.02))
        self.weight = nn.Parameter(torch.empty(gates * model_dim, model_dim))
        self.bias = nn.Parameter(torch.zeros(gates * model_dim))
        # The candidate of a GRU has a bias outside its reset gate too.
        self.free = nn.Parameter(torch.zeros(model_dim)) if cell == "gru" else None
        bound = model_dim**-0.5
        for weight in (self.weight, self.bias):
            nn.init.uniform_(weight, -bound, bound)

    def table(self, length: int) -> Tensor:
        """Return the vectors of positions 0 … length − 1, [length, model_dim]."""
        return self._rows(torch.arange(length, device=self.start.device))

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.model_dim, "model_dim")
        return x + self._rows(at_index(self, x, index, self.longest)).to(x.dtype)

    def _rows(self, index: Tensor) -> Tensor:
        weights = [self.start, self.weight, self.bias] + ([] if self.free is None else [self.free])
        return _steps(index, weights, self.cell)


def _walk(index: Tensor, weights: Sequence[Tensor], cell: str) -> Tensor:
    """p at each index [...], as [... model_dim]."""
    start, weight, bias = weights[:3]
    rows = [start]
    for _ in range(int(index.max()) if index.numel() else 0):
        before = rows[-1]
        pushed = weight @ before + bias
        if cell == "tanh":
            rows.append(pushed.tanh())
            continue
        reset, keep, new = pushed.chunk(3)
        candidate = (weights[3] + reset.sigmoid() * new).tanh()
        rows.append(torch.lerp(candidate, before, keep.sigmoid()))
    return torch.stack(rows)[index]


_steps = opaque("recurrent", _walk)
