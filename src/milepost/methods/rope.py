"""Rotations: pairs of channels turned by their positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from milepost.numerics.precision import exact_device, float64
from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.rotary import Rotary, Stretched, powers
from milepost.seams.verbs import Side, Stretch

if TYPE_CHECKING:
    from milepost.methods.partial import Partial


reader: Callable[[object, int | None], Rope | Partial | AxialRope | TwoPartRope] | None = None
"""Reads configurations for `Rope.of`. `milepost.configs` makes methods, so it is above this file and sets it."""


def _demand_pairs(owner: Any, why: str = "channels are turned in pairs") -> None:
    """Refuse a rotation whose number of channels, base or pairs is wrong."""
    demand.even(owner, "head_dim", owner.head_dim, why)
    demand.finite(owner, "theta", owner.theta, above=1)
    demand.one_of(owner, "pairs", owner.pairs, PAIRS)


@dataclass(frozen=True)
class Rope(Stretched):
    """Rotate pair n of the channels by position · θ^(−2n/d).

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−2n/d)
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    pairs="halves" pairs channel n with n + d/2 (Llama, NeoX, Qwen), "neighbours" 2n with 2n + 1 (RoFormer, GPT-J); a
    checkpoint works with one of them only. A stretch changes the frequencies to reach past the trained length.
    """

    paper = "RoPE: queries and keys rotated by their positions (Su et al., 2021, arXiv:2104.09864)."
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
        partial = f"Partial(Rope({(self.head_dim + 1) // 4 * 2}), of={self.head_dim})"
        _demand_pairs(self, f"channels are turned in pairs; for a partial rotation use {partial}")
        demand.stretch(self, "stretch", self.stretch, Stretch, "Yarn(factor=8, trained=4096)")

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        return position.double()[..., None] * self.paced(position, length)

    def steps(self, device: torch.device) -> tuple[Tensor, float] | None:
        # A subclass that overrides one of these defines its rotation there, not here.
        changed = any(
            getattr(type(self), name) is not getattr(Rope, name) for name in ("angles", "sizes", "cos_sin", "magnitude")
        )
        if changed or self.by_length:
            return None
        size = self.magnitude(torch.ones(1, dtype=torch.float64, device=device))
        return None if isinstance(size, Tensor) else (self.angles(torch.ones((), device=device)), float(size))


class LearnedRope(Rotary, Learner):
    """Rotate as RoPE does, by frequencies that start at RoPE's and are trained.

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n,   θ_n = θ^(−2n/d) + offset_n
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    Only the offsets are stored, and start at zero: a half-precision copy of the model keeps the exact frequencies it
    began with. Su reports that they hardly move in training.

    A gradient of θ_n is a sum of positions that nearly cancel, those of queries against those of keys. So positions are
    counted from the middle of the keys where the other parts read distances alone: no distance changes.
    """

    paper = "Learned RoPE: the frequencies of the rotation are trained too (Su, 2021, kexue.fm/archives/8265)."
    centred = True

    def __init__(self, head_dim: int, *, theta: float = 10000.0, pairs: Pairs = "halves") -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self.pairs: Pairs = pairs
        _demand_pairs(self)
        self.offset = nn.Parameter(torch.zeros(head_dim // 2))

    def widest(self, dtype: torch.dtype) -> float:
        """Return the span of positions across which no factor overflows: any."""
        return math.inf

    def frequencies(self) -> Tensor:
        """Return the frequency of each pair, float64 [d/2]."""
        return powers(self.theta, self.head_dim, exact_device(self.offset.device)) + float64(self.offset)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        return position.double()[..., None] * self.frequencies()


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

    paper = "Su's fused encoding: queries, keys and values rotated alike (Su, 2021, kexue.fm/archives/8130)."
    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    frequencies: tuple[float, ...] | None = None
    values: bool = True
    pairs: Pairs = "neighbours"

    def __post_init__(self) -> None:
        _demand_pairs(self)
        demand.flag(self, "values", self.values)
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


@dataclass(frozen=True)
class Xpos(Rotary):
    """Rotate as RoPE does, and let pair n of a score fade as ζ_n^(distance/fade).

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n, times ζ_n^(p/fade) for queries,   ζ_n^(−p/fade) for keys
        θ_n  =  θ^(−2n/d),   ζ_n = (2n/d + 0.4)/1.4
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    Each factor alone grows without bound with the position; only their product is bounded. `attend` therefore
    counts positions from the middle of the keys, which changes no distance, and refuses spans that would overflow.
    """

    paper = "xPos: RoPE whose pairs also fade with distance (Sun et al., 2022, arXiv:2212.10554)."
    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    fade: float = 512.0
    pairs: Pairs = "neighbours"
    relative = True
    centred = True

    def __post_init__(self) -> None:
        _demand_pairs(self)
        demand.finite(self, "fade", self.fade, above=0)

    def widest(self, dtype: torch.dtype) -> float:
        """Return the span of positions across which no factor overflows: about 36,000 in float32."""
        return self.fade * math.log(torch.finfo(dtype).max) / math.log(1.4 / 0.4)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        return position.double()[..., None] * powers(self.theta, self.head_dim, position.device)

    def sizes(self, position: Tensor, length: Tensor | int | None = None, side: Side = "query") -> Tensor:
        """Queries grow as keys shrink."""
        n = torch.arange(self.head_dim // 2, dtype=torch.float64, device=position.device)
        at = position.double()[..., None]
        return ((2 * n / self.head_dim + 0.4) / 1.4) ** ((at if side == "query" else -at) / self.fade)


@dataclass(frozen=True)
class AxialRope(Stretched):
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
    vision towers do. Positions are [b t axes]; plain ones [t] or [b t] set all coordinates to the same value. A stretch
    changes the frequencies θ^(−2n/d) before pairs are dealt to axes, as in Qwen2.5-VL with YaRN; one that follows the
    length counts up to the largest coordinate.
    """

    paper = "Axial RoPE: each pair of channels by one of several coordinates (Qwen2-VL, 2024, arXiv:2409.12191)."
    head_dim: int
    sections: tuple[int, ...]
    _: KW_ONLY
    theta: float = 10000.0
    order: Literal["blocks", "interleaved"] = "blocks"
    own: bool = False
    pairs: Pairs = "halves"
    stretch: Stretch | None = None
    relative = True

    def __post_init__(self) -> None:
        demand.several(self, "sections", self.sections)
        object.__setattr__(self, "sections", tuple(self.sections))
        _demand_pairs(self)
        for section in self.sections:
            demand.whole(self, "sections", section)
        if sum(self.sections) != self.head_dim // 2:
            raise ValueError(
                f"AxialRope({self.head_dim}, {self.sections}): the sections hold {sum(self.sections)} pairs, "
                f"but {self.head_dim} channels make {self.head_dim // 2}"
            )
        demand.flag(self, "own", self.own)
        demand.stretch(self, "stretch", self.stretch, Stretch, "Yarn(factor=4, trained=32768)")
        if self.own and self.stretch is not None:
            raise ValueError(
                f"AxialRope(own=True, stretch={self.stretch!r}): a stretch is for the frequencies of one RoPE, and "
                f"with own=True each axis has its own; leave one of them out"
            )
        demand.one_of(self, "order", self.order, ("blocks", "interleaved"))
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

    def paced(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        if not self.own:
            return super().paced(position, length)
        axes = self.axis_of()
        rank = [axes[:place].count(axis) / self.sections[axis] for place, axis in enumerate(axes)]
        return self.theta ** -torch.tensor(rank, dtype=torch.float64, device=position.device)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        """position: [b t axes], [b t] or [t]."""
        f = self.paced(furthest(position), length)
        if position.dim() < 3:
            return position.double()[..., None] * f
        if position.shape[-1] != self.axes:
            raise ValueError(
                f"AxialRope(sections={self.sections}): positions have {position.shape[-1]} axes, but there are "
                f"{self.axes} sections"
            )
        axis = torch.tensor(self.axis_of(), device=position.device)
        return position.double()[..., axis] * f

    def sizes(
        self, position: Tensor, length: Tensor | int | None = None, side: Side = "query"
    ) -> Tensor | float | None:
        return super().sizes(furthest(position), length, side)


def furthest(position: Tensor) -> Tensor:
    """The largest coordinate of each token, [b t] or [t]."""
    return position.amax(-1) if position.dim() == 3 else position


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
        _demand_pairs(self, "it has two halves")
        if self.head_dim % 4:
            raise ValueError(
                f"TwoPartRope(head_dim={self.head_dim}): head_dim must be a multiple of 4, because each half has pairs"
            )

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        """Return the angles of the first half's pairs, then those of the second's."""
        if position.dim() == 3 and position.shape[-1] != 2:
            raise ValueError(
                f"TwoPartRope({self.head_dim}): positions have {position.shape[-1]} axes, but there are 2 parts"
            )
        f = powers(self.theta, self.head_dim // 2, position.device)
        both = (position, position) if position.dim() < 3 else position.unbind(-1)
        return torch.cat([each.double()[..., None] * f for each in both], -1)
