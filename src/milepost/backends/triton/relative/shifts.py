# pyright: basic, reportMissingImports=false
"""One vector of each head added to all of its tokens: out = x + shift, in float32, cast once.

Memory-bound. Torch adds what it has to repeat a number at a time, at a quarter of the speed that memory has on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import _like
from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import batch_step, device_of, launch, steps
from milepost.memory.surroundings import has_numbers

WARPS, LOADS = 4, 4
"""Warps of a program, and loads of sixteen bytes that each thread has in flight."""


@triton.jit(do_not_specialize=["tokens"])
def add(
    X, Shift, Out, x_b, x_h, x_t, s_h, o_b, o_h, o_t, tokens, BT: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr
):
    """Compute a block of BT tokens of one head."""
    token = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    channel = tl.arange(0, WIDTH)[None, :]
    inside = (token < tokens)[:, None]
    if WIDTH != D:
        inside = inside & (channel < D)
    shift = tl.load(Shift + h * s_h + channel, mask=channel < D, other=0.0).to(tl.float32)
    at = token.to(tl.int64)[:, None]
    x = tl.load(X + b * x_b + h * x_h + at * x_t + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + b * o_b + h * o_h + at * o_t + channel, (x + shift).to(Out.dtype.element_ty), mask=inside)


def shifted(x: Tensor, shift: Tensor) -> Tensor:
    """x [b h t d] plus shift [h|1 1 d], of any dtype, in the dtype of x, with gradients for both."""
    if not has_numbers() or not x.numel():
        return x + shift.to(x.dtype)
    if torch.is_grad_enabled() and (x.requires_grad or shift.requires_grad):
        return _Shift.apply(x, shift)  # pyright: ignore
    return _shifted(x, shift)


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor) -> Tensor:
        ctx.heads, ctx.dtype = shift.shape[0], shift.dtype
        return _shifted(x, shift)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        if not ctx.needs_input_grad[1]:
            return grad, None
        axes = (0, 1, 2) if ctx.heads == 1 else (0, 2)
        total = grad.sum(axes, dtype=torch.promote_types(ctx.dtype, torch.float32))
        return grad, total.view(ctx.heads, 1, -1).to(ctx.dtype)


def _shifted(x: Tensor, shift: Tensor) -> Tensor:
    b, h, t, d = x.shape
    out = _like(x, d)
    x = x if x.stride(3) == 1 else x.contiguous()
    shift = shift if shift.stride(2) == 1 else shift.contiguous()
    width = power_of_two(d)
    tokens = max(1, WARPS * 32 * LOADS * 16 // x.itemsize // width)
    with device_of(x):
        launch(
            add, (blocks_of(t, tokens), h, b),
            x, shift, out, *steps(x), batch_step(shift), *steps(out), t,
            BT=tokens, WIDTH=width, D=d, num_warps=WARPS,
        )  # fmt: skip
    return out
