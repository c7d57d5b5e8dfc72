# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803, N806
"""Queries and keys rotated in one launch, forward and backward.

    (x, y) ← (x cos − y sin, x sin + y cos)     for each pair of channels, in float32, cast once

Memory-bound: every element is read once and written once. One program takes a few tokens and all heads of q and of k,
so that cos and sin are read once a token. The gradient is the same kernel with −sin.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.flash import INTERPRETED, _device_of, _like


@triton.jit
def _turned(
    X, Y, cos, sin, token, inside, heads, x_h, x_t, y_h, y_t,
    BT: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """All heads of one tensor, for a block of tokens. cos, sin: [BT, HALF]; the pair's channels lie HALF or 1 apart."""
    pair = tl.arange(0, HALF)
    mask = inside[:, None]
    if PAIRS != HALF:
        mask = mask & (pair < PAIRS)[None, :]
    x_rows = X + token.to(tl.int64)[:, None] * x_t
    y_rows = Y + token.to(tl.int64)[:, None] * y_t
    for _ in range(heads):
        if NEIGHBOURS:
            both = tl.arange(0, 2 * HALF)
            wide = inside[:, None]
            if PAIRS != HALF:
                wide = wide & (both < 2 * PAIRS)[None, :]
            pairs = tl.load(x_rows + both[None, :], mask=wide, other=0.0).to(tl.float32)
            x, y = tl.split(pairs.reshape([BT, HALF, 2]))
            turned = tl.join(x * cos - y * sin, x * sin + y * cos).reshape([BT, 2 * HALF])
            tl.store(y_rows + both[None, :], turned.to(Y.dtype.element_ty), mask=wide)
        else:
            x = tl.load(x_rows + pair[None, :], mask=mask, other=0.0).to(tl.float32)
            y = tl.load(x_rows + PAIRS + pair[None, :], mask=mask, other=0.0).to(tl.float32)
            tl.store(y_rows + pair[None, :], (x * cos - y * sin).to(Y.dtype.element_ty), mask=mask)
            tl.store(y_rows + PAIRS + pair[None, :], (x * sin + y * cos).to(Y.dtype.element_ty), mask=mask)
        if REST > 0:
            # Channels past the rotated width are copied.
            rest = 2 * PAIRS + tl.arange(0, REST)
            kept = inside[:, None] & (rest < D)[None, :]
            tl.store(y_rows + rest[None, :], tl.load(x_rows + rest[None, :], mask=kept, other=0.0), mask=kept)
        x_rows += x_h
        y_rows += y_h


@triton.jit(do_not_specialize=["queries", "keys", "query_blocks"])
def turn(
    Q, K, OutQ, OutK, CosQ, SinQ, CosK, SinK,
    q_b, q_h, q_t, k_b, k_h, k_t, oq_b, oq_h, oq_t, ok_b, ok_h, ok_t, cq_b, cq_t, ck_b, ck_t,
    queries, keys, query_heads, key_heads, query_blocks, sign,
    BT: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, D: tl.constexpr,
    NEIGHBOURS: tl.constexpr, SAME: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Rotate q and k. SAME: both have the same tokens and tables, and each program does both; else queries come first.

    Programs along axis 1 share the heads out, HEADS of q and their part of k each.
    """
    block = tl.program_id(0)
    share = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    pair = tl.arange(0, HALF)
    q_first = share * HEADS
    q_count = tl.minimum(query_heads - q_first, HEADS)
    k_each = (key_heads + tl.num_programs(1) - 1) // tl.num_programs(1)
    k_first = share * k_each
    k_count = tl.minimum(key_heads - k_first, k_each)
    WIDTH: tl.constexpr = 2 * HALF
    if SAME or (block < query_blocks):
        token = block * BT + tl.arange(0, BT)
        inside = token < queries
        mask = inside[:, None]
        if PAIRS != HALF:
            mask = mask & (pair < PAIRS)[None, :]
        at = b * cq_b + token.to(tl.int64)[:, None] * cq_t + pair[None, :]
        cos = tl.load(CosQ + at, mask=mask, other=0.0)
        sin = tl.load(SinQ + at, mask=mask, other=0.0) * sign
        _turned(
            Q + b * q_b + q_first.to(tl.int64) * q_h, OutQ + b * oq_b + q_first.to(tl.int64) * oq_h, cos, sin, token,
            inside, q_count, q_h, q_t, oq_h, oq_t, BT, HALF, PAIRS, REST, WIDTH, D, NEIGHBOURS,
        )  # fmt: skip
        if SAME:
            _turned(
                K + b * k_b + k_first.to(tl.int64) * k_h, OutK + b * ok_b + k_first.to(tl.int64) * ok_h, cos, sin,
                token, inside, k_count, k_h, k_t, ok_h, ok_t, BT, HALF, PAIRS, REST, WIDTH, D, NEIGHBOURS,
            )  # fmt: skip
    if not SAME:  # noqa: SIM102, this one the compiler decides
        if block >= query_blocks:
            token = (block - query_blocks) * BT + tl.arange(0, BT)
            inside = token < keys
            mask = inside[:, None]
            if PAIRS != HALF:
                mask = mask & (pair < PAIRS)[None, :]
            at = b * ck_b + token.to(tl.int64)[:, None] * ck_t + pair[None, :]
            cos = tl.load(CosK + at, mask=mask, other=0.0)
            sin = tl.load(SinK + at, mask=mask, other=0.0) * sign
            _turned(
                K + b * k_b + k_first.to(tl.int64) * k_h, OutK + b * ok_b + k_first.to(tl.int64) * ok_h, cos, sin,
                token, inside, k_count, k_h, k_t, ok_h, ok_t, BT, HALF, PAIRS, REST, WIDTH, D, NEIGHBOURS,
            )  # fmt: skip


SETTINGS = {"tokens": 0, "warps": 4, "heads": 8}
"""Tokens a block (0: by the width), warps, and query heads a program: chosen by measurement."""


def rotate_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, key_cos: Tensor | None = None, key_sin: Tensor | None = None,
    *, neighbours: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rotate q [b h t d] and k [b g s d] by angles whose cosines and sines are given, with gradients for q and k.

    cos, sin: [b|1 t width/2] in float32, for the queries; key_cos, key_sin likewise [b|1 s width/2] for the keys, by
    default the same. Pairs are (i, i + width/2), or (2i, 2i + 1) where `neighbours`; channels past the width are kept.
    """
    if (key_cos is None) != (key_sin is None):
        raise ValueError("rotate_qk: key_cos and key_sin come together; give both or neither")
    same = key_cos is None
    key_cos, key_sin = (cos, sin) if key_cos is None or key_sin is None else (key_cos, key_sin)
    for name, x, c, s in (("q", q, cos, sin), ("k", k, key_cos, key_sin)):
        if c.shape != s.shape or c.dim() != 3 or c.shape[0] not in (1, x.shape[0]) or c.shape[1] != x.shape[2]:
            raise ValueError(
                f"rotate_qk: {name} is {list(x.shape)}, its cos {list(c.shape)} and sin {list(s.shape)}; "
                f"give both as [{x.shape[0]} or 1, {x.shape[2]}, width/2]"
            )
        if c.dtype != torch.float32 or s.dtype != torch.float32:
            raise ValueError(f"rotate_qk: cos and sin of {name} are {c.dtype} and {s.dtype}; give torch.float32")
        if 2 * c.shape[2] > x.shape[3]:
            raise ValueError(f"rotate_qk: {name} has {x.shape[3]} channels, too few for {c.shape[2]} pairs")
    if cos.shape[2] != key_cos.shape[2] or q.shape[3] != k.shape[3]:
        raise ValueError("rotate_qk: q and k must have equally many channels and pairs; rotate them apart")
    return _Rotate.apply(q, k, cos, sin, key_cos, key_sin, neighbours, same)  # pyright: ignore


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        cos, sin, key_cos, key_sin, neighbours, same = rest
        ctx.save_for_backward(cos, sin, key_cos, key_sin)
        ctx.flags = (neighbours, same)
        return torch.ops.milepost.rotate_qk(q, k, cos, sin, key_cos, key_sin, neighbours, same, False)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Any, ...]:
        dq, dk = torch.ops.milepost.rotate_qk(grad_q, grad_k, *ctx.saved_tensors, *ctx.flags, True)
        return dq, dk, *(None,) * 6


