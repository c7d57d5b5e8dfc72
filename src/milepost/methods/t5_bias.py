"""T5's bias: a learned number for each head and range of distances (Raffel et al., 2020, arXiv:1910.10683)."""

import math

import torch
from torch import Tensor, nn

from milepost.memory.table import kept
from milepost.seams import demand
from milepost.seams.arguments import Learner


class T5Bias(Learner):
    """Add a learned number to each score, looked up by the bucket of the distance.

        score  ←  score + table[b, h]
        bidirectional=False:  b  =  bucket(max(0, p − r)),   e = buckets/2
        bidirectional=True:   b  =  bucket(|p − r|) + buckets/2 · [p < r],   e = buckets/4
        bucket(n)  =  n for n < e,   min(2·e − 1, e + ⌊e · ln(n/e)/ln(reach/e)⌋) beyond

    Half of the buckets have one distance each, the others grow with its logarithm up to `reach`, past which all share
    the last. bidirectional=True spends half of the buckets on keys ahead of the query; otherwise those count as
    distance 0. T5 itself does not divide scores by √d: Scheme(T5Bias(8), Scale(1.0), causal). One object given to every
    layer is T5's single shared table.
    """

    additive = True
    over_layers = True

    def __init__(self, heads: int, *, buckets: int = 32, reach: int = 128, bidirectional: bool = False) -> None:
        super().__init__()
        self.heads, self.buckets, self.reach, self.bidirectional = heads, buckets, reach, bidirectional
        demand.whole(self, "heads", heads)
        demand.flag(self, "bidirectional", bidirectional)
        demand.whole(self, "buckets", buckets, least=4 if bidirectional else 2)
        demand.even(self, "buckets", buckets, "half of them hold one distance each")
        if bidirectional and buckets % 4:
            raise ValueError(
                f"T5Bias(buckets={buckets}, bidirectional=True): buckets must be a multiple of 4, half for each side"
            )
        demand.whole(self, "reach", reach)
        if reach <= self._exact:
            raise ValueError(
                f"T5Bias(reach={reach}): the first {self._exact} distances have a bucket each, so reach must be larger"
            )
        self.table = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.table, std=0.02)

    @property
    def _side(self) -> int:
        return self.buckets // 2 if self.bidirectional else self.buckets

    @property
    def _exact(self) -> int:
        return self._side // 2

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance p − r, as int64."""
        return _bucket(distance, self._side, self.reach, self.bidirectional)

    @property
    def constant_past(self) -> tuple[float, float]:
        """From these distances on, behind and ahead, all share one bucket."""
        return self.reach, self.reach if self.bidirectional else 0

    def by_bucket(self, first: int, end: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the table, and the bucket of each distance first … end − 1, [n]."""
        if type(self).bucket is not T5Bias.bucket:
            # A subclass has buckets of its own.
            return self.table, self.bucket(torch.arange(first, end, device=device))
        # The table changes with every step of training, the buckets do not.
        return self.table, _buckets(self._side, self.reach, self.bidirectional, first, end, device)

    def by_distance(self, distance: Tensor) -> Tensor:
        """Return what is added at each distance [n]: [h n], float32 or better."""
        table = self.table
        return table.T.index_select(1, self.bucket(distance)).to(torch.promote_types(table.dtype, torch.float32))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self.table[self.bucket(p - r), head].to(score.dtype)


def _bucket(distance: Tensor, side: int, reach: int, bidirectional: bool) -> Tensor:
    """side: the buckets of one side. The logarithm is float32, so that buckets match T5's own."""
    exact = side // 2
    far = distance.abs() if bidirectional else distance.clamp(min=0)
    grown = (far.float().clamp(min=1) / exact).log() / math.log(reach / exact)
    large = (exact + (grown * (side - exact)).long()).clamp(max=side - 1)
    found = torch.where(far < exact, far.long(), large)
    return found + (distance < 0) * side if bidirectional else found


@kept(16)
def _buckets(side: int, reach: int, bidirectional: bool, first: int, end: int, device: torch.device) -> Tensor:
    return _bucket(torch.arange(first, end, device=device), side, reach, bidirectional)
