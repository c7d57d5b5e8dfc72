"""Learned RoPE: the frequencies of the rotation are trained too (Su, 2021, kexue.fm/archives/8265)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from milepost.methods.rope import angle_dtype, over_heads
from milepost.numerics.rotation import PAIRS, Pairs, rotate
from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.verbs import Side


class LearnedRope(Learner):
    """Rotate as RoPE does, by frequencies that start at RoPE's and are trained.

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−2n/d) + offset_n
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    Only the offsets are stored, and start at zero: a half-precision copy of the model keeps the exact frequencies it
    began with. Su reports that they hardly move in training.
    """

    rotary = True

    def __init__(self, dim: int, theta: float = 10000.0, pairs: Pairs = "halves") -> None:
        super().__init__()
        self.dim, self.theta = dim, theta
        self.pairs: Pairs = pairs
        demand.even(self, "dim", dim, "channels are turned in pairs")
        demand.finite(self, "theta", theta, above=1)
        demand.one_of(self, "pairs", pairs, PAIRS)
        self.offset = nn.Parameter(torch.zeros(dim // 2))

    def frequencies(self) -> Tensor:
        """The frequency of each pair, float64 [d/2]."""
        n = torch.arange(self.dim // 2, dtype=torch.float64, device=self.offset.device)
        return self.theta ** (-2 * n / self.dim) + self.offset.double()

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """x: [b h t d], position: [t] or [b t]; returns [b h t d] in the dtype of x."""
        if side == "value":
            return x
        demand.width(self, x, self.dim, partly=True)
        angle = position.double()[..., None] * self.frequencies()
        cos, sin = angle.cos().to(angle_dtype(x)), angle.sin().to(angle_dtype(x))
        return rotate(x, over_heads(cos), over_heads(sin), self.pairs)
