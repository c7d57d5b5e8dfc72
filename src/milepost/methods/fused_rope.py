"""Su's fused encoding: queries, keys and values turned alike (Su, 2021, kexue.fm/archives/8130)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milepost.methods.rope import angle_dtype, over_heads
from milepost.numerics.rotation import PAIRS, Pairs, rotate, waves
from milepost.seams import demand
from milepost.seams.verbs import Side


@dataclass(frozen=True)
class FusedRope:
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
    rotary: ClassVar[bool] = True

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

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """x: [b h t d], position: [t] or [b t]; returns [b h t d] in the dtype of x."""
        if side == "value" and not self.values:
            return x
        if side != "value":
            demand.width(self, x, self.dim, partly=True)
        angle = position.double()[..., None] * self._steps(x)
        cos, sin = (wave.to(angle_dtype(x)) for wave in waves(angle))
        return rotate(x, over_heads(cos), over_heads(sin), self.pairs)

    def _steps(self, x: Tensor) -> Tensor:
        """The angle a step of each pair of x, float64."""
        width = x.shape[-1]
        if width % 2:
            raise ValueError(
                f"FusedRope({self.dim}): values of {width} channels cannot be turned in pairs; values=False "
                f"leaves them alone"
            )
        if self.frequencies is not None and width == self.dim:
            return torch.tensor(self.frequencies, dtype=torch.float64, device=x.device)
        n = torch.arange(width // 2, dtype=torch.float64, device=x.device)
        return self.theta ** (-2 * n / width)
