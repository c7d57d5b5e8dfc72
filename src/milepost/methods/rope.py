"""RoPE: queries and keys turned by their positions (Su et al., 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.rotary import Rotary, powers, reached
from milepost.seams.verbs import Side, Stretch


@dataclass(frozen=True)
class Rope(Rotary):
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
    of: ClassVar[Callable[..., Any]]
    """What turns queries and keys in a model, read from its configuration; `milepost.configs` puts it here."""

    def __post_init__(self) -> None:
        demand.whole(self, "dim", self.dim, least=2)
        demand.even(self, "dim", self.dim, f"channels are turned in pairs; for a partial rotation use {self._halved}")
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "pairs", self.pairs, PAIRS)
        demand.stretch(self, "stretch", self.stretch, Stretch, "Yarn(factor=8, trained=4096)")

    @property
    def _halved(self) -> str:
        return f"Partial(Rope({(self.dim + 1) // 4 * 2}), of={self.dim})"

    @property
    def by_length(self) -> bool:
        """Whether the angles depend on how many tokens there are."""
        return getattr(self.stretch, "by_length", False)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        f = powers(self.theta, self.dim, position.device)
        if self.stretch is not None:
            f = self.stretch.frequencies(f, reached(position, length))
        return position.double()[..., None] * f

    def steps(self, device: torch.device) -> tuple[Tensor, float] | None:
        # Whoever changes one of these says by them, not by this, what is turned.
        changed = any(
            getattr(type(self), name) is not getattr(Rope, name) for name in ("angles", "sizes", "cos_sin", "magnitude")
        )
        if changed or self.by_length:
            return None
        size = self.magnitude(torch.ones(1, dtype=torch.float64, device=device))
        return None if isinstance(size, Tensor) else (self.angles(torch.ones((), device=device)), float(size))

    def sizes(
        self, position: Tensor, length: Tensor | int | None = None, side: Side = "query"
    ) -> Tensor | float | None:
        if self.stretch is None:
            return None
        size = self.magnitude(reached(position, length))
        return size[..., None] if isinstance(size, Tensor) else size

    def magnitude(self, length: Tensor) -> Tensor | float:
        """What rides on cos and sin: 1, or the stretch's factor."""
        return 1.0 if self.stretch is None else self.stretch.magnitude(length)
