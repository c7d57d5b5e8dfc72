"""torch's fused attention function, with grouped queries laid out as its kernels like them."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0, added: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:  # fmt: skip
    """Return attention of q [b h t d] over k [b g s d], v [b g s dv]; added: a bias, or which scores count."""
    b, h, t, d = q.shape
    g = k.shape[1]
    # A plain bool, also where torch.compile does not know the numbers of heads.
    grouped = True if h != g else False  # noqa: SIM210
    if not grouped or t > 1 or q.device.type != "cpu":
        return scaled_dot_product_attention(
            q, k, v, attn_mask=added, dropout_p=dropout, is_causal=is_causal, scale=scale, enable_gqa=grouped
        )
    # The queries of a group as rows of one head: its keys are then read once, which is all that one token costs.
    if added is not None and added.shape[1] > 1:
        added = added.reshape(added.shape[0], g, h // g, added.shape[3])
    out = scaled_dot_product_attention(
        q.reshape(b, g, h // g, d), k, v, attn_mask=added, dropout_p=dropout, scale=scale
    )
    return out.reshape(b, h, 1, v.shape[3])
