# pyright: basic
"""Attention as people write it in torch: every tensor in one dtype, the softmax alone in float32.

This is what a kernel's rounding is compared with. The specification would not do: it turns, multiplies and adds in
float32 whatever it is given, as no model does that runs in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost import Scheme
from milepost.backends import reference
from milepost.call.resolve import resolve


def plain_attention(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, **options: Any) -> Tensor:
    """Softmax attention under a scheme, with the options of `attend`; products and scores are rounded as they come."""
    given: Any = options
    call = resolve(q, k, v, scheme, given, False)
    regimes = scheme.place()
    relations = scheme.relate(reference._span(call, regimes)) if scheme.answering("relate") else ()
    visible = reference._visible(call)
    scores, near = q.new_full((), -torch.inf), None
    for regime in regimes:
        score = reference._scores(call, regime, relations, q, k).to(q.dtype)
        region = reference._region(call, regime)
        if regime.contrast is not None and scores.dim():
            if near is None:
                level = reference._log_sum(scores.masked_fill(~visible, -torch.inf).float(), empty=0.0)
                near = level.to(q.dtype)
            strength = regime.contrast(call.index, call.length).to(q.dtype)[:, None, :, None]
            score = score + strength * (score - near)
        if regime.shift is not None:
            score = score + regime.shift(call.index, call.length).to(q.dtype)[:, None, :, None]
        scores = torch.where(region, score, scores)
    seen = visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).float().masked_fill(~seen, 0.0)
    rest = scheme.rest()
    if rest is not None:
        scores = torch.cat((scores, rest.float()[:, None, None].expand(*scores.shape[:3], 1)), -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]].masked_fill(~seen, 0.0).to(v.dtype)
    value = scheme.turn(v, call.key_position, "value", call.key_length)
    out = weights @ reference._repeated(call, value)
    for relation in relations:
        if relation.values is not None:
            out = out + reference._related_values(call, regimes, relation.values, weights)
    return out.to(v.dtype)
