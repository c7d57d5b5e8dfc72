"""Su's fused encoding: queries, keys and values rotated alike (Su, 2021, kexue.fm/archives/8130)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.rotary import Rotary, powers


@dataclass(frozen=True)
class FusedRope(Rotary):
    """Rotate queries and keys by their positions, so that scores see distances, and values too.

        values=True:   turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n   for queries, keys and values
        values=False:  turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n
        frequencies=None:  θ_n  =  θ^(−2n/d)
        frequencies=…:     θ_n  =  frequencies[n]
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    Rotated values bring absolute positions into the output, so it is not relative; values=False leaves them alone.
    `frequencies` sets any angle a step for each pair. Values of another width than head_dim have θ^(−2n/width).
    """

    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    frequencies: tuple[float, ...] | None = None
    values: bool = True
    pairs: Pairs = "neighbours"

    def __post_init__(self) -> None:
        demand.even(self, "head_dim", self.head_dim, "channels are turned in pairs")
        demand.finite(self, "theta", self.theta, above=1)
        demand.flag(self, "values", self.values)
        demand.one_of(self, "pairs", self.pairs, PAIRS)
        if self.frequencies is None:
            return
        demand.several(self, "frequencies", self.frequencies)
        object.__setattr__(self, "frequencies", tuple(self.frequencies))
        for each in self.frequencies:
            demand.finite(self, "frequencies", each)
        if len(self.frequencies) != self.head_dim // 2:
            raise ValueError(
                f"FusedRope({self.head_dim}): {len(self.frequencies)} frequencies for {self.head_dim // 2} pairs of "
                f"channels; give one for every pair"
            )

    @property
    def relative(self) -> bool:
        """Rotated values carry their absolute positions."""
        return not self.values

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        if self.frequencies is None:
            f = powers(self.theta, self.head_dim, position.device)
        else:
            f = torch.tensor(self.frequencies, dtype=torch.float64, device=position.device)
        return position.double()[..., None] * f

    def for_values(self, width: int) -> FusedRope | None:
        if not self.values or width == self.head_dim:
            return self if self.values else None
        if width % 2:
            raise ValueError(
                f"FusedRope({self.head_dim}): values of {width} channels cannot be turned in pairs; values=False "
                f"leaves them alone"
            )
        return replace(self, head_dim=width, frequencies=None)
