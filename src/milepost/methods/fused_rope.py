"""Su's fused encoding: queries, keys and values turned alike (Su, 2021, kexue.fm/archives/8130)."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

    Turned values bring absolute positions into the output, so it is not relative; values=False leaves them alone.
    `frequencies` sets any angle a step for each pair. Values of another width than dim have θ^(−2n/width).
    """

    dim: int
    theta: float = 10000.0
    frequencies: tuple[float, ...] | None = None
    values: bool = True
    pairs: Pairs = "neighbours"

    def __post_init__(self) -> None:
        demand.even(self, "dim", self.dim, "channels are turned in pairs")
        demand.finite(self, "theta", self.theta, above=1)
        demand.flag(self, "values", self.values)
        demand.one_of(self, "pairs", self.pairs, PAIRS)
        if self.frequencies is None:
            return
        demand.several(self, "frequencies", self.frequencies)
        object.__setattr__(self, "frequencies", tuple(self.frequencies))
        for each in self.frequencies:
            demand.finite(self, "frequencies", each)
        if len(self.frequencies) != self.dim // 2:
            raise ValueError(
                f"FusedRope({self.dim}): {len(self.frequencies)} frequencies for {self.dim // 2} pairs of channels; "
                f"give one for every pair"
            )

    @property
    def relative(self) -> bool:
        """Turned values carry their absolute positions."""
        return not self.values

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        if self.frequencies is None:
            f = powers(self.theta, self.dim, position.device)
        else:
            f = torch.tensor(self.frequencies, dtype=torch.float64, device=position.device)
        return position.double()[..., None] * f

    def for_values(self, width: int) -> FusedRope | None:
        if not self.values or width == self.dim:
            return self if self.values else None
        if width % 2:
            raise ValueError(
                f"FusedRope({self.dim}): values of {width} channels cannot be turned in pairs; values=False "
                f"leaves them alone"
            )
        return replace(self, dim=width, frequencies=None)
