"""QK norm: RMS normalization of queries and keys (Henry et al., 2020, arXiv:2010.04245)."""

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.verbs import Side


class QkNorm(Learner):
    """Divide each query and each key by its root mean square, and give every channel a learned weight.

        q  ←  q / √(mean(q²) + eps) · query_weight,   k  ←  k / √(mean(k²) + eps) · key_weight

    Listed after a rotation it acts on rotated vectors, as in HunYuan: Scheme(Rope(64), QkNorm(64), causal).
    A rotation changes no size, but the two channels of a pair get different weights, so scores no longer depend
    on distances alone: it is not relative. Models that normalize before the rotation (Qwen3, Gemma 3) give `attend`
    normalized queries and keys. The weights start at 1 and serve all heads.
    """

    relative = False

    def __init__(self, head_dim: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.head_dim, self.eps = head_dim, eps
        demand.whole(self, "head_dim", head_dim)
        demand.finite(self, "eps", eps, least=0)
        self.query_weight = nn.Parameter(torch.ones(head_dim))
        self.key_weight = nn.Parameter(torch.ones(head_dim))

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """x: [b h t d]; returns [b h t d] in the dtype of x. Positions are not read, and values are left alone."""
        if side == "value":
            return x
        demand.width(self, x, self.head_dim)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        size = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        weight = self.query_weight if side == "query" else self.key_weight
        return (wide * size * weight.to(wide.dtype)).to(x.dtype)
