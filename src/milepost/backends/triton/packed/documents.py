# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
"""Tokens of packed rows, numbered within their documents by one launch: sorting them takes a dozen."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.runtime.configs import blocks_of
from milepost.backends.triton.runtime.launch import launch

LONGEST = 1 << 15
"""Every token looks at all before it, which past so many takes longer than to sort them."""


@triton.jit
def _meets(other, least, most):
    """True if documents least … most may be among the others."""
    return (tl.min(other, 0) <= most) & (tl.max(other, 0) >= least)


@triton.jit(do_not_specialize=["count"])
def number(Docs, Order, d_b, o_b, count, OWN: tl.constexpr, OTHER: tl.constexpr, MANY: tl.constexpr):
    """Compute how many of the tokens before each of OWN tokens are of its document.

    Others are looked at OTHER at a time, and MANY at a time are passed over that are all of documents before or after.
    """
    first = tl.program_id(0) * OWN
    b = tl.program_id(1).to(tl.int64)
    Docs += b * d_b
    i = first + tl.arange(0, OWN)
    own = tl.load(Docs + i, mask=i < count, other=0)
    least = tl.min(own, 0)
    most = tl.max(own, 0)
    found = tl.zeros([OWN, OTHER], tl.int32)
    end = tl.minimum(first + OWN, count)
    for many in range(0, end, MANY):
        all_of = many + tl.arange(0, MANY)
        if _meets(tl.load(Docs + tl.minimum(all_of, end - 1)), least, most):
            for j0 in range(many, tl.minimum(many + MANY, end), OTHER):
                j = j0 + tl.arange(0, OTHER)
                other = tl.load(Docs + tl.minimum(j, end - 1))
                if _meets(other, least, most):
                    found += ((own[:, None] == other[None, :]) & (j[None, :] < i[:, None])).to(tl.int32)
    tl.store(Order + b * o_b + i, tl.sum(found, 1).to(tl.int64), mask=i < count)


def order_within(documents: Tensor) -> Tensor:
    """Number the tokens of each document 0, 1, 2 …, [b t] as int64."""
    documents = documents if documents.stride(-1) == 1 else documents.contiguous()
    b, t = documents.shape
    order = torch.empty(b, t, dtype=torch.int64, device=documents.device)
    if order.numel():
        launch(
            number, (blocks_of(t, 16), b), documents, order, documents.stride(0), t, t,
            OWN=16, OTHER=512, MANY=4096, num_warps=4,
        )  # fmt: skip
    return order
