"""ALiBi: a penalty that grows with distance (Press, Smith, Lewis, 2022, arXiv:2108.12409)."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.facets import Slopes
from milepost.seams.verbs import SlopeStretch


@dataclass(frozen=True)
class Alibi:
    """Lower each score by a per-head slope times the distance.

        score  ←  score − slope_h · |p − r|
        slope_h  =  2^(−bias_max · e_h/c),   c = 2^⌊log2 heads⌋,   e_h = h + 1 for h < c,   h − c + 1/2 for the others

    Extends without change: the penalty is defined at every distance. It is added after the softmax scale, as the paper
    has it. For head counts that are not powers of two the slopes follow the authors' code. A stretch flattens the
    slopes, so that a trained model can look further: AlibiNtk(2). BLOOM's, MPT's and Baichuan's forms differ from this
    one by a constant a row, which the softmax does not see.
    """

    heads: int
    _: KW_ONLY
    stretch: SlopeStretch | None = None
    bias_max: float = 8.0
    """The largest exponent: the flattest head has 2^(−bias_max). MPT calls it alibi_bias_max."""
    relative = True
    additive = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)
        demand.stretch(self, "stretch", self.stretch, SlopeStretch, "AlibiNtk(factor=2)")
        demand.finite(self, "bias_max", self.bias_max, above=0)

    @property
    def by_length(self) -> bool:
        """True if the slopes depend on the number of tokens."""
        return getattr(self.stretch, "by_length", False)

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slope of each head, float64 [h]; under a stretch by length, [… h] at lengths [...]."""
        at = None if length is None else torch.as_tensor(length)[..., None]
        head = torch.arange(self.heads, device=None if at is None else at.device)
        return both_sides(self._slope(head, at, torch.float64))

    def bend(
        self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor, length: Tensor | None = None
    ) -> Tensor:
        distance = (p - r).abs().to(score.dtype)
        return torch.addcmul(score, self._slope(head, length, score.dtype), distance, value=-1)

    def _slope(self, head: Tensor, length: Tensor | None, dtype: torch.dtype) -> Tensor:
        slope = slope_of(head, self.heads, dtype, self.bias_max)
        if self.stretch is None:
            return slope
        share = rank_of(head, self.heads).to(dtype) / max(1, self.heads - 1)
        return self.stretch.slopes(slope, share if self.heads > 1 else share + 1, length)


def both_sides(slope: Tensor) -> Slopes:
    """Return one slope for both sides of the query."""
    return Slopes(slope, slope)


def slope_of(head: Tensor, heads: int, dtype: torch.dtype, bias_max: float = 8.0) -> Tensor:
    """Return the slope of each head, by formula, so that a kernel needs no table.

    The first c = 2^⌊log2 heads⌋ heads get 2^(−8(h + 1)/c); the others every second slope of a list twice as fine.
    bias_max replaces the 8.
    """
    c = 1 << (heads.bit_length() - 1)
    coarse, fine = -bias_max * (head + 1) / c, -bias_max / 2 * (2 * (head - c) + 1) / c
    return torch.exp2(torch.where(head < c, coarse, fine).to(dtype))


def rank_of(head: Tensor, heads: int) -> Tensor:
    """Return how many heads are steeper than each: the two lists of slopes interleave."""
    c = 1 << (heads.bit_length() - 1)
    return torch.where(head < c, head + (head + 1).clamp(max=heads - c), 2 * (head - c))
