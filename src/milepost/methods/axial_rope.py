"""Rotations by several coordinates."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.rotary import Rotary, powers


@dataclass(frozen=True)
class AxialRope(Rotary):
    """Rotate pair n by the coordinate its section belongs to.

        turn(x, p)[n]  =  x[n] rotated by the angle p[axis_n] · θ_n
        order="blocks":       axis_n  =  0 for the first sections[0] pairs,   1 for the next sections[1], and so on
        order="interleaved":  axis_n  =  n mod A while n < A · sections[n mod A],   0 beyond,   A = len(sections)
        own=False:  θ_n  =  θ^(−2n/d)
        own=True:   θ_n  =  θ^(−m/sections[axis_n]),   m counting the pairs of the same axis before n
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    sections counts the pairs of each axis: (16, 24, 24) for time, height and width in Qwen2-VL. order="blocks" gives
    each axis consecutive pairs; "interleaved" deals them out in turn, what is left over going to the first axis
    (Qwen3-VL, (24, 20, 20)). own=True gives every axis the whole range of frequencies, θ^(−n/pairs of the axis), as
    vision towers do. Positions are [b t axes]; plain ones [t] or [b t] set all coordinates to the same value.
    """

    paper = "Axial RoPE: each pair of channels by one of several coordinates (Qwen2-VL, 2024, arXiv:2409.12191)."
    head_dim: int
    sections: tuple[int, ...]
    _: KW_ONLY
    theta: float = 10000.0
    order: Literal["blocks", "interleaved"] = "blocks"
    own: bool = False
    pairs: Pairs = "halves"
    relative = True

    def __post_init__(self) -> None:
        demand.several(self, "sections", self.sections)
        object.__setattr__(self, "sections", tuple(self.sections))
        demand.even(self, "head_dim", self.head_dim, "channels are turned in pairs")
        for section in self.sections:
            demand.whole(self, "sections", section)
        if sum(self.sections) != self.head_dim // 2:
            raise ValueError(
                f"AxialRope({self.head_dim}, {self.sections}): the sections hold {sum(self.sections)} pairs, "
                f"but {self.head_dim} channels make {self.head_dim // 2}"
            )
        demand.finite(self, "theta", self.theta, above=1)
        demand.flag(self, "own", self.own)
        demand.one_of(self, "order", self.order, ("blocks", "interleaved"))
        demand.one_of(self, "pairs", self.pairs, PAIRS)
        dealt = [self.axis_of().count(axis) for axis in range(self.axes)]
        if dealt != list(self.sections):
            raise ValueError(
                f'AxialRope(sections={self.sections}, order="interleaved"): dealing pairs out in turn gives '
                f"{tuple(dealt)}; the first section must be the largest"
            )

    @property
    def axes(self) -> int:
        """The number of coordinates of a position."""
        return len(self.sections)

    def axis_of(self) -> list[int]:
        """Return the axis of each pair."""
        if self.order == "blocks":
            return [axis for axis, pairs in enumerate(self.sections) for _ in range(pairs)]
        dealt = range(self.head_dim // 2)
        return [n % self.axes if n < self.axes * self.sections[n % self.axes] else 0 for n in dealt]

    def frequencies(self, device: torch.device) -> Tensor:
        """Return the frequency of each pair, float64 [d/2]."""
        if not self.own:
            return powers(self.theta, self.head_dim, device)
        axes = self.axis_of()
        rank = [axes[:place].count(axis) / self.sections[axis] for place, axis in enumerate(axes)]
        return self.theta ** -torch.tensor(rank, dtype=torch.float64, device=device)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        """position: [b t axes], [b t] or [t]."""
        if position.dim() < 3:
            return position.double()[..., None] * self.frequencies(position.device)
        if position.shape[-1] != self.axes:
            raise ValueError(
                f"AxialRope(sections={self.sections}): positions have {position.shape[-1]} axes, but there are "
                f"{self.axes} sections"
            )
        axis = torch.tensor(self.axis_of(), device=position.device)
        return position.double()[..., axis] * self.frequencies(position.device)


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

    paper = "ChatGLM's two-part rotation: half of the channels by each position (Du et al., 2022, arXiv:2103.10360)."
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
