"""Learned positions: a row of a table for each."""

from typing import cast

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

    paper = "Learned positions: a table with one row for each (Gehring et al., 2017, arXiv:1705.03122; BERT, GPT)."
    relative = False

    def __init__(self, length: int, model_dim: int) -> None:
        super().__init__()
        self.length, self.model_dim = length, model_dim
        demand.whole(self, "length", length)
        demand.whole(self, "model_dim", model_dim)
        self.table = nn.Parameter(torch.empty(length, model_dim))
        nn.init.normal_(self.table, std=0.02)

    def grown(self, length: int, generator: torch.Generator | None = None) -> "Learned":
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


class Hierarchical(Learner):
    """Write a position in base n, and mix the two digits' vectors.

        x_i  ←  x_i + α · u[⌊i/n⌋] + (1 − α) · u[i mod n],   u = (table − α · table[0]) / (1 − α),   n rows in table

    The first n positions keep their vectors exactly, so a trained model is not disturbed; fine-tuning teaches it the
    rest. table is what was trained: a tensor [n, model_dim], an nn.Embedding or a `Learned`, whose weight it shares; or
    the shape (n, model_dim) of one to come.
    """

    paper = "Hierarchical positions: a table of n rows serves n² positions (Su, 2020, kexue.fm/archives/7947)."
    relative = False

    def __init__(self, table: Tensor | nn.Embedding | Learned | tuple[int, int], *, alpha: float = 0.4) -> None:
        super().__init__()
        self.alpha = alpha
        self.table = _weight(self, table)
        demand.finite(self, "alpha", alpha, above=0)
        if alpha >= 1 or alpha == 0.5:
            raise ValueError(
                f"Hierarchical(alpha={alpha!r}): alpha must lie between 0 and 1 and not be 0.5, where the two digits "
                f"could be exchanged without a trace"
            )

    @property
    def length(self) -> int:
        """The number of positions: the square of the table's rows."""
        return self.table.shape[0] ** 2

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        n, model_dim = self.table.shape
        demand.width(self, x, model_dim, "model_dim")
        index = at_index(self, x, index, self.length)
        # The same sum with the first digit's part written as a difference, so that it is exactly zero for digit 0.
        first = self.table[index // n] - self.table[0]
        mixed = self.table[index % n] + self.alpha / (1 - self.alpha) * first
        return x + mixed.to(x.dtype)


def _weight(owner: object, table: object) -> nn.Parameter:
    """Return the trained table as a parameter, shared where it already is one."""
    if isinstance(table, Learned):
        return table.table
    if isinstance(table, nn.Embedding):
        table = table.weight
    if isinstance(table, (tuple, list)):
        shape = cast("tuple[int, ...]", tuple(table))  # pyright: ignore
        for size in shape:
            demand.whole(owner, "table", size)
        table = torch.empty(shape).normal_(std=0.02)
    if not isinstance(table, Tensor):
        raise TypeError(
            f"Hierarchical(table={type(table).__name__}): table must be a tensor [n, model_dim], an nn.Embedding, "
            f"a Learned, or a shape (n, model_dim)"
        )
    if table.dim() != 2 or not table.is_floating_point():
        raise ValueError(f"Hierarchical: table must be floats [n, model_dim], given {table.dtype} {list(table.shape)}")
    return table if isinstance(table, nn.Parameter) else nn.Parameter(table.clone())
