"""CoPE: positions counted by gates that the content opens and closes (Golovneva et al., 2024, arXiv:2405.18719)."""

from typing import Literal

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner, spell

Gates = Literal["scores", "keys", "values", "own"]


class Cope(Learner):
    """Count, for each pair, the keys between them that matter to the query, and look that count up.

        after_scale=False:  score_ij  ←  score_ij + q_i · table[c_ij] / √d
        after_scale=True:   score_ij  ←  score_ij + q_i · table[c_ij]
        c_ij  =  min(positions − 1, Σ_n σ(gate_in)),   n from j to i
        gates="scores":  gate_in  =  score_in
        gates="keys":    gate_in  =  q_i · k_n / √d
        gates="values":  gate_in  =  q_i · v_n / √d
        gates="own":     gate_in  =  q_i · (W x_n) / √d

    Between its rows the table is read linearly; counts past it share the last row; hidden keys count nothing. The gate
    is the score itself (gates="scores"), which is q · k/√d unless other parts change it; "keys" is q · k/√d whatever
    they do (next to a relative encoding: the authors' `cope+rel`), "values" takes the values in place of the keys
    (`val_gates`), and "own" keys made for the gates from the layer inputs x (`sep_key`), [model_dim] → [key_heads
    · head_dim]. after_scale=True adds q · table as it is, not divided by √d (`nodiv`). The table starts at zero.
    """

    needs_causal = True

    def __init__(
        self,
        head_dim: int,
        positions: int,
        *,
        after_scale: bool = False,
        gates: Gates = "scores",
        model_dim: int | None = None,
        key_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.positions, self.after_scale = head_dim, positions, after_scale
        self.gates, self.model_dim, self.key_heads = gates, model_dim, key_heads
        demand.whole(self, "head_dim", head_dim)
        demand.whole(self, "positions", positions, least=2)
        demand.flag(self, "after_scale", after_scale)
        demand.one_of(self, "gates", gates, ("scores", "keys", "values", "own"))
        self.table = nn.Parameter(torch.zeros(positions, head_dim))
        self.to_gates = None
        if gates == "own":
            demand.whole(self, "model_dim", model_dim)
            demand.whole(self, "key_heads", key_heads)
            self.to_gates = nn.Linear(model_dim or 1, (key_heads or 1) * head_dim, bias=False)

    def bend_rows(self, scores: Tensor, q: Tensor, x: Tensor | None, **tokens: Tensor) -> Tensor:
        """scores: [b h t s] with −∞ where hidden; q: [b h t d]; x: [b s D], or the keys or values
        [b g s d] that the gates read."""
        demand.width(self, q, self.head_dim)
        count = self.counts(scores, q, x)
        below = count.detach().floor()
        share = count - below
        entries = self.by_count(q)
        # A NaN count has no row, and must not become a row of the table.
        low, high = (each.nan_to_num(0.0).long() for each in (below, count.detach().ceil()))
        return scores + (1 - share) * entries.gather(-1, low) + share * entries.gather(-1, high)

    def by_count(self, q: Tensor) -> Tensor:
        """Return what is added to a score of count 0, 1, … positions − 1, [b h t positions]; q: [b h t d], raw."""
        # A table in half precision is scaled in the wider of both dtypes.
        table = self.table.to(torch.promote_types(self.table.dtype, q.dtype))
        return q @ (table if self.after_scale else table * self.head_dim**-0.5).to(q.dtype).mT

    def counts(self, scores: Tensor, q: Tensor, x: Tensor | None = None) -> Tensor:
        """Return what each pair is looked up by, [b h t s]: the open gates from the key on, at most positions − 1.

        The arguments are those of `bend_rows`.
        """
        return self.opened(scores, q, x).flip(-1).cumsum(-1).flip(-1).clamp(max=self.positions - 1)

    def opened(self, scores: Tensor, q: Tensor, x: Tensor | None = None) -> Tensor:
        """Return how far each gate is open, 0 to 1, [b h t s]; those of hidden keys are closed."""
        if self.gates == "scores":
            return scores.sigmoid()
        keys = self._keys(x).to(q.dtype)
        if keys.shape[-1] != self.head_dim or q.shape[1] % keys.shape[1]:
            raise ValueError(
                f"{spell(self)}: gates on {keys.shape[1]} heads of {keys.shape[-1]} channels cannot meet {q.shape[1]} "
                f"query heads of {self.head_dim}"
            )
        keys = keys.repeat_interleave(q.shape[1] // keys.shape[1], 1)
        return (q @ keys.mT * self.head_dim**-0.5).sigmoid().masked_fill(scores == -torch.inf, 0.0)

    def _keys(self, x: Tensor | None) -> Tensor:
        """Return the keys of the gates, [b g s d]."""
        if x is None:
            raise ValueError(
                f"{spell(self)}: gates of their own are made from the layer inputs; give attend x=…, [b s D]"
            )
        if self.to_gates is None:
            return x
        demand.width(self, x, self.to_gates.in_features, "model_dim")
        made = self.to_gates(x.to(self.to_gates.weight.dtype))
        return made.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
