"""Numbers added to scores by distance, but for ALiBi's slopes."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.memory.table import kept
from milepost.numerics.precision import float64, returned
from milepost.numerics.read_weights import Linear
from milepost.seams import demand
from milepost.seams.arguments import Learner

GRID = 1024
"""Parts of a step that a distance is rounded to before a bucket is chosen."""


class T5Bias(Learner):
    """Add a learned number to each score, looked up by the bucket of the distance.

        score  ←  score + table[b, h]
        bidirectional=False:  b  =  bucket(max(0, p − r)),   e = buckets/2
        bidirectional=True:   b  =  bucket(|p − r|) + buckets/2 · [p < r],   e = buckets/4
        bucket(n)  =  n for n < e,   min(2·e − 1, e + ⌊e · ln(n/e)/ln(reach/e)⌋) beyond

    Half of the buckets have one distance each, the others grow with its logarithm up to `reach`, past which all share
    the last. bidirectional=True spends half of the buckets on keys ahead of the query; otherwise those count as
    distance 0. T5 itself does not divide scores by √d: Scheme(T5Bias(8), Scale(1.0), causal). One object given to every
    layer is T5's single shared table. Where tokens stand at fractions, distances are rounded to 1/1024.
    """

    paper = "T5's bias: a learned number for each head and range of distances (Raffel et al., 2020, arXiv:1910.10683)."
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
    if distance.is_floating_point():
        # A whole distance between two rounded positions may lie a hair below, in the bucket before.
        distance = (distance * GRID).round() / GRID
    exact = side // 2
    far = distance.abs() if bidirectional else distance.clamp(min=0)
    grown = (far.float().clamp(min=1) / exact).log() / math.log(reach / exact)
    large = (exact + (grown * (side - exact)).long()).clamp(max=side - 1)
    found = torch.where(far < exact, far.long(), large)
    return found + (distance < 0) * side if bidirectional else found


@kept(16)
def _buckets(side: int, reach: int, bidirectional: bool, first: int, end: int, device: torch.device) -> Tensor:
    return _bucket(torch.arange(first, end, device=device), side, reach, bidirectional)


class Kerple(Learner):
    """Lower each score by a learned kernel of the distance.

        form="log":    score  ←  score − p_h · ln(1 + a_h · |p − r|)
        form="power":  score  ←  score − a_h · |p − r|^p_h

    p starts in U(0, 2) and a in U(0, 1). Both stay at or above 0.01, and p at or below 2 in the power form, past which
    it is no kernel. The bounds apply in every call and let gradients through, as the authors' projection does; but the
    stored weight is not moved, so one that was pushed past a bound comes back step by step.
    """

    paper = "KERPLE: learned penalties by the logarithm or a power of distance (Chi et al., 2022, arXiv:2205.09921)."
    additive = True

    def __init__(self, heads: int, *, form: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.heads, self.form = heads, form
        demand.whole(self, "heads", heads)
        demand.one_of(self, "form", form, ("log", "power"))
        self.p = nn.Parameter(torch.empty(heads).uniform_(0, 2))
        self.a = nn.Parameter(torch.empty(heads).uniform_(0, 1))

    @property
    def constant_past(self) -> tuple[float, float]:
        """The penalty grows for ever."""
        return math.inf, math.inf

    def by_distance(self, distance: Tensor) -> Tensor:
        """Return what is added at each distance [n]: [h n], float32 or better."""
        dtype = torch.promote_types(self.a.dtype, torch.float32)
        return -self._penalty(distance.abs().to(dtype), (slice(None), None))

    def two_numbers(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The factor and the number that `by_distance` follows from, [h], and its derivative by the second, [h n]."""
        dtype = torch.promote_types(self.a.dtype, torch.float32)
        a, p = _bounded(self.a, None).to(dtype), _bounded(self.p, 2.0 if self.form == "power" else None).to(dtype)
        with torch.no_grad():
            d = distance.abs().to(dtype)
            if self.form == "log":
                return p, a, -p[:, None] * d / (1 + a[:, None] * d)
            # The derivative of d^p is 0 at 0, as d^p is.
            return a, p, -a[:, None] * torch.xlogy(d ** p[:, None], d)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self._penalty((p - r).abs().to(score.dtype), head)

    def _penalty(self, distance: Tensor, head: Any) -> Tensor:
        """head: an index of the heads' weights."""
        a = _bounded(self.a, None)[head].to(distance.dtype)
        if self.form == "log":
            power = _bounded(self.p, None)[head].to(distance.dtype)
            return power * torch.log1p(a * distance)
        power = _bounded(self.p, 2.0)[head].to(distance.dtype)
        # 0^p has no finite gradient in p; distance 0 is handled separately.
        grown = torch.where(distance > 0, distance, 1.0) ** power
        return torch.where(distance > 0, a * grown, 0.0)


def _bounded(value: Tensor, most: float | None) -> Tensor:
    """Clamp, but let the gradient through as if nothing had been clamped."""
    return value + (value.clamp(0.01, most) - value).detach()


