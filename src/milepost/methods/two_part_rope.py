"""ChatGLM's two-part rotation: half of the channels by each of two positions (Du et al., 2022, arXiv:2103.10360)."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.rotary import Rotary, powers


@dataclass(frozen=True)
class TwoPartRope(Rotary):
    """Rotate the first half of the channels by a token's first position and the second half by its second.

        turn(x, p)  =  [ rope(x[:d/2], p[0]) | rope(x[d/2:], p[1]) ]
        rope(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−4n/d)
        pairs="halves":      x[n]  =  channels n and n + d/4
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    In ChatGLM-6B the first position counts through the prompt and then is constant, and the second counts through the
    answer. Positions are [b t 2]; plain ones [t] or [b t] set both to the same value.
    """

    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    pairs: Pairs = "halves"
    relative = True
    blocks = 2
    axes = 2

    def __post_init__(self) -> None:
        demand.even(self, "head_dim", self.head_dim, "it has two halves")
        if self.head_dim % 4:
            raise ValueError(
                f"TwoPartRope(head_dim={self.head_dim}): head_dim must be a multiple of 4, because each half has pairs"
            )
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "pairs", self.pairs, PAIRS)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        """Return the angles of the first half's pairs, then those of the second's."""
        if position.dim() == 3 and position.shape[-1] != 2:
            raise ValueError(
                f"TwoPartRope({self.head_dim}): positions have {position.shape[-1]} axes, but there are 2 parts"
            )
        f = powers(self.theta, self.head_dim // 2, position.device)
        both = (position, position) if position.dim() < 3 else position.unbind(-1)
        return torch.cat([each.double()[..., None] * f for each in both], -1)
