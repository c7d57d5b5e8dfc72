"""RoPE: queries and keys rotated by their positions (Su et al., 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.rotary import Rotary, powers, reached
from milepost.seams.verbs import Side, Stretch

if TYPE_CHECKING:
    from milepost.methods.axial_rope import AxialRope, TwoPartRope
    from milepost.methods.partial import Partial


reader: Callable[[object, int | None], Rope | Partial | AxialRope | TwoPartRope] | None = None
"""Reads configurations for `Rope.of`. `milepost.configs` makes methods, so it is above this file and sets it."""


@dataclass(frozen=True)
class Rope(Rotary):
    """Rotate pair n of the channels by position · θ^(−2n/d).

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−2n/d)
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    pairs="halves" pairs channel n with n + d/2 (Llama, NeoX, Qwen), "neighbours" 2n with 2n + 1 (RoFormer, GPT-J); a
    checkpoint works with one of them only. A stretch changes the frequencies to reach past the trained length.
    """

    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    pairs: Pairs = "halves"
    stretch: Stretch | None = None
    relative = True

    @staticmethod
    def of(config: object, *, layer: int | None = None) -> Rope | Partial | AxialRope | TwoPartRope:
        """Read the rotation of a model from its configuration.

        config: a model or a config object of transformers, a folder with a config.json, that file, or its dict, old or
        new. Name a layer where layers rotate differently. In models with latent keys (DeepSeek) the channels that
        rotate come first: give attend torch.cat((q_rope, q_nope), -1).
        """
        if reader is None:
            raise ImportError("Rope.of needs milepost.configs, which milepost.Rope imports: import Rope from milepost")
        return reader(config, layer)

    def __post_init__(self) -> None:
        demand.whole(self, "head_dim", self.head_dim, least=2)
        demand.even(
            self, "head_dim", self.head_dim, f"channels are turned in pairs; for a partial rotation use {self._halved}"
        )
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "pairs", self.pairs, PAIRS)
        demand.stretch(self, "stretch", self.stretch, Stretch, "Yarn(factor=8, trained=4096)")

    @property
    def _halved(self) -> str:
        return f"Partial(Rope({(self.head_dim + 1) // 4 * 2}), of={self.head_dim})"

    @property
    def by_length(self) -> bool:
        """True if the angles depend on the number of tokens."""
        return getattr(self.stretch, "by_length", False)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        f = powers(self.theta, self.head_dim, position.device)
        if self.stretch is not None:
            f = self.stretch.frequencies(f, reached(position, length))
        return position.double()[..., None] * f

    def steps(self, device: torch.device) -> tuple[Tensor, float] | None:
        # A subclass that overrides one of these defines its rotation there, not here.
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
        """Return the factor on cos and sin: 1, or that of the stretch."""
        return 1.0 if self.stretch is None else self.stretch.magnitude(length)
