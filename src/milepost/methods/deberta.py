"""DeBERTa: content and position disentangled, each attending to the other (He et al., 2020, arXiv:2006.03654)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.verbs import Relation, Table


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
    else they are the checkpoint's pos_key_proj and pos_query_proj.
    """

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
