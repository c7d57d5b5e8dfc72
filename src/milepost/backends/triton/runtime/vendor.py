"""Torch's own attention kernel, cuDNN's, which gives the log-sum-exp too and takes a joined one backwards.

Its backward pass does not give the same bits every time.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDEST = 128
"""The widest heads that it takes."""
Dice = tuple[Tensor, ...]
"""The state of the dice that its backward pass wants back."""


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if it does attention of these, where the same bits are not asked for."""
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[1] == k.shape[1]
        and max(q.shape[3], v.shape[3]) <= WIDEST
        and q.shape[3] % 8 == v.shape[3] % 8 == 0
        and torch.backends.cuda.cudnn_sdp_enabled()
        and not torch.are_deterministic_algorithms_enabled()
    )


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor, Dice]:
    """out [b h t dv], its log-sum-exp [b h t], and the dice."""
    out, lse, _, _, _, _, *dice, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return out, lse.squeeze(-1), tuple(dice)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dice: Dice, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return these keys' dq, dk and dv; grad has the strides of out, and lse [b h t] may be that of more keys."""
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, out, lse.unsqueeze(-1).contiguous(), *dice, None, None, None, q.shape[2], k.shape[2], 0.0,
        causal, scale=scale,
    )  # fmt: skip
