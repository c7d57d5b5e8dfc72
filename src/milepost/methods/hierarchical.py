"""Hierarchical positions: a table of n rows serves n² positions (Su, 2020, kexue.fm/archives/7947)."""

from typing import cast

import torch
from torch import Tensor, nn

from milepost.methods.learned import Learned, at_index
from milepost.seams import demand
from milepost.seams.arguments import Learner


class Hierarchical(Learner):
    """Write a position in base n, and mix the two digits' vectors.

        x_i  ←  x_i + α · u[⌊i/n⌋] + (1 − α) · u[i mod n],   u = (table − α · table[0]) / (1 − α),   n rows in table

    The first n positions keep their vectors exactly, so a trained model is not disturbed; fine-tuning teaches it the
    rest. table is what was trained: a tensor [n, model_dim], an nn.Embedding or a `Learned`, whose weight it shares; or
    the shape (n, model_dim) of one to come.
    """

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