def _rotate_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, key_cos: Tensor, key_sin: Tensor, neighbours: bool, same: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The kernel, launched."""
    if not (q.is_cuda or INTERPRETED):
        raise RuntimeError(f"the kernels run on CUDA devices; the tensors are on {q.device}")
    out_q, out_k = _like(q, q.shape[3]), _like(k, k.shape[3])
    b, h, t, d = q.shape
    g, s = k.shape[1:3]
    if 0 in (b, h, t, d, g, s):
        return out_q, out_k
    q, k = (each if each.stride(3) == 1 else each.contiguous() for each in (q, k))
    tables = [each if each.stride(2) == 1 else each.contiguous() for each in (cos, sin, key_cos, key_sin)]
    cos, sin, key_cos, key_sin = tables
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    if key_cos.stride() != key_sin.stride():
        key_cos, key_sin = key_cos.contiguous(), key_sin.contiguous()
    pairs = cos.shape[2]
    half = triton.next_power_of_2(pairs)
    warps = SETTINGS["warps"]
    # Sixteen bytes a thread and load.
    tokens = SETTINGS["tokens"] or max(1, warps * 32 * 16 // q.itemsize // half)
    tokens = min(tokens, triton.next_power_of_2(t if same else max(t, s)))
    heads = min(SETTINGS["heads"], h)
    query_blocks = triton.cdiv(t, tokens)
    blocks = query_blocks if same else query_blocks + triton.cdiv(s, tokens)
    rest = triton.next_power_of_2(d - 2 * pairs) if d > 2 * pairs else 0
    with _device_of(q):
        turn[(blocks, triton.cdiv(h, heads), b)](
            q, k, out_q, out_k, cos, sin, key_cos, key_sin,
            *q.stride()[:3], *k.stride()[:3], *out_q.stride()[:3], *out_k.stride()[:3],
            cos.stride(0) if cos.shape[0] > 1 else 0, cos.stride(1),
            key_cos.stride(0) if key_cos.shape[0] > 1 else 0, key_cos.stride(1),
            t, s, h, g, query_blocks, -1.0 if inverse else 1.0,
            BT=tokens, HALF=half, PAIRS=pairs, REST=rest, D=d, NEIGHBOURS=neighbours, SAME=same, HEADS=heads,
            num_warps=warps,
        )  # fmt: skip
    return out_q, out_k


torch.library.define(
    "milepost::rotate_qk",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor key_cos, Tensor key_sin, bool neighbours, bool same, "
    "bool inverse) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
for _kind in ("CUDA", "CPU"):
    torch.library.impl("milepost::rotate_qk", _kind, _rotate_qk)


@torch.library.register_fake("milepost::rotate_qk")
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(q, q.shape[3]), _like(k, k.shape[3])
