# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportArgumentType=false
"""Queries and keys that are turned in two ways at once, for near keys and for far ones, and attention to both.

Both turns of a tensor are made from one reading of it. Backwards, what near keys and far ones give is turned back and
added as it is read, so that no gradient is padded or added for its own sake.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import _like
from milepost.backends.triton.near_far import fields
from milepost.backends.triton.near_far.fields import Fields
from milepost.backends.triton.rotary.rotate import FULL, Waves, _alike, _angles, shares_of
from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import device_of, launch


@triton.jit
def _read(rows, inside, BH, BT, HALF, PAIRS, NEIGHBOURS):
    """Return both channels of every pair of some rows, [BH, BT, HALF] each, in float32."""
    if NEIGHBOURS:
        both = tl.arange(0, 2 * HALF)[None, None, :]
        mask = inside & (both < 2 * PAIRS)
        x, y = tl.split(tl.load(rows + both, mask=mask, other=0.0).reshape([BH, BT, HALF, 2]))
    else:
        pair = tl.arange(0, HALF)[None, None, :]
        mask = inside & (pair < PAIRS)
        x = tl.load(rows + pair, mask=mask, other=0.0)
        y = tl.load(rows + PAIRS + pair, mask=mask, other=0.0)
    return x.to(tl.float32), y.to(tl.float32)


@triton.jit
def _write(rows, x, y, inside, BH, BT, HALF, PAIRS, NEIGHBOURS):
    if NEIGHBOURS:
        both = tl.arange(0, 2 * HALF)[None, None, :]
        pairs = tl.join(x, y).reshape([BH, BT, 2 * HALF])
        tl.store(rows + both, pairs.to(rows.dtype.element_ty), mask=inside & (both < 2 * PAIRS))
    else:
        pair = tl.arange(0, HALF)[None, None, :]
        mask = inside & (pair < PAIRS)
        tl.store(rows + pair, x.to(rows.dtype.element_ty), mask=mask)
        tl.store(rows + PAIRS + pair, y.to(rows.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["heads", "tokens", "share", "first", "count"])
def turn_near_and_far(
    X, Y, Near, Far, NearCos, NearSin, FarCos, FarSin,
    x_b, x_h, x_t, y_b, y_h, y_t, n_b, n_h, n_t, f_b, f_h, f_t, nc_b, nc_t, fc_b, fc_t,
    heads, tokens, share, first, count,
    BH: tl.constexpr, BT: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, D: tl.constexpr,
    NEIGHBOURS: tl.constexpr, BACK: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Write Near and Far, both out of X; or BACK: Near, the sum of X and Y, each turned back its own way.

    Y has the tokens first … first + count. FAR: whether the other way is a turn; otherwise it leaves things alone, and
    forward writes nothing of it. Programs along axis 1 share the heads out.
    """
    own = tl.program_id(1) * share
    b = tl.program_id(2).to(tl.int64)
    token = tl.program_id(0) * BT + tl.arange(0, BT)
    sign = -1.0 if BACK else 1.0
    cos, sin = _angles(NearCos + b * nc_b, NearSin + b * nc_b, token, tokens, nc_t, sign, HALF, PAIRS)
    if FAR:
        far_cos, far_sin = _angles(FarCos + b * fc_b, FarSin + b * fc_b, token, tokens, fc_t, sign, HALF, PAIRS)
    token = token[None, :, None]
    end = tl.minimum(own + share, heads)
    for start in range(own, end, BH):
        head = (start + tl.arange(0, BH))[:, None, None]
        inside = (head < end) & (token < tokens)
        x_rows = X + b * x_b + head.to(tl.int64) * x_h + token.to(tl.int64) * x_t
        n_rows = Near + b * n_b + head.to(tl.int64) * n_h + token.to(tl.int64) * n_t
        x, y = _read(x_rows, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        near_x = x * cos - y * sin
        near_y = x * sin + y * cos
        if BACK:
            there = inside & (token >= first) & (token < first + count)
            y_rows = Y + b * y_b + head.to(tl.int64) * y_h + (token - first).to(tl.int64) * y_t
            x, y = _read(y_rows, there, BH, BT, HALF, PAIRS, NEIGHBOURS)
            if FAR:
                near_x += x * far_cos - y * far_sin
                near_y += x * far_sin + y * far_cos
            else:
                near_x += x
                near_y += y
        elif FAR:
            f_rows = Far + b * f_b + head.to(tl.int64) * f_h + token.to(tl.int64) * f_t
            _write(
                f_rows, x * far_cos - y * far_sin, x * far_sin + y * far_cos, inside, BH, BT, HALF, PAIRS, NEIGHBOURS
            )
        _write(n_rows, near_x, near_y, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        if REST > 0:
            # Channels past the rotated width are copied.
            rest = 2 * PAIRS + tl.arange(0, REST)[None, None, :]
            kept = tl.load(x_rows + rest, mask=inside & (rest < D), other=0.0).to(tl.float32)
            if BACK:
                kept += tl.load(y_rows + rest, mask=there & (rest < D), other=0.0).to(tl.float32)
            elif FAR:
                tl.store(f_rows + rest, kept.to(Far.dtype.element_ty), mask=inside & (rest < D))
            tl.store(n_rows + rest, kept.to(Near.dtype.element_ty), mask=inside & (rest < D))


def _launch(
    x: Tensor, y: Tensor | None, near: Tensor, far: Tensor | None, waves: Waves, others: Waves | None,
    neighbours: bool, first: int = 0,
) -> None:  # fmt: skip
    """y: backwards, what the other way gives, from the token `first` on."""
    b, h, t, d = x.shape
    (cos, sin), (far_cos, far_sin) = _alike(*waves), (None, None) if others is None else _alike(*others)
    pairs = cos.shape[2]
    half = power_of_two(pairs)
    warps, heads, tokens = shares_of(half, t, False, x.stride(1) > x.stride(2))
    tokens = min(max(1, tokens * 128 // x.itemsize // half), power_of_two(t))
    blocks = blocks_of(t, tokens)
    share = blocks_of(h, min(blocks_of(FULL, blocks * b), blocks_of(h, heads)))
    steps = [step for each in (x, y, near, far) for step in ((0, 0, 0) if each is None else each.stride()[:3])]
    steps += [
        step for each in (cos, far_cos)
        for step in ((0, 0) if each is None else (each.stride(0) if each.shape[0] > 1 else 0, each.stride(1)))
    ]  # fmt: skip
    launch(
        turn_near_and_far, (blocks, blocks_of(h, share), b),
        x, y, near, far, cos, sin, far_cos, far_sin, *steps, h, t, share, first, 0 if y is None else y.shape[2],
        BH=min(heads, power_of_two(share)), BT=tokens, HALF=half, PAIRS=pairs,
        REST=power_of_two(d - 2 * pairs) if d > 2 * pairs else 0, D=d, NEIGHBOURS=neighbours, BACK=y is not None,
        FAR=others is not None, num_warps=warps,
    )  # fmt: skip


def _turned(x: Tensor, waves: Waves, others: Waves | None, neighbours: bool) -> tuple[Tensor, Tensor]:
    """x turned in both ways; where the other leaves it alone, x itself."""
    near, far = _like(x, x.shape[3]), None if others is None else _like(x, x.shape[3])
    _launch(x, None, near, far, waves, others, neighbours)
    return near, x if far is None else far


def _turned_back(near: Tensor, far: Tensor, first: int, waves: Waves, others: Waves | None, neighbours: bool) -> Tensor:
    """Return what x gets of both, of which the far one has the tokens from the first on."""
    found = _like(near, near.shape[3])
    _launch(near, far, found, None, waves, others, neighbours, first)
    return found


def turned_fields(
    q: Tensor, k: Tensor, v: Tensor, how: Fields, queries: tuple[Waves, Waves], keys: tuple[Waves, Waves | None],
    neighbours: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`fields` of raw queries and keys, with gradients: those of near keys turned by the first cosines and sines, those
    of far ones by the second; None where far keys stay as they are. v: [b g s dv].
    """
    q, k, v = fields._close(q, k, v)
    if torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)):
        tables = (*queries[0], *queries[1], *keys[0], *(keys[1] or (None, None)))
        return _TurnedFields.apply(q, k, v, *tables, neighbours, how)  # pyright: ignore
    return fields.forward(_all_turned(q, k, v, queries, keys, neighbours), how)[:2]


def _all_turned(
    q: Tensor, k: Tensor, v: Tensor, queries: tuple[Waves, Waves], keys: tuple[Waves, Waves | None], neighbours: bool
) -> tuple[Any, ...]:
    """Return the tensors of `fields.forward`."""
    with device_of(q):
        near_q, far_q = _turned(q, *queries, neighbours)
        near_k, far_k = _turned(k, *keys, neighbours)
    return near_q, near_k, v, far_q, far_k, *fields.NOTHING


class _TurnedFields(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        *tables, neighbours, how = given
        turned = _all_turned(q, k, v, *_ways(tables), neighbours)
        found = fields.forward(turned, how, keep=True)
        ctx.save_for_backward(*turned[:5], *tables, found.out, found.lse, *found.kept)
        ctx.rest = neighbours, how, found.dice
        ctx.set_materialize_grads(False)
        return found.out, found.lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        if grad is None and grad_lse is None:
            return (None,) * 13
        saved = ctx.saved_tensors
        turned, tables, (out, lse, *kept) = (*saved[:5], *fields.NOTHING), saved[5:13], saved[13:]
        neighbours, how, dice = ctx.rest
        queries, keys = _ways(tables)
        found = fields.backward(turned, how, grad, grad_lse, fields.Answer(out, lse, tuple(kept), dice))
        (dq, dk, dv, *_, far_dq, far_dk), first = found
        with device_of(out):
            dq = _turned_back(dq, far_dq, first, *queries, neighbours)
            dk = _turned_back(dk, far_dk, 0, *keys, neighbours)
        return dq, dk, dv, *(None,) * 10


def _ways(tables: Any) -> tuple[tuple[Waves, Waves], tuple[Waves, Waves | None]]:
    """Return cosines and sines of queries and of keys, near and far."""
    near, far, own, other = (tuple(tables[n : n + 2]) for n in range(0, 8, 2))
    return (near, far), (own, None if other[0] is None else other)  # pyright: ignore
