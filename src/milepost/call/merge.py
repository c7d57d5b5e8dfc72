"""Joining parts of one softmax: attention over some of the keys here, over others there."""

from __future__ import annotations

import torch
from torch import Tensor


def merge(*parts: Tensor, rest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Merge results over keys of their own into one: merge(out, lse, out, lse, …), as `attend` returns them.

        lse  =  ln Σ_n e^lse_n,   out  =  Σ_n e^(lse_n − lse) · out_n

        whole = merge(*attend(q, k1, v1, …, return_lse=True), *attend(q, k2, v2, …, return_lse=True))

    out: [b h t dv], lse: [b h t]; returns (out, lse). rest: the logit of attending to nothing, [h], where the scheme
    has one (`scheme.rest()`): every part has counted it, and the whole counts it once. A row that saw nothing anywhere
    gives zeros and −∞. Gradients flow to every part. Schemes that need whole rows (CoPE, Pivot, any `bend_rows`) cannot
    be merged; `attend` refuses to return their log-sum-exp over some of the keys.
    """
    outs, lses = parts[::2], parts[1::2]
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(f"merge: give tensors, merge(out, lse, out, lse, …), not {type(part).__name__}; unpack it")
    if not parts or len(outs) != len(lses):
        raise ValueError(
            f"merge: give out and lse of every part, as attend(…, return_lse=True) does; given {len(parts)} tensors"
        )
    if any(out.shape != outs[0].shape or out.shape[:-1] != lse.shape for out, lse in zip(outs, lses, strict=True)):
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise ValueError(f"merge: every out is [b h t dv] and every lse [b h t], all alike; given {shapes}")
    sums = torch.stack(lses)
    alive = (sums != -torch.inf).any(0)
    if rest is None:
        # Rows that saw nothing anywhere are zeros, so that their gradient is finite.
        total = sums.masked_fill(~alive, 0.0).logsumexp(0)
    else:
        total = _counted_once(sums, rest.to(sums)[:, None])
    total = total.masked_fill(~alive, -torch.inf)
    # Rows that saw nothing take no share of a total that is −∞ itself.
    weights = torch.where(sums != -torch.inf, sums - total.masked_fill(~alive, 0.0), -torch.inf).exp()
    merged = sum(weight[..., None].to(out.dtype) * out for weight, out in zip(weights, outs, strict=True))
    assert isinstance(merged, Tensor)
    return merged, total


def _counted_once(sums: Tensor, rest: Tensor) -> Tensor:
    """ln( Σ_n e^lse_n − (n − 1) · e^rest ), relative to the largest, so that nothing overflows."""
    most = torch.maximum(sums.amax(0), rest).detach()
    return most + torch.log((sums - most).exp().sum(0) - (len(sums) - 1) * (rest - most).exp())
