# pyright: basic, reportMissingImports=false
"""Attention over two or three sets of keys joined in one launch, forward and backward: `merge` takes a dozen.

w_i = e^(lse_i − lse),   out = Σ w_i out_i,   lse = ln Σ e^lse_i
d out_i = w_i grad,   d lse_i = w_i (grad·out_i − grad·out + grad_lse)

Where the last part n is set off, lse_n − c · level, level = ln Σ_{i<n} e^lse_i, takes the place of lse_n, and the
others get − c · d lse_n · e^(lse_i − level) besides.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import _like, _width
from milepost.backends.triton.attention.score import put, tile
from milepost.backends.triton.joining.sums import both, filled, joined, less, set_off
from milepost.backends.triton.runtime.configs import blocks_of
from milepost.backends.triton.runtime.launch import batch_step, device_of, launch, steps
from milepost.backends.triton.runtime.played import demand_first_gradients, gradients

MOST = 3
"""How many are joined at once."""
ROWS = 32


@triton.jit
def _part(
    Part, own_lse, DPart, DPartLse, grad, lse, dot, grad_lse, more, row, rows, place, line, inside, o_t, BM, WIDTH, D
):  # fmt: skip
    """Write the gradients of one part, and return that of its log-sum-exp; more: what is added to that."""
    w = less(own_lse, lse)
    own = tl.sum(grad * tile(Part + place, 0, 0, row, rows, o_t, BM, WIDTH, D, False).to(tl.float32), 1)
    put(DPart + place, w[:, None] * grad, row, rows, o_t, BM, WIDTH, D)
    found = w * (own - dot + grad_lse) + more
    tl.store(DPartLse + line, found, mask=inside)
    return found


@triton.jit(do_not_specialize=["rows"])
def part(
    Grad, GradLse, Out, Lse, Out0, Out1, Out2, Lse0, Lse1, Lse2, D0, D1, D2, DL0, DL1, DL2, Strength,
    g_b, g_h, g_t, gl_b, gl_h, gl_t, o_b, o_h, o_t, l_b, l_h, s_b, rows,
    BM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr, GRAD_LSE: tl.constexpr,
    SET_OFF: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every part, for one block of rows. There are two parts, or three."""
    row = tl.program_id(0) * BM
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    at = row + tl.arange(0, BM)
    inside = at < rows
    place = b * o_b + h * o_h
    line = b * l_b + h * l_h + at
    grad = tile(Grad + b * g_b + h * g_h, 0, 0, row, rows, g_t, BM, WIDTH, D, False).to(tl.float32)
    dot = tl.sum(grad * tile(Out + place, 0, 0, row, rows, o_t, BM, WIDTH, D, False).to(tl.float32), 1)
    lse = tl.load(Lse + line, mask=inside, other=float("-inf"))
    first = tl.load(Lse0 + line, mask=inside, other=float("-inf"))
    second = tl.load(Lse1 + line, mask=inside, other=float("-inf"))
    grad_lse = tl.zeros([BM], tl.float32)
    if GRAD_LSE:
        grad_lse = tl.load(GradLse + b * gl_b + h * gl_h + at * gl_t, mask=inside, other=0.0).to(tl.float32)
    none = tl.zeros([BM], tl.float32)
    to_first = none
    to_second = none
    if PARTS == 3:
        third = tl.load(Lse2 + line, mask=inside, other=float("-inf"))
        level = both(first, second)
        if SET_OFF:
            third, strength = set_off(third, level, Strength, b * s_b + at, inside)
        found = _part(Out2, third, D2, DL2, grad, lse, dot, grad_lse, none,
                      row, rows, place, line, inside, o_t, BM, WIDTH, D)  # fmt: skip
        if SET_OFF:
            to_first = -strength * found * less(first, level)
            to_second = -strength * found * less(second, level)
    elif SET_OFF:
        second, strength = set_off(second, first, Strength, b * s_b + at, inside)
    found = _part(Out1, second, D1, DL1, grad, lse, dot, grad_lse, to_second,
                  row, rows, place, line, inside, o_t, BM, WIDTH, D)  # fmt: skip
    if SET_OFF and PARTS == 2:
        to_first = tl.where(first == float("-inf"), 0.0, -strength * found)
    _part(Out0, first, D0, DL0, grad, lse, dot, grad_lse, to_first,
          row, rows, place, line, inside, o_t, BM, WIDTH, D)  # fmt: skip


def merged(*parts: Tensor, strength: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """out, lse, out, lse … of other keys each, joined; with gradients.

    All out [b h t d] lie alike, and all lse [b h t]. strength: [b|1 t] in float32, without a gradient, where the scores
    of the last part are set off against the others': lse − strength · ln Σ e^lse of the others takes its place.
    """
    while len(parts) > 2 * MOST:
        parts = (*merged(*parts[: 2 * MOST]), *parts[2 * MOST :])
    return _Merged.apply(strength, *parts)  # pyright: ignore


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, strength: Tensor | None, *parts: Tensor) -> tuple[Tensor, Tensor]:
        outs, lses = parts[::2], parts[1::2]
        out, lse = _like(outs[0], outs[0].shape[3]), torch.empty_like(lses[0])
        if out.numel():
            with device_of(out):
                joined(out, lse, list(zip(outs, lses, strict=True)), strength)
        ctx.save_for_backward(strength, out, lse, *parts)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        demand_first_gradients("attend")
        strength, out, lse, *parts = ctx.saved_tensors
        outs, lses = parts[::2], parts[1::2]
        grad, grad_lse = gradients(grad, grad_lse, out)
        grad = grad.contiguous() if grad.stride(-1) != 1 else grad
        d_outs, d_lses = ([torch.empty_like(each) for each in some] for some in (outs, lses))
        if out.numel():
            b, h, t, d = out.shape
            with device_of(out):
                launch(
                    part, (blocks_of(t, ROWS), h, b), grad, grad_lse, out, lse,
                    *[each for some in (outs, lses, d_outs, d_lses) for each in filled(some, MOST)], strength,
                    *steps(grad, grad_lse, out), *lse.stride()[:2], batch_step(strength), t,
                    BM=ROWS, WIDTH=_width(d), D=d, PARTS=len(outs), GRAD_LSE=grad_lse is not None,
                    SET_OFF=strength is not None, num_warps=4 if d <= 128 else 8,
                )  # fmt: skip
        return None, *(each for pair in zip(d_outs, d_lses, strict=True) for each in pair)
