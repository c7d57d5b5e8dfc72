"""Near and far keys on the CPU by torch's own fused function, each by itself, joined by their log-sum-exps.

All keys at least w behind are plain causal attention between the queries from w on and the keys up to t − w. The keys
nearer than that are a band, gone over block of rows by block of rows. No score is written to memory, where `chunked`
writes every one of them several times. There is no gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from milepost.backends.sinks import is_split, sinks_of, whole
from milepost.backends.views import seen_regimes, turned
from milepost.call.call import Call
from milepost.call.merge import merge
from milepost.memory.internals import transformed
from milepost.memory.surroundings import has_numbers
from milepost.seams.band import Band
from milepost.seams.verbs import Regime

LEAST = 512
"""Fewer tokens than these are as quick in one block of scores."""
ROWS = 256
"""Rows of the band at once."""
CAUSAL = Band(math.inf, 0, 0, None)
Part = tuple[Tensor, Tensor]
"""An answer [b h n d] and its log-sum-exp [b h n]."""


class Fields(NamedTuple):
    """Two regimes that meet at a distance; the first keys of the far one may be left as they are."""

    near: int
    far: int
    regime: Regime
    least: int
    sinks: int


def fields_of(call: Call) -> Fields | None:
    """Return what near and far keys are; None where this cannot run, or others are as quick."""
    scheme, layout, t = call.scheme, call.layout, call.queries.count
    if call.q.device.type != "cpu" or call.needs_grad or call.seed is not None or call.keys_turned:
        return None
    if torch.compiler.is_compiling() or transformed() or not has_numbers():
        return None
    if layout is None or layout.offset or t != call.keys.count or t < LEAST or not call.at_index:
        return None
    if any(map(scheme.answering, ("bend", "bend_rows", "relate", "rest"))) or scheme.band() != CAUSAL:
        return None
    if call.q.shape[-1] != call.v.shape[-1] or layout.first:
        return None
    return _met(seen_regimes(call), t)


def _met(regimes: list[tuple[int, Regime]], t: int) -> Fields | None:
    """Return the same, by the regimes that anybody is in."""
    if len(regimes) not in (2, 3):
        return None
    (near, first), *spared, (far, regime) = regimes
    if spared and not is_split(spared[0][1], regime):
        return None
    sinks, second = (sinks_of(regime), whole(regime)) if spared else (0, regime)
    least = second.distances()[0]
    plain = not first.contrast and not first.shift
    by_distance = all(bound.by_distance for bound in (*first.bounds, *second.bounds))
    meet = (first.distances()[1], second.distances()[1]) == (least - 1, math.inf) and 2 <= least < t
    return Fields(near, far, regime, int(least), sinks) if plain and by_distance and meet else None


def in_fields(call: Call, found: Fields, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the answer; v: the values as they are summed, [b g s d]."""
    factor, dtype, w, t = call.factor(), call.score_dtype, found.least, call.queries.count
    each = call.q.shape[1] // call.k.shape[1]
    v = v.repeat_interleave(each, 1)
    q, k = turned(call, dtype, found.near)
    out, lse = _band(q * factor, k.repeat_interleave(each, 1), v, w)
    q, k = turned(call, dtype, found.far)
    q, k = (q * factor)[:, :, w:], k.repeat_interleave(each, 1)
    here = [(out[:, :, w:], lse[:, :, w:])]
    sinks = min(found.sinks, t - w)
    if sinks:
        here.append(_first_keys(q, k[:, :, :sinks], v[:, :, :sinks]))
    joined = here[0] if len(here) == 1 else merge(*here[0], *here[1])
    if sinks < t - w:
        regime = found.regime
        strength = None
        if regime.contrast is not None:
            strength = regime.contrast(call.index, call.length).to(dtype).expand(-1, t)[:, None, w:]
            q = q * (1 + strength)[..., None]
        # The first queries that see a far key besides the sinks come as much later.
        later = slice(sinks, None)
        far_out, far_lse = _fused(q[:, :, later], *(x[:, :, sinks : t - w] for x in (k, v)), causal=True)
        if strength is not None:
            far_lse = far_lse - strength[..., later] * joined[1][:, :, later]
        if regime.shift is not None:
            far_lse = far_lse + regime.shift(call.index, call.length).to(dtype).expand(-1, t)[:, None, w:][..., later]
        joined = tuple(
            torch.cat((one[:, :, :sinks], both), 2)
            for one, both in zip(joined, merge(*(one[:, :, later] for one in joined), far_out, far_lse), strict=True)
        )
    out, lse = (torch.cat((one[:, :, :w], both), 2) for one, both in zip((out, lse), joined, strict=True))
    return out.to(call.v.dtype), lse if call.return_lse else None


def _band(q: Tensor, k: Tensor, v: Tensor, w: int) -> Part:
    """Return each query with the w keys up to its own.

    The first w rows see all keys up to their own. A later block, of fewer than w, has three parts: its own keys, of
    which row n sees those up to number n; as many where the window ends, of which row n sees those from number n on:
    read backwards, that is causal too; and what lies between, which all its rows see. No mask is added to a score, so
    that one that is not finite harms nobody who does not see it.
    """
    parts = [_fused(*(x[:, :, :w] for x in (q, k, v)), causal=True)]
    size = min(ROWS, w - 1)
    for first in range(w, q.shape[2], size):
        end = min(first + size, q.shape[2])
        rows, old, seen = slice(first, end), slice(first - w + 1, end - w + 1), slice(end - w + 1, first)
        here = _fused(*(x[:, :, rows] for x in (q, k, v)), causal=True)
        edge = _fused(*(x[:, :, each].flip(2) for x, each in ((q, rows), (k, old), (v, old))), causal=True)
        found = [*here, *(x.flip(2) for x in edge)]
        if seen.start < seen.stop:
            found += _fused(q[:, :, rows], k[:, :, seen], v[:, :, seen])
        parts.append(merge(*found))
    out, lse = zip(*parts, strict=True)
    return torch.cat(out, 2), torch.cat(lse, 2)


def _first_keys(q: Tensor, k: Tensor, v: Tensor) -> Part:
    """Query number n with the keys up to number n, of which there are few."""
    scores = q @ k.mT
    count, few = scores.shape[2:]
    scores[:, :, :few].masked_fill_(torch.ones(min(count, few), few, dtype=torch.bool).triu_(1), -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp() @ v, lse


def _fused(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Part:
    """torch's function, with the log-sum-exp that it keeps for its backward pass."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=1.0)
