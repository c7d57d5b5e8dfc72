# pyright: basic, reportMissingImports=false
"""A number for each head and distance, picked out of a table with a row for each bucket of distances.

    picked[h, n]  =  table[bucket[n], h],      d table[r, h]  =  Σ d picked[h, n]  over all n with bucket[n] = r

One launch each way, where torch takes four operations: short rows wait for these, not for their attention.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import device_of, launch
from milepost.backends.triton.runtime.played import demand_first_gradients, resolved

BLOCK = 128
"""Distances that a program reads at once."""


@triton.jit(do_not_specialize=["many", "heads"])
def pick(Table, Bucket, Out, t_r, t_h, o_h, many, heads, BLOCK: tl.constexpr, BH: tl.constexpr):
    """Compute a block of distances, all heads."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.arange(0, BH)
    inside = (at < many)[None, :] & (head < heads)[:, None]
    row = tl.load(Bucket + at, mask=at < many, other=0)
    found = tl.load(Table + row[None, :] * t_r + head[:, None] * t_h, mask=inside, other=0.0)
    tl.store(Out + head[:, None].to(tl.int64) * o_h + at[None, :], found.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["many", "heads"])
def put_back(Grad, Bucket, DTable, g_h, g_n, d_r, d_h, many, heads, BLOCK: tl.constexpr, BH: tl.constexpr):
    """Compute the gradient of one row of the table, all heads, in one order."""
    own = tl.program_id(0)
    head = tl.arange(0, BH)
    total = tl.zeros([BH], tl.float32)
    for begin in range(0, many, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        ours = tl.load(Bucket + at, mask=at < many, other=-1) == own
        inside = ours[None, :] & (head < heads)[:, None]
        where = Grad + head[:, None].to(tl.int64) * g_h + at[None, :].to(tl.int64) * g_n
        total += tl.sum(tl.load(where, mask=inside, other=0.0), 1)
    tl.store(DTable + own.to(tl.int64) * d_r + head * d_h, total.to(DTable.dtype.element_ty), mask=head < heads)


def picked(table: Tensor, bucket: Tensor) -> Tensor:
    """table [rows h] at bucket [n], int64: [h n] in float32, with a gradient for the table."""
    if torch.is_grad_enabled() and table.requires_grad:
        return _Picked.apply(table, bucket)  # pyright: ignore
    return _picked(resolved(table), bucket)


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, bucket: Tensor) -> Tensor:
        # No numbers of the table are read again: whoever changes them in place may.
        ctx.save_for_backward(bucket)
        ctx.like = table.shape, table.dtype
        return _picked(resolved(table), bucket)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        demand_first_gradients("attend")
        (bucket,) = ctx.saved_tensors
        return _put_back(resolved(grad), bucket, *ctx.like), None


def _picked(table: Tensor, bucket: Tensor) -> Tensor:
    many, heads = len(bucket), table.shape[1]
    out = table.new_empty(heads, many, dtype=torch.float32)
    with device_of(table):
        launch(
            pick, (blocks_of(many, BLOCK), 1, 1), table, bucket, out, *table.stride(), many, many, heads, BLOCK=BLOCK,
            BH=power_of_two(heads), num_warps=4,
        )  # fmt: skip
    return out


def _put_back(grad: Tensor, bucket: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    rows, heads = shape
    found = grad.new_empty(shape, dtype=dtype)
    with device_of(grad):
        launch(
            put_back, (rows, 1, 1), grad, bucket, found, *grad.stride(), *found.stride(), len(bucket), heads,
            BLOCK=BLOCK, BH=power_of_two(heads), num_warps=1,
        )  # fmt: skip
    return found
