"""ALiBi and its forms for encoders: a penalty that grows with distance."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner
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

    paper = "ALiBi: a penalty that grows with distance (Press, Smith, Lewis, 2022, arXiv:2108.12409)."
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
        slope = self._slope(head, at, torch.float64)
        return Slopes(slope, slope)

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


@dataclass(frozen=True)
class OffsetAlibi:
    """Lower scores by distance on both sides, and keys behind the query by half a step less.

        score  ←  score − slope_h · ( |p − r| − offset · [p > r] )
        slope_h  =  those of Alibi(heads)

    The offset breaks the symmetry: with |p − r| alone an encoder cannot distinguish left from right.
    """

    paper = "Offset ALiBi for encoders: keys behind count half a step nearer (Ruoss et al., 2023, arXiv:2305.16843)."
    heads: int
    _: KW_ONLY
    offset: float = 0.5
    relative = True
    additive = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)
        demand.finite(self, "offset", self.offset)

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slope of each head, float64 [h], and what the offset returns to the keys behind."""
        slope = slope_of(torch.arange(self.heads), self.heads, torch.float64)
        return Slopes(slope, slope, slope * self.offset)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        ahead = (r - p).to(score.dtype)
        distance = torch.where(ahead < 0, -ahead - self.offset, ahead)
        return torch.addcmul(score, slope_of(head, self.heads, score.dtype), distance, value=-1)


@dataclass(frozen=True)
class SplitAlibi:
    """Lower scores by distance; the first half of the heads sees keys at or before the query, the rest at or after.

        score  ←  score − slope_h · |p − r|;   head h < heads/2 sees j ≤ i, the others j ≥ i
        slope_h  =  those of Alibi(heads/2), twice

    Both halves use the slopes of heads/2 heads. Unlike the symmetric penalty it distinguishes left from right.
    """

    paper = "Split ALiBi for encoders: half the heads look left, half right (Press et al., 2022, nonsymmetric form)."
    heads: int
    relative = True
    additive = True
    by_head = True

    def __post_init__(self) -> None:
        demand.even(self, "heads", self.heads, "half of the heads look left and half look right")

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slope of each head, float64 [h]; the other side of a head is hidden."""
        half = self.heads // 2
        slope = slope_of(torch.arange(self.heads) % half, half, torch.float64)
        return Slopes(slope, slope)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        half = self.heads // 2
        distance = (p - r).abs().to(score.dtype)
        return torch.addcmul(score, slope_of(head % half, half, score.dtype), distance, value=-1)

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(head < self.heads // 2, j <= i, j >= i)


class LearnedAlibi(Learner):
    """Lower scores by distance, with slopes of their own to the left and to the right.

        score  ←  score − σ(left_h) · (p − r)  where p ≥ r,   score − σ(right_h) · (r − p)  where p < r

    Slopes start at σ(N(−2, 1)). The squashing happens in every call, so the parameters stay parameters.
    """

    paper = "Learned ALiBi for encoders: a trained slope for each head and side (Press et al., 2022, learned form)."
    additive = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        demand.whole(self, "heads", heads)
        self.left = nn.Parameter(torch.empty(heads))
        self.right = nn.Parameter(torch.empty(heads))
        nn.init.normal_(self.left, mean=-2.0)
        nn.init.normal_(self.right, mean=-2.0)

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """Return the slopes of each head to the left and to the right, [h], float32 or better."""
        dtype = torch.promote_types(self.left.dtype, torch.float32)
        return Slopes(self.left.to(dtype).sigmoid(), self.right.to(dtype).sigmoid())

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        distance = (p - r).to(score.dtype)
        left, right = self.left[head].to(score.dtype).sigmoid(), self.right[head].to(score.dtype).sigmoid()
        return score - torch.where(distance >= 0, left, -right) * distance
