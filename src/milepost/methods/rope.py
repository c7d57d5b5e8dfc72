"""RoPE: queries and keys turned by their positions (Su et al., 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs, rotate, waves
from milepost.seams import demand
from milepost.seams.verbs import Side, Stretch


@dataclass(frozen=True)
class Rope:
    """Rotate pair n of the channels by position · θ^(−2n/d).

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−2n/d)
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    pairs="halves" pairs channel n with n + d/2 (Llama, NeoX, Qwen), "neighbours" 2n with 2n + 1 (RoFormer, GPT-J); a
    checkpoint works with one of them only. A stretch changes the frequencies to reach past the trained length.
    """

    dim: int
    theta: float = 10000.0
    pairs: Pairs = "halves"
    stretch: Stretch | None = None
    relative: ClassVar[bool] = True
    rotary: ClassVar[bool] = True
    of: ClassVar[Callable[..., Any]]
    """What turns queries and keys in a model, read from its configuration; `milepost.configs` puts it here."""

    def __post_init__(self) -> None:
        demand.whole(self, "dim", self.dim, least=2)
        demand.even(self, "dim", self.dim, f"channels are turned in pairs; for a partial rotation use {self._halved}")
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "pairs", self.pairs, PAIRS)
        demand.held(self, "stretch", self.stretch, Stretch, "Yarn(factor=8, trained=4096)")

    @property
    def _halved(self) -> str:
        return f"Partial(Rope({(self.dim + 1) // 4 * 2}), of={self.dim})"

    @property
    def by_length(self) -> bool:
        """Whether the angles depend on how many tokens there are."""
        return getattr(self.stretch, "by_length", False)

    def cos_sin(
        self, position: Tensor, length: Tensor | int | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines [… t d/2] of every angle, times the stretch's magnitude.

        Angles are formed in float64, whatever the dtype asked for: at position 10⁶ a float32 angle has lost its way.
        """
        n = torch.arange(self.dim // 2, dtype=torch.float64, device=position.device)
        f = self.theta ** (-2 * n / self.dim)
        size = torch.ones((), dtype=torch.float64, device=position.device)
        if self.stretch is not None:
            reach = reached(position, length)
            f = self.stretch.frequencies(f, reach)
            size = torch.as_tensor(self.stretch.magnitude(reach), dtype=torch.float64, device=position.device)
        angle = position.double()[..., None] * f
        size = size[..., None]
        cos, sin = waves(angle)
        return (cos * size).to(dtype), (sin * size).to(dtype)

    def magnitude(self, length: Tensor) -> Tensor | float:
        """What rides on cos and sin: 1, or the stretch's factor."""
        return 1.0 if self.stretch is None else self.stretch.magnitude(length)

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Rotate queries and keys; leave values alone.

        x: [b h t d], position: [t] or [b t]; returns [b h t d] in the dtype of x.
        """
        if side == "value":
            return x
        demand.width(self, x, self.dim, partly=True)
        cos, sin = self.cos_sin(position, length, angle_dtype(x))
        return rotate(x, over_heads(cos), over_heads(sin), self.pairs)


def reached(position: Tensor, length: Tensor | int | None) -> Tensor:
    """The length as float64 [b|1 t|1]; where none is told, one past the last position of each row."""
    if length is None:
        return position.double().amax(-1, keepdim=True) + 1
    if isinstance(length, Tensor):
        return length.double()
    return torch.full((1,), length, dtype=torch.float64, device=position.device)


def angle_dtype(x: Tensor) -> torch.dtype:
    """Cosines and sines are float32 or better, whatever x is."""
    return torch.promote_types(x.dtype, torch.float32)


def over_heads(table: Tensor) -> Tensor:
    """Let a table [t n] or [b t n] broadcast over the heads of [b h t n]."""
    return table[:, None] if table.dim() == 3 else table
