"""Vectors looked up by distance, which meet queries, keys and values."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from milepost.methods.embeddings import Sinusoidal
from milepost.seams import demand
from milepost.seams.arguments import Learner, spell
from milepost.seams.verbs import Relation, Side, Table

MOST = 1 << 31
"""Numbers that a table with a row for each distance may hold."""


class Shaw(Learner):
    """Add to every key, and to every value, a vector that depends on how far away it is.

        relate(q, k, p − r)  =  q · keys[c],   c = clip(r − p, −reach, reach)
        values=True:  v_j  ←  v_j + values[c]

    Distances are clipped to ±reach. The tables [2·reach + 1, head_dim] are shared by all heads. values=False leaves the
    values alone; value_dim is their width where it is not head_dim. Distances are whole: `attend` refuses fractions.
    """

    paper = "Shaw's relative positions: learned vectors, by distance (Shaw et al., 2018, arXiv:1803.02155)."

    def __init__(self, head_dim: int, *, reach: int = 16, values: bool = True, value_dim: int | None = None) -> None:
        super().__init__()
        self.head_dim, self.reach, self.values, self.value_dim = head_dim, reach, values, value_dim
        demand.whole(self, "head_dim", head_dim)
        demand.whole(self, "reach", reach)
        demand.flag(self, "values", values)
        if value_dim is not None:
            demand.whole(self, "value_dim", value_dim)
        self.key_table = nn.Parameter(torch.empty(2 * reach + 1, head_dim))
        nn.init.xavier_uniform_(self.key_table)
        self.value_table = None
        if values:
            self.value_table = nn.Parameter(torch.empty(2 * reach + 1, head_dim if value_dim is None else value_dim))
            nn.init.xavier_uniform_(self.value_table)

    @property
    def adds_values(self) -> bool:
        """True if vectors are added to the output."""
        return self.values

    def relate(self, span: int) -> Relation:
        # The paper counts r − p, so row 0 is far behind and distances p − r run backwards through the table.
        row = torch.arange(2 * self.reach, -1, -1, dtype=torch.int32, device=self.key_table.device)
        return Relation(
            keys=Table(self.key_table[None], row, -self.reach),
            values=None if self.value_table is None else Table(self.value_table[None], row, -self.reach),
        )


@dataclass(frozen=True)
class Nezha:
    """Add to every key, and to every value, a sinusoidal vector of how far away it is.

        relate(q, k, p − r)  =  q · a[n],   n = clip(r − p, −reach, reach)
        values=True:  v_j  ←  v_j + a[n]
        count="row":       a[n][2m]  =  sin((n + reach) · θ_m),   a[n][2m+1]  =  cos((n + reach) · θ_m)
        count="distance":  a[n][2m]  =  sin(n · θ_m),   a[n][2m+1]  =  cos(n · θ_m)
        θ_m  =  10000^(−2m/d)
        value_dim=…:  θ_m  =  10000^(−2m/value_dim)  for values

    Distances are clipped to ±reach. The published code numbers the waves by the row of its table, n + reach, and so do
    its checkpoints; count="distance" takes n itself, as the paper writes it. value_dim is the width of the values where
    it is not head_dim. Distances are whole: `attend` refuses fractions.
    """

    paper = "NEZHA: Shaw's relative positions with fixed waves (Wei et al., 2019, arXiv:1909.00204)."
    head_dim: int
    _: KW_ONLY
    reach: int = 64
    values: bool = True
    value_dim: int | None = None
    count: Literal["row", "distance"] = "row"
    relative = True

    def __post_init__(self) -> None:
        demand.even(self, "head_dim", self.head_dim, "each wavelength gives a sine and a cosine")
        demand.whole(self, "reach", self.reach)
        demand.flag(self, "values", self.values)
        if self.value_dim is not None:
            demand.even(self, "value_dim", self.value_dim, "each wavelength gives a sine and a cosine")
        demand.one_of(self, "count", self.count, ("row", "distance"))

    @property
    def adds_values(self) -> bool:
        """True if vectors are added to the output."""
        return self.values

    def rows(self, head_dim: int) -> Tensor:
        """Return the waves of every distance, far behind first: float64 [2·reach + 1, head_dim]."""
        counted = torch.arange(2 * self.reach + 1) - (0 if self.count == "row" else self.reach)
        return Sinusoidal(head_dim).table(counted)

    def relate(self, span: int) -> Relation:
        values = self.head_dim if self.value_dim is None else self.value_dim
        # Rows count r − p, so distances p − r run backwards through them.
        row = torch.arange(2 * self.reach, -1, -1, dtype=torch.int32)
        return Relation(
            keys=Table(self.rows(self.head_dim)[None], row, -self.reach),
            values=Table(self.rows(values)[None], row, -self.reach) if self.values else None,
        )


class TransformerXL(Learner):
    """Score content against content and content against distance, each with a bias of its own.

        turn(q, p)  =  q + u
        relate(q, k, p − r)  =  (q + v) · W R_c,   R_c = [ sin(c · θ_m) | cos(c · θ_m) ]
        spacing="open":    θ_m  =  10000^(−m/(model_dim/2))
        spacing="closed":  θ_m  =  10000^(−m/(model_dim/2 − 1))
        reach=None:  c  =  p − r
        reach=…:     c  =  clip(p − r, −reach, reach)

    u and v are [heads, head_dim], W maps model_dim to all heads. Distances may have either sign, so the same method
    serves causal models with a memory (give the memory's keys first; queries are the last t) and bidirectional ones:
    XLNet is Scheme(TransformerXL(…)) without a mask. reach clamps distances (the authors' clamp_len). They are
    whole: `attend` refuses fractions.
    """

    paper = "Transformer-XL: projected sinusoids of the distance, two biases (Dai et al., 2019, arXiv:1901.02860)."

    # u belongs to the content, so a rotation in the same scheme rotates u with the query, and only distances matter.
    turns_first = True

    def __init__(
        self,
        model_dim: int,
        heads: int,
        head_dim: int,
        *,
        reach: int | None = None,
        spacing: Literal["open", "closed"] = "open",
    ) -> None:
        """spacing: where the frequencies of R end, 10000^(−n/(D/2)) as the authors have it ("open"), or with the last
        at 1/10000 itself, 10000^(−n/(D/2 − 1)), as tensor2tensor's waves ("closed"); D is model_dim."""
        super().__init__()
        self.model_dim, self.heads, self.head_dim, self.reach = model_dim, heads, head_dim, reach
        self.spacing = spacing
        demand.even(self, "model_dim", model_dim, "each wavelength gives a sine and a cosine")
        demand.one_of(self, "spacing", spacing, ("open", "closed"))
        if spacing == "closed" and model_dim == 2:
            raise ValueError('TransformerXL(model_dim=2, spacing="closed"): one wavelength has no first and last')
        demand.whole(self, "heads", heads)
        demand.whole(self, "head_dim", head_dim)
        if reach is not None:
            demand.whole(self, "reach", reach)
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))
        self.project = nn.Linear(model_dim, heads * head_dim, bias=False)
        for weight in (self.u, self.v):
            nn.init.normal_(weight, std=0.02)

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Give queries their content bias u; x: [b h t d]."""
        if side != "query":
            return x
        demand.width(self, x, self.head_dim)
        return x + self.u.to(x.dtype)[:, None]

    def relate(self, span: int) -> Relation:
        span = span if self.reach is None else self.reach
        self._demand_room(span, (2 * span + 1) * max(self.model_dim, self.heads * self.head_dim))
        row = torch.arange(2 * span + 1, dtype=torch.int32, device=self.u.device)
        return Relation(keys=Table(self._rows(row - span), row, -span), shift=self.v)

    def relate_at(self, distances: Tensor) -> Relation:
        """Return the table of some whole distances [n] alone, which rise."""
        distances = (distances if len(distances) else distances.new_zeros(1)).to(self.u.device)
        if self.reach is not None:
            distances = distances.clamp(-self.reach, self.reach)
        first, last = int(distances[0]), int(distances[-1])
        self._demand_room(last - first, last - first + 1)
        row = torch.zeros(last - first + 1, dtype=torch.int32, device=self.u.device)
        row[distances - first] = torch.arange(len(distances), dtype=torch.int32, device=self.u.device)
        return Relation(keys=Table(self._rows(distances), row, first), shift=self.v)

    def _demand_room(self, span: int, numbers: int) -> None:
        """Refuse a table that no machine has room for."""
        if numbers > MOST:
            raise ValueError(
                f"{spell(self)}: tokens stand up to {span:,} apart, and a table of each distance would hold "
                f"{numbers:,} numbers; give reach=…, past which distances share a row, or leave no such gaps"
            )

    def _rows(self, distances: Tensor) -> Tensor:
        """W R_c at these distances [n], [heads n head_dim]."""
        over = self.model_dim / 2 - (self.spacing == "closed")
        waves = Sinusoidal(self.model_dim, layout="concatenated", denominator=over).table(distances)
        return (
            self.project(waves.to(self.project.weight.dtype)).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1)
        )


class Deberta(Learner):
    """Add content-to-position and position-to-content terms to every score.

        index="code":   relate(q, k, p − r)  =  q · K[δ(p − r)] + k · Q[δ(p − r)],   scale = 1/√(3 · d)
        index="paper":  relate(q, k, p − r)  =  q · K[δ(p − r)] + k · Q[δ(r − p)],   scale = 1/√(3 · d)
        buckets=None:  δ(n)  =  clip(n + reach, 0, 2·reach − 1)
        buckets=…:     δ(n)  =  clip(bucket(n) + buckets, 0, 2·buckets − 1),   e = buckets/2
        buckets=…:     bucket(n)  =  n for |n| ≤ e,   ±( e + ⌈(e − 1) · ln(m/e)/ln((reach − 1)/e)⌉ ) beyond,
            m = min(|n|, reach − 1)

    K and Q are projections of one table [2·reach, model_dim]; to share the table over layers, assign it:
    `layer.table = first.table`. index="paper" looks position-to-content up at δ(r − p), as the paper writes it; the
    authors' code, and so every checkpoint, uses δ(p − r). buckets=B replaces the clipping by B log-spaced buckets a
    side, exact up to B/2 and ending at reach (v2 and v3: buckets=256, reach=512), and the table by [2·B, model_dim].
    The projections have a bias on the side of the queries in v1 (bias="queries") and on both in v2 and v3 ("both").
    Where these use the layer's own projections (share_att_key), assign them too: `layer.to_keys = attention.key_proj`;
    else they are the checkpoint's pos_key_proj and pos_query_proj. Distances are whole: `attend` refuses fractions.
    """

    paper = "DeBERTa: content and position, each attending to the other (He et al., 2020, arXiv:2006.03654)."

    def __init__(
        self,
        model_dim: int,
        heads: int,
        head_dim: int,
        *,
        reach: int = 512,
        buckets: int | None = None,
        index: Literal["code", "paper"] = "code",
        bias: Literal["none", "queries", "both"] = "none",
    ) -> None:
        super().__init__()
        self.model_dim, self.heads, self.head_dim, self.reach = model_dim, heads, head_dim, reach
        self.buckets, self.index, self.bias = buckets, index, bias
        for name in ("model_dim", "heads", "head_dim", "reach"):
            demand.whole(self, name, getattr(self, name))
        demand.one_of(self, "index", index, ("code", "paper"))
        demand.one_of(self, "bias", bias, ("none", "queries", "both"))
        if buckets is not None:
            demand.even(self, "buckets", buckets, "half of them hold one distance each")
            if reach <= buckets // 2 + 1:
                raise ValueError(
                    f"Deberta(reach={reach}, buckets={buckets}): the first {buckets // 2} distances have a bucket "
                    f"each, so reach must be larger"
                )
        self.table = nn.Parameter(torch.empty(2 * (buckets or reach), model_dim))
        nn.init.normal_(self.table, std=0.02)
        self.to_keys = nn.Linear(model_dim, heads * head_dim, bias=bias == "both")
        self.to_queries = nn.Linear(model_dim, heads * head_dim, bias=bias != "none")

    def scale(self, dim: int) -> float:
        """Three terms are summed, so the scale is 1/√(3d)."""
        return (3 * dim) ** -0.5

    def row(self, distance: Tensor) -> Tensor:
        """δ: the row of each distance p − r."""
        half = self.buckets or self.reach
        bucketed = distance.round() if self.buckets is None else self._log_bucket(distance.round(), self.buckets // 2)
        return (bucketed.long() + half).clamp(0, 2 * half - 1)

    def _log_bucket(self, distance: Tensor, exact: int) -> Tensor:
        far = distance.abs().clamp(exact, self.reach - 1).double()
        grown = (far / exact).log() / math.log((self.reach - 1) / exact) * (exact - 1)
        # A hair below the ceiling, so that a distance on a boundary does not fall over it by rounding.
        large = (grown - 1e-9).ceil() + exact
        return torch.where(distance.abs() <= exact, distance.double(), large * distance.sign())

    def relate(self, span: int) -> Relation:
        keys, queries = (
            project(self.table).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1)
            for project in (self.to_keys, self.to_queries)
        )
        distance = torch.arange(-self.reach, self.reach + 1, device=self.table.device)
        row = self.row(distance).int()
        back = row if self.index == "code" else self.row(-distance).int()
        return Relation(keys=Table(keys, row, -self.reach), queries=Table(queries, back, -self.reach))
