# pyright: basic, reportMissingImports=false
"""Attention over two or three sets of keys joined in one launch, forward and backward: `merge` takes a dozen.

w_i = e^(lse_i − lse),   out = Σ w_i out_i,   lse = ln Σ e^lse_i
d out_i = w_i grad,   d lse_i = w_i (grad·out_i − grad·out + grad_lse)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import _like, _width
from milepost.backends.triton.attention.score import put, tile
from milepost.backends.triton.joining.sums import filled, joined, less
from milepost.backends.triton.runtime.configs import blocks_of
from milepost.backends.triton.runtime.launch import device_of, launch, steps
from milepost.backends.triton.runtime.played import demand_first_gradients, gradients

MOST = 3
"""How many are joined at once."""
ROWS = 32


@triton.jit
def _part(Part, PartLse, DPart, DPartLse, grad, lse, dot, grad_lse, row, rows, place, line, inside, o_t, BM, WIDTH, D):
    """Write the gradients of one part."""
    w = less(tl.load(PartLse + line, mask=inside, other=float("-inf")), lse)
    own = tl.sum(grad * tile(Part + place, 0, 0, row, rows, o_t, BM, WIDTH, D, False).to(tl.float32), 1)
    put(DPart + place, w[:, None] * grad, row, rows, o_t, BM, WIDTH, D)
    tl.store(DPartLse + line, w * (own - dot + grad_lse), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def part(
    Grad, GradLse, Out, Lse, Out0, Out1, Out2, Lse0, Lse1, Lse2, D0, D1, D2, DL0, DL1, DL2,
    g_b, g_h, g_t, gl_b, gl_h, gl_t, o_b, o_h, o_t, l_b, l_h, rows,
    BM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr, GRAD_LSE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every part, for one block of rows."""
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
    grad_lse = tl.zeros([BM], tl.float32)
    if GRAD_LSE:
        grad_lse = tl.load(GradLse + b * gl_b + h * gl_h + at * gl_t, mask=inside, other=0.0).to(tl.float32)
    _part(Out0, Lse0, D0, DL0, grad, lse, dot, grad_lse, row, rows, place, line, inside, o_t, BM, WIDTH, D)
    _part(Out1, Lse1, D1, DL1, grad, lse, dot, grad_lse, row, rows, place, line, inside, o_t, BM, WIDTH, D)
    if PARTS == 3:
        _part(Out2, Lse2, D2, DL2, grad, lse, dot, grad_lse, row, rows, place, line, inside, o_t, BM, WIDTH, D)


def merged(*parts: Tensor) -> tuple[Tensor, Tensor]:
    """out, lse, out, lse … of other keys each, joined; with gradients.

    All out [b h t d] lie alike, and all lse [b h t].
    """
    while len(parts) > 2 * MOST:
        parts = (*merged(*parts[: 2 * MOST]), *parts[2 * MOST :])
    return _Merged.apply(*parts)  # pyright: ignore


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> tuple[Tensor, Tensor]:
        outs, lses = parts[::2], parts[1::2]
        out, lse = _like(outs[0], outs[0].shape[3]), torch.empty_like(lses[0])
        if out.numel():
            with device_of(out):
                joined(out, lse, list(zip(outs, lses, strict=True)))
        ctx.save_for_backward(out, lse, *parts)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        demand_first_gradients("attend")
        out, lse, *parts = ctx.saved_tensors
        outs, lses = parts[::2], parts[1::2]
        grad, grad_lse = gradients(grad, grad_lse, out)
        grad = grad.contiguous() if grad.stride(-1) != 1 else grad
        d_outs, d_lses = ([torch.empty_like(each) for each in some] for some in (outs, lses))
        if out.numel():
            b, h, t, d = out.shape
            with device_of(out):
                launch(
                    part, (blocks_of(t, ROWS), h, b), grad, grad_lse, out, lse,
                    *[each for some in (outs, lses, d_outs, d_lses) for each in filled(some, MOST)],
                    *steps(grad, grad_lse, out), *lse.stride()[:2], t,
                    BM=ROWS, WIDTH=_width(d), D=d, PARTS=len(outs), GRAD_LSE=grad_lse is not None, num_warps=4,
                )  # fmt: skip
        return tuple(each for pair in zip(d_outs, d_lses, strict=True) for each in pair)
