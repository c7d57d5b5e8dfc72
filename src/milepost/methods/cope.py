"""CoPE: positions counted by gates that the content opens and closes (Golovneva et al., 2024, arXiv:2405.18719)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from milepost import demand
from milepost.arguments import Learner


class Cope(Learner):
    """Count, for each pair, the keys between them that matter to the query, and look that count up.

        score_ij  ←  score_ij + q_i · table[c_ij] / √d,   c_ij = Σ_{j ≤ n ≤ i} σ(score_in)

    Between its rows the table is read linearly; counts past it share the last row. The gates open on the scores
    themselves, hidden keys counting nothing. after_scale=True adds q · table as it is, not divided by √d (the authors'
    `nodiv`). The table starts at zero.
    """

    needs_behind = True

    def __init__(self, dim: int, positions: int, after_scale: bool = False) -> None:
        super().__init__()
        self.dim, self.positions, self.after_scale = dim, positions, after_scale
        demand.whole(self, "dim", dim)
        demand.whole(self, "positions", positions, least=2)
        demand.flag(self, "after_scale", after_scale)
        self.table = nn.Parameter(torch.zeros(positions, dim))

    def bend_rows(self, scores: Tensor, q: Tensor, x: Tensor | None) -> Tensor:
        """scores: [b h t s] with −∞ where hidden; q: [b h t d]."""
        demand.width(self, q, self.dim)
        gates = scores.sigmoid()
        count = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.positions - 1)
        below = count.detach().floor()
        share = count - below
        logits = q @ self.table.to(q.dtype).mT
        low, high = below.long(), count.detach().ceil().long()
        found = (1 - share) * logits.gather(-1, low) + share * logits.gather(-1, high)
        return scores + (found if self.after_scale else found * self.dim**-0.5)
