"""Learned RoPE: the frequencies of the rotation are trained too (Su, 2021, kexue.fm/archives/8265)."""

import torch
from torch import Tensor, nn

from milepost.numerics.precision import exact_device, float64
from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.rotary import Rotary, powers


class LearnedRope(Rotary, Learner):
    """Rotate as RoPE does, by frequencies that start at RoPE's and are trained.

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−2n/d) + offset_n
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    Only the offsets are stored, and start at zero: a half-precision copy of the model keeps the exact frequencies it
    began with. Su reports that they hardly move in training.
    """

    def __init__(self, head_dim: int, *, theta: float = 10000.0, pairs: Pairs = "halves") -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self.pairs: Pairs = pairs
        demand.even(self, "head_dim", head_dim, "channels are turned in pairs")
        demand.finite(self, "theta", theta, above=1)
        demand.one_of(self, "pairs", pairs, PAIRS)
        self.offset = nn.Parameter(torch.zeros(head_dim // 2))

    def frequencies(self) -> Tensor:
        """Return the frequency of each pair, float64 [d/2]."""
        return powers(self.theta, self.head_dim, exact_device(self.offset.device)) + float64(self.offset)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        return position.double()[..., None] * self.frequencies()
