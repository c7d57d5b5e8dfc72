"""FIRE: a small network of the distance as a share of the query's position (Li et al., 2023, arXiv:2310.04418)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.seams import demand
from milepost.seams.arguments import Learner


class Fire(Learner):
    """Add a learned function of how far back a key lies, measured against the query's own position.

        score  ←  score + mlp( ψ(p − r) / (ψ(max(p, T)) + ε) )_h,   ψ(u) = ln(|c·u| + 1),   T = |m · trained|
        mlp  =  1 → width → heads with a ReLU,   c and m learned,   ε = 10⁻⁶

    c and m are learned, ε = 10⁻⁶, and the network is 1 → width → heads with a ReLU. Because of the division it is not
    a function of distance alone. Keys ahead of the query must be hidden.
    """

    relative = False
    additive = True
    needs_causal = True
    reads_weights_often = True

    def __init__(self, heads: int, trained: int = 512, width: int = 32) -> None:
        super().__init__()
        self.heads, self.trained, self.width = heads, trained, width
        demand.whole(self, "heads", heads)
        demand.whole(self, "trained", trained)
        demand.whole(self, "width", width)
        self.c = nn.Parameter(torch.tensor(0.1))
        self.m = nn.Parameter(torch.tensor(1.0))
        self.inner = nn.Linear(1, width)
        self.outer = nn.Linear(width, heads)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        dtype = score.dtype
        c, threshold = self.c.to(dtype), (self.m.to(dtype) * self.trained).abs()
        behind = torch.log1p((c * (p - r).to(dtype)).abs())
        whole = torch.log1p((c * torch.maximum(p.to(dtype), threshold)).abs())
        share = behind / (whole + 1e-6)
        if head.dim() == 3 and torch.is_grad_enabled():
            return score + self._at_once(share, head.flatten())
        # Unit by unit: a score_mod may not hold a vector for each score, and a tile would not fit one.
        added = self.outer.bias.to(dtype)[head]
        for unit in range(self.width):
            active = torch.relu(share * self.inner.weight[unit, 0].to(dtype) + self.inner.bias[unit].to(dtype))
            added = torch.addcmul(added, active, self.outer.weight[head, unit].to(dtype))
        return score + added

    def _at_once(self, share: Tensor, head: Tensor) -> Tensor:
        """The network of whole blocks [b 1 t s], [b h t s]: one product has less to differentiate, and to compile."""
        inner, bias = self.inner.weight[:, 0].to(share), self.inner.bias.to(share)
        active = torch.relu(share[..., None] * inner + bias)
        made = F.linear(active, self.outer.weight[head].to(share), self.outer.bias[head].to(share))
        return made.transpose(1, -1).squeeze(-1)
