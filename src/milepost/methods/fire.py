"""FIRE: a small network of the distance as a share of the query's position (Li et al., 2023, arXiv:2310.04418)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.seams import demand
from milepost.seams.arguments import Learner


class Fire(Learner):
    """Add a learned function of how far back a key lies, measured against the query's own position.

        score  ←  score + mlp( ψ(p − r) / (ψ(max(p, T)) + ε) )_h,   ψ(u) = ln(|c·u| + 1),   T = |m · trained|
        mlp  =  1 → width → heads with a ReLU,   c and m learned,   ε = 10⁻⁶

    Because of the division it is not a function of distance alone. Keys ahead of the query must be hidden.
    """

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
        self.inner = nn.Linear(1, width)
        self.outer = nn.Linear(width, heads)

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