@dataclass(frozen=True)
class Sandwich:
    """Raise the scores of near keys by a sum of cosines of the distance, more in the first heads than in the last.

        score  ←  score + heads/(8(h + 1)) · waves
        zeroed=False:  waves  =  Σ_n cos((p − r) · θ^(−2n/d))
        zeroed=True:   waves  =  Σ_n cos((p − r) · θ^(−2n/d)) − d/2
        start=0:  n  =  0 … d/2 − 1
        start=1:  n  =  1 … d/2

    head_dim sets how many waves are summed; it need not be the width of a head. start=1 and zeroed=True are the form of
    the NeMo port: d/2 is taken from the sum, so that distance 0 adds nothing. The softmax does not see that constant.
    """

    paper = "Sandwich: a bias, the inner product of two sinusoidal positions (Chi et al., 2023, arXiv:2212.10356)."
    heads: int
    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    start: Literal[0, 1] = 0
    zeroed: bool = False
    relative = True
    additive = True
    costly = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)
        demand.even(self, "head_dim", self.head_dim, "each wavelength stands for a sine and a cosine")
        demand.finite(self, "theta", self.theta, above=1)
        demand.one_of(self, "start", self.start, (0, 1))
        demand.flag(self, "zeroed", self.zeroed)

    def waves(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sum of cosines at each distance, less d/2 where zeroed."""
        total = torch.zeros_like(distance, dtype=dtype)
        far = float64(distance)
        # Wave by wave: a tile of scores has no room for one more axis. Whole turns are taken off in float64.
        for n in range(self.start, self.start + self.head_dim // 2):
            turns = far * (self.theta ** (-2 * n / self.head_dim) / (2 * math.pi))
            total = total + returned((turns - turns.floor()) * (2 * math.pi), distance.device).to(dtype).cos()
        return total - self.head_dim // 2 if self.zeroed else total

    @property
    def constant_past(self) -> tuple[float, float]:
        """The waves never end."""
        return math.inf, math.inf

    def by_distance(self, distance: Tensor) -> Tensor:
        """Return what is added at each distance [n]: float64 [h n]."""
        head = torch.arange(self.heads, device=distance.device)[:, None]
        return self._added(distance, head, torch.float64)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self._added(p - r, head, score.dtype)

    def _added(self, distance: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
        return self.heads / 8 / (head + 1).to(dtype) * self.waves(distance, dtype)


class Fire(Learner):
    """Add a learned function of how far back a key lies, measured against the query's own position.

        score  ←  score + mlp( ψ(p − r) / (ψ(max(p, T)) + ε) )_h,   ψ(u) = ln(|c·u| + 1),   T = |m · trained|
        mlp  =  1 → width → heads with a ReLU,   c and m learned,   ε = 10⁻⁶

    Because of the division it is not a function of distance alone. Keys ahead of the query must be hidden.
    """

    paper = "FIRE: a network of the distance as a share of the query's position (Li et al., 2023, arXiv:2310.04418)."
    relative = False
    additive = True
    needs_causal = True
    reads_weights_often = True

    def __init__(self, heads: int, *, trained: int = 512, width: int = 32) -> None:
        super().__init__()
        self.heads, self.trained, self.width = heads, trained, width
        demand.whole(self, "heads", heads)
        demand.whole(self, "trained", trained)
        demand.whole(self, "width", width)
        self.c = nn.Parameter(torch.tensor(0.1))
        self.m = nn.Parameter(torch.tensor(1.0))
        self.inner = Linear(1, width)
        self.outer = Linear(width, heads)

    def share(self, distance: Tensor, p: Tensor) -> Tensor:
        """Return each distance as a share of the query's position, float32 or better."""
        return self._share(distance, p, torch.promote_types(self.c.dtype, torch.float32))

    def by_share(self, share: Tensor) -> Tensor:
        """Return what is added at each share [...]: [h ...]."""
        return self._network(share).movedim(-1, 0)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        dtype = score.dtype
        share = self._share(p - r, p, dtype)
        if head.dim() == 3 and share.dim() == 4 and share.shape[1] == 1 and torch.is_grad_enabled():
            # Whole blocks [b 1 t s], [b h t s]: one product has less to differentiate, and to compile.
            return score + self._network(share, head.flatten()).transpose(1, -1).squeeze(-1)
        # Unit by unit: a score_mod must not have a vector for each score, and a tile would not fit one.
        added = self.outer.bias.to(dtype)[head]
        for unit in range(self.width):
            active = torch.relu(share * self.inner.weight[unit, 0].to(dtype) + self.inner.bias[unit].to(dtype))
            added = torch.addcmul(added, active, self.outer.weight[head, torch.full_like(head, unit)].to(dtype))
        return score + added

    def _share(self, distance: Tensor, p: Tensor, dtype: torch.dtype) -> Tensor:
        c, threshold = self.c.to(dtype), (self.m.to(dtype) * self.trained).abs()
        far = torch.log1p((c * distance.to(dtype)).abs())
        whole = torch.log1p((c * torch.maximum(p.to(dtype), threshold)).abs())
        return far / (whole + 1e-6)

    def _network(self, share: Tensor, head: Tensor | slice = slice(None)) -> Tensor:
        """Return the output of the network at each share [...] for some heads: [... h]."""
        inner, bias = self.inner.weight[:, 0].to(share), self.inner.bias.to(share)
        active = torch.relu(share[..., None] * inner + bias)
        return F.linear(active, self.outer.weight[head].to(share), self.outer.bias[head].to(share))
