"""Linear attention under rotary positions: time and memory linear in the length (Su, 2021, kexue.fm/archives/8265)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from milepost.backends.scores import dot, weigh
from milepost.backends.views import mask, values
from milepost.call import inputs
from milepost.call.call import Call
from milepost.call.options import NAMES, Options
from milepost.call.resolve import resolve
from milepost.scheme import Scheme
from milepost.seams.arguments import did_you_mean, spell
from milepost.seams.visible import causal

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Rows whose scores are formed at once; what lies before them is a running sum.
BLOCK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """Return the usual feature map: positive everywhere."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def linear_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    *,
    feature: Callable[[Tensor], Tensor] = elu_plus_one,
    **options: Unpack[Options],
) -> Tensor:
    """Attention without a softmax, its numerator turned and its denominator not.

        out_i = Σ_j ⟨turn(φ(q_i), p_i), turn(φ(k_j), r_j)⟩ v_j / Σ_j ⟨φ(q_i), φ(k_j)⟩

    A turned denominator could be zero or negative; this one is positive, because φ is. Shapes and options are those of
    `attend`. The scheme may turn and hide. Causal and unmasked schemes without given indices cost O(t); with indices or
    documents the scores are formed, a block of rows at a time.
    """
    for name in options:
        if name not in NAMES[: NAMES.index("length") + 1]:
            raise TypeError(f"linear_attend: no option is called {name!r}{did_you_mean(name, NAMES)}")
    inputs.check_tensors(q, k, v, scheme, 0.0)
    for verb in ("place", "relate", "scale", "sharpen", "bend", "bend_rows", "rest"):
        for part in scheme.answering(verb):
            raise ValueError(f"linear_attend: {spell(part)} answers {verb}, which acts on a score or its softmax")
    call = resolve(q, k, v, scheme, options)
    if call.keys_turned:
        raise ValueError("linear_attend: k was turned by its Cache, and the feature map reads raw keys; use Cache()")
    with torch.autocast("cpu" if q.device.type == "meta" else q.device.type, enabled=False):
        return _attended(call, feature)


def _attended(call: Call, feature: Callable[[Tensor], Tensor]) -> Tensor:
    q, k, scheme = call.q, call.k, call.scheme
    plain_q, plain_k = feature(q.to(call.score_dtype)), feature(k.to(call.score_dtype))
    turned_q = scheme.turn(plain_q, call.position, "query", call.length)
    turned_k = scheme.turn(plain_k, call.key_position, "key", call.key_length)
    v = values(call, call.score_dtype)
    seen = scheme.answering("see")
    at_the_end = call.layout is not None and call.layout.offset == call.keys.count - call.queries.count
    simple = at_the_end and all(part == causal for part in seen)
    if simple and not seen:
        top, bottom = _summed(turned_q, turned_k, v), _summed(plain_q, plain_k, torch.ones_like(v[..., :1]))
    else:
        top, bottom = _by_blocks(call, (turned_q, turned_k, plain_q, plain_k, v), simple)
    # A row that sees nothing has both at zero.
    return (top / bottom.masked_fill(bottom == 0, 1.0)).to(call.v.dtype)


def _summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q · (Σ_j k_j v_jᵀ) for grouped heads: [b h t d], [b g s d], [b g s dv] → [b h t dv]."""
    return weigh(q, k.mT @ v)


def _by_blocks(call: Call, made: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], simple: bool) -> tuple[Tensor, Tensor]:
    """Numerator [b h t dv] and denominator [b h t 1], a few rows at a time; what they all see is one running sum."""
    turned_q, turned_k, plain_q, plain_k, v = made
    t, s = turned_q.shape[2], turned_k.shape[2]
    ones = torch.ones_like(v[..., :1])
    before = [_none(turned_k, v), _none(plain_k, ones)]
    reached = 0
    tops: list[Tensor] = []
    bottoms: list[Tensor] = []
    for first in range(0, max(t, 1), BLOCK):
        rows = slice(first, min(first + BLOCK, t))
        keys = slice(0, s)
        if simple:
            # Every row of the block sees the keys before its first one.
            past, keys = slice(reached, s - t + first), slice(s - t + first, s - t + rows.stop)
            before[0] = before[0] + turned_k[:, :, past].mT @ v[:, :, past]
            before[1] = before[1] + plain_k[:, :, past].mT @ ones[:, :, past]
            reached = keys.start
        shown = mask(call, rows, keys)
        pairs = ((turned_q, turned_k, v, before[0]), (plain_q, plain_k, ones, before[1]))
        for into, (q, k, value, past_sum) in zip((tops, bottoms), pairs, strict=True):
            scores = dot(q[:, :, rows], k[:, :, keys])
            scores = scores if shown is None else scores.masked_fill(~shown, 0.0)
            into.append(weigh(scores, value[:, :, keys]) + weigh(q[:, :, rows], past_sum))
    return torch.cat(tops, 2), torch.cat(bottoms, 2)


def _none(k: Tensor, v: Tensor) -> Tensor:
    return k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
