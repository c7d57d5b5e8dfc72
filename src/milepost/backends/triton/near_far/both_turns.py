# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
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

from milepost.backends.triton.attention.flash import _like, close
from milepost.backends.triton.near_far import fields
from milepost.backends.triton.near_far.fields import Fields
from milepost.backends.triton.rotary.rotate import Waves, _alike, _angles, read_pairs, shared_out, write_pairs
from milepost.backends.triton.runtime.launch import batch_step, device_of, launch, steps


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
        x, y = read_pairs(x_rows, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        near_x = x * cos - y * sin
        near_y = x * sin + y * cos
        if BACK:
            there = inside & (token >= first) & (token < first + count)
            y_rows = Y + b * y_b + head.to(tl.int64) * y_h + (token - first).to(tl.int64) * y_t
            x, y = read_pairs(y_rows, there, BH, BT, HALF, PAIRS, NEIGHBOURS)
            if FAR:
                near_x += x * far_cos - y * far_sin
                near_y += x * far_sin + y * far_cos
            else:
                near_x += x
                near_y += y
        elif FAR:
            f_rows = Far + b * f_b + head.to(tl.int64) * f_h + token.to(tl.int64) * f_t
            write_pairs(
                f_rows, x * far_cos - y * far_sin, x * far_sin + y * far_cos, inside, BH, BT, HALF, PAIRS, NEIGHBOURS
            )
        write_pairs(n_rows, near_x, near_y, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
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
    (cos, sin), (far_cos, far_sin) = _alike(*waves), (None, None) if others is None else _alike(*others)
    grid, share, constants = shared_out(x, cos.shape[2], x.itemsize)
    launch(
        turn_near_and_far, grid, x, y, near, far, cos, sin, far_cos, far_sin, *steps(x, y, near, far),
        *[step for each in (cos, far_cos) for step in ((0, 0) if each is None else (batch_step(each), each.stride(1)))],
        *x.shape[1:3], share, first, 0 if y is None else y.shape[2],
        NEIGHBOURS=neighbours, BACK=y is not None, FAR=others is not None, **constants,
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
    q, k, v = close(q, k, v)
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
