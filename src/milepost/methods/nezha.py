"""NEZHA: Shaw's relative positions with fixed waves, not learned vectors (Wei et al., 2019, arXiv:1909.00204)."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.methods.sinusoidal import Sinusoidal
from milepost.seams import demand
from milepost.seams.verbs import Relation, Table


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
