"""Vectors on keys and values, by distance: learned, or waves."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from milepost.methods.sinusoidal import Sinusoidal
from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.verbs import Relation, Table


class Shaw(Learner):
    """Add to every key, and to every value, a vector that depends on how far away it is.

        relate(q, k, p − r)  =  q · keys[c],   c = clip(r − p, −reach, reach)
        values=True:  v_j  ←  v_j + values[c]

    Distances are clipped to ±reach. The tables [2·reach + 1, head_dim] are shared by all heads. values=False leaves the
    values alone; value_dim is their width where it is not head_dim.
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
    it is not head_dim.
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
