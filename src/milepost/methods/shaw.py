"""Shaw's relative positions: learned vectors on keys and values, by distance (Shaw et al., 2018, arXiv:1803.02155)."""

import torch
from torch import nn

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
