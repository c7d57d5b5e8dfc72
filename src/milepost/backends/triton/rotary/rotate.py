# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportGeneralTypeIssues=false
"""Queries and keys rotated in one launch, forward and backward.

    (x, y) ← (x cos − y sin, x sin + y cos)     for each pair of channels, in float32, cast once

Memory-bound: every element is read once and written once. One program takes a few tokens and all heads of q and of k,
so that cos and sin are read once a token. The gradient is the same kernel with −sin.

cos and sin are given, or made from positions. Then an angle is position · turns, where turns are whole numbers, the
share of a full turn times 2⁶⁴: the product wraps around as angles do, and loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import INTERPRETED, _like, close
from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import Launched, Layers, batch_step, device_of, launch_alike, looks_of
from milepost.backends.triton.runtime.played import define, operator, resolved

_PER_TURN = tl.constexpr(2 * math.pi / 2**32)
"""What the upper half of a turn of 2⁶⁴ is as an angle."""
Waves = tuple[Tensor, Tensor]


@triton.jit
def read_pairs(rows, inside, BH, BT, HALF, PAIRS, NEIGHBOURS):
    """Return both channels of every pair of some rows, [BH, BT, HALF] each, in float32."""
    if NEIGHBOURS:
        both = tl.arange(0, 2 * HALF)[None, None, :]
        if PAIRS != HALF:
            inside = inside & (both < 2 * PAIRS)
        pairs = tl.load(rows + both, mask=inside, other=0.0).to(tl.float32)
        return tl.split(pairs.reshape([BH, BT, HALF, 2]))
    else:
        pair = tl.arange(0, HALF)[None, None, :]
        if PAIRS != HALF:
            inside = inside & (pair < PAIRS)
        x = tl.load(rows + pair, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(rows + PAIRS + pair, mask=inside, other=0.0).to(tl.float32)
        return x, y


@triton.jit
def write_pairs(rows, x, y, inside, BH, BT, HALF, PAIRS, NEIGHBOURS):
    """Write both channels of every pair of some rows."""
    if NEIGHBOURS:
        both = tl.arange(0, 2 * HALF)[None, None, :]
        if PAIRS != HALF:
            inside = inside & (both < 2 * PAIRS)
        pairs = tl.join(x, y).reshape([BH, BT, 2 * HALF])
        tl.store(rows + both, pairs.to(rows.dtype.element_ty), mask=inside)
    else:
        pair = tl.arange(0, HALF)[None, None, :]
        if PAIRS != HALF:
            inside = inside & (pair < PAIRS)
        tl.store(rows + pair, x.to(rows.dtype.element_ty), mask=inside)
        tl.store(rows + PAIRS + pair, y.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def _turned(X, Y, cos, sin, token, heads, tokens, x_h, x_t, y_h, y_t, BH, BT, HALF, PAIRS, REST, D, NEIGHBOURS):
    """`heads` heads of one tensor, BH at a time, for a block of BT tokens. cos, sin: [BT, HALF]."""
    token = token[None, :, None]
    for first in range(0, heads, BH):
        head = (first + tl.arange(0, BH))[:, None, None]
        inside = (head < heads) & (token < tokens)
        x_rows = X + head.to(tl.int64) * x_h + token.to(tl.int64) * x_t
        y_rows = Y + head.to(tl.int64) * y_h + token.to(tl.int64) * y_t
        x, y = read_pairs(x_rows, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        write_pairs(y_rows, x * cos - y * sin, x * sin + y * cos, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        if REST > 0:
            # Channels past the rotated width are copied.
            rest = 2 * PAIRS + tl.arange(0, REST)[None, None, :]
            kept = inside & (rest < D)
            tl.store(y_rows + rest, tl.load(x_rows + rest, mask=kept, other=0.0), mask=kept)


@triton.jit
def _angles(Cos, Sin, token, tokens, c_t, sign, HALF, PAIRS):
    """cos and sin of a block of tokens, [1, BT, HALF]."""
    pair = tl.arange(0, HALF)[None, :]
    mask = (token < tokens)[:, None]
    if PAIRS != HALF:
        mask = mask & (pair < PAIRS)
    at = token.to(tl.int64)[:, None] * c_t + pair
    cos = tl.load(Cos + at, mask=mask, other=0.0)
    sin = tl.load(Sin + at, mask=mask, other=0.0) * sign
    return cos[None, :, :], sin[None, :, :]


@triton.jit
def _angles_at(Position, Turns, token, tokens, size, sign, HALF, PAIRS):
    """cos and sin of a block of tokens by where they stand, [1, BT, HALF]."""
    pair = tl.arange(0, HALF)
    turns = tl.load(Turns + pair, mask=pair < PAIRS, other=0)
    position = tl.load(Position + token, mask=token < tokens, other=0).to(tl.int64)
    phase = ((position[:, None] * turns[None, :]) >> 32).to(tl.int32)
    # The nearest quarter of a turn, and what is left, at most an eighth: there a few terms are exact in float32.
    quarter = (phase + (1 << 29)) >> 30
    x = (phase - (quarter << 30)).to(tl.float32) * _PER_TURN
    y = x * x
    near_sin = x + x * y * (-1.666666467e-01 + y * (8.332748635e-03 + y * -1.958794987e-04))
    near_cos = 1 - 0.5 * y + y * y * (4.166665696e-02 + y * (-1.388780378e-03 + y * 2.448320432e-05))
    odd = (quarter & 1) == 1
    cos = tl.where(odd, near_sin, near_cos) * tl.where(((quarter + 1) & 2) == 2, -size, size)
    sin = tl.where(odd, near_cos, near_sin) * tl.where((quarter & 2) == 2, -size * sign, size * sign)
    return cos[None, :, :], sin[None, :, :]


@triton.jit(do_not_specialize=["queries", "keys", "query_blocks", "q_share", "k_share", "query_heads", "key_heads"])
def turn(
    Q, K, OutQ, OutK, CosQ, SinQ, CosK, SinK,
    q_b, q_h, q_t, k_b, k_h, k_t, oq_b, oq_h, oq_t, ok_b, ok_h, ok_t, cq_b, cq_t, ck_b, ck_t,
    queries, keys, query_heads, key_heads, query_blocks, q_share, k_share, size, sign,
    BQ: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    D: tl.constexpr, NEIGHBOURS: tl.constexpr, SAME: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """Rotate q and k. SAME: both have the same tokens and tables, and each program does both; else queries come first.

    COUNTED: instead of cosines come positions, instead of sines the turns of one step.

    Programs along axis 1 share the heads out, q_share of q's and k_share of k's each.
    """
    block = tl.program_id(0)
    share = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    q_first = share * q_share
    k_first = share * k_share
    q_count = tl.minimum(query_heads - q_first, q_share)
    k_count = tl.minimum(key_heads - k_first, k_share)
    Q += b * q_b + q_first.to(tl.int64) * q_h
    K += b * k_b + k_first.to(tl.int64) * k_h
    OutQ += b * oq_b + q_first.to(tl.int64) * oq_h
    OutK += b * ok_b + k_first.to(tl.int64) * ok_h
    if SAME or (block < query_blocks):
        token = block * BT + tl.arange(0, BT)
        if COUNTED:
            cos, sin = _angles_at(CosQ + b * cq_b, SinQ, token, queries, size, sign, HALF, PAIRS)
        else:
            cos, sin = _angles(CosQ + b * cq_b, SinQ + b * cq_b, token, queries, cq_t, sign, HALF, PAIRS)
        _turned(
            Q, OutQ, cos, sin, token, q_count, queries, q_h, q_t, oq_h, oq_t, BQ, BT, HALF, PAIRS, REST, D, NEIGHBOURS
        )
        if SAME:
            _turned(
                K, OutK, cos, sin, token, k_count, keys, k_h, k_t, ok_h, ok_t, BK, BT, HALF, PAIRS, REST, D, NEIGHBOURS
            )
    else:
        token = (block - query_blocks) * BT + tl.arange(0, BT)
        if COUNTED:
            cos, sin = _angles_at(CosK + b * ck_b, SinK, token, keys, size, sign, HALF, PAIRS)
        else:
            cos, sin = _angles(CosK + b * ck_b, SinK + b * ck_b, token, keys, ck_t, sign, HALF, PAIRS)
        _turned(K, OutK, cos, sin, token, k_count, keys, k_h, k_t, ok_h, ok_t, BK, BT, HALF, PAIRS, REST, D, NEIGHBOURS)


class Shares(NamedTuple):
    """What a program does at once: `heads` heads of `tokens` tokens, with `warps` warps."""

    warps: int
    heads: int
    tokens: int


def shares_of(pairs: int, tokens: int, counted: bool, heads_first: bool) -> Shares:
    """By measurement, for two bytes an element: of half as wide heads twice as many tokens.

    counted: angles are made from positions. heads_first: the tokens of a head lie together, not the heads of a token.
    """
    if tokens < 4:
        return Shares(4, 8, 4)
    if heads_first:
        return Shares(4, 4, 16)
    return Shares(4, 8, 2) if counted and pairs > 32 else Shares(4, 16, 1)


FULL = 528
"""Programs that fill the chip, four on each multiprocessor."""


def shared_out(x: Tensor, pairs: int, itemsize: int) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """Return a grid over the tokens and heads of x [b h t d], the heads of a program, and what it is compiled for."""
    b, h, t, d = x.shape
    half = power_of_two(pairs)
    warps, heads, tokens = shares_of(half, t, False, x.stride(1) > x.stride(2))
    tokens = min(max(1, tokens * 128 // itemsize // half), power_of_two(t))
    blocks = blocks_of(t, tokens)
    share = blocks_of(h, min(blocks_of(FULL, blocks * b), blocks_of(h, heads)))
    return (blocks, blocks_of(h, share), b), share, {
        "BH": min(heads, power_of_two(share)), "BT": tokens, "HALF": half, "PAIRS": pairs,
        "REST": power_of_two(d - 2 * pairs) if d > 2 * pairs else 0, "D": d, "num_warps": warps,
    }  # fmt: skip


def rotate_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, key_cos: Tensor | None = None, key_sin: Tensor | None = None,
    *, neighbours: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rotate q [b h t d] and k [b g s d] by angles whose cosines and sines are given, with gradients for q and k.

    cos, sin: [b|1 t width/2] in float32, for the queries; key_cos, key_sin likewise [b|1 s width/2] for the keys, by
    default the same. Pairs are (i, i + width/2), or (2i, 2i + 1) where `neighbours`; channels past the width are kept.
    """
    return _rotated(q, k, cos, sin, key_cos, key_sin, None, neighbours)


def turns_of(frequencies: Tensor) -> Tensor:
    """Return the turns of one step, whole numbers mod 2⁶⁴, of frequencies in float64: an angle as a share of a full
    turn, times 2⁶⁴.
    """
    share = frequencies.double() / (2 * math.pi)
    upper = (share - share.floor()) * 2**32
    # In two halves, because 2⁶⁴ is more than a whole number holds.
    return (upper.floor().long() << 32) + ((upper - upper.floor()) * 2**32).long()


def rotate_qk_at(
    q: Tensor, k: Tensor, turns: Tensor, position: Tensor, key_position: Tensor | None = None,
    *, size: float = 1.0, neighbours: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rotate q [b h t d] and k [b g s d] by position times the turns of one step; no table is made, and an angle is as
    exact as its frequency in float64.

    turns: [width/2], of `turns_of`. position: whole numbers [b|1 t], those of the queries; key_position: [b|1 s], those
    of the keys, by default the same. Every pair is multiplied by `size`, too.
    """
    return _rotated(q, k, position, turns, key_position, None, float(size), neighbours)


def _rotated(q: Tensor, k: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Run the operator, with gradients where they are asked for."""
    if torch.compiler.is_compiling():
        # Elsewhere the operator's body does, once for calls that look alike.
        _demand(q, k, *how[:5])
    grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    q, k = resolved(q), resolved(k)
    if not grad:
        return operator("rotate_qk", _rotate_qk, q)(q, k, *how, False)
    # The tracer wants every argument to be another tensor.
    return _Rotate.apply(q, k.view_as(k) if k is q else k, *how)  # pyright: ignore


def rotate_queries(q: Tensor, cos: Tensor, sin: Tensor, *, neighbours: bool = False) -> Tensor:
    """Return the same of q alone: one launch and nothing around it where no gradient is asked for, as in decoding."""
    if torch.is_grad_enabled() and q.requires_grad:
        return rotate_qk(q, q.new_empty(q.shape[0], 0, *q.shape[2:]), cos, sin, neighbours=neighbours)[0]
    return _rotate_queries(q, cos, sin, neighbours)[0]


def _rotate_queries(q: Tensor, cos: Tensor, sin: Tensor, neighbours: bool) -> tuple[Tensor, list[Launched]]:
    out = _like(q, q.shape[3])
    if not q.numel():
        return out, []
    q = q if q.stride(3) == 1 else q.contiguous()
    with device_of(q):
        return out, [_turn(q, q, out, out, (cos, sin), None, neighbours, False, key_heads=0)]


class QueryRotation:
    """`rotate_queries` in every layer of a model: what one layer launched is launched again for the next."""

    def __init__(self, waves: Callable[[int], tuple[Any, Any] | None], neighbours: bool) -> None:
        self.layers, self.waves, self.neighbours = Layers(), waves, neighbours

    def __call__(self, q: Tensor, first: int) -> Tensor | None:
        """Return queries that count from an index, rotated; None where there are no cosines and sines for them."""
        made = self.layers.again(first, (q,))
        if made is not None:
            return made[0]
        found = self.waves(first)
        if found is None:
            return None
        out, launches = _rotate_queries(q, *found[0], self.neighbours)
        self.layers.keep(first, (q,), (out,), launches)
        return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*how[:4])
        ctx.rest = how[4:]
        return operator("rotate_qk", _rotate_qk, q)(q, k, *how, False)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Any, ...]:
        grads = resolved(grad_q), resolved(grad_k)
        cos, sin, key_cos, key_sin = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Part of a graph: it is a rotation, too, by the same angles the other way.
            if ctx.rest[0] is None:
                turned = _Rotate.apply(*grads, cos, -sin, key_cos, None if key_sin is None else -key_sin, *ctx.rest)
            else:
                turned = _Rotate.apply(*grads, -cos, sin, None if key_cos is None else -key_cos, None, *ctx.rest)
        else:
            rotate = operator("rotate_qk", _rotate_qk, grads[0])
            turned = rotate(*grads, cos, sin, key_cos, key_sin, *ctx.rest, True)
        return *turned, *(None,) * 6


def _demand(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, key_cos: Tensor | None, key_sin: Tensor | None, size: float | None
) -> None:
    """Refuse cosines and sines, or positions and turns, that do not fit."""
    if size is not None:
        _demand_turns(q, k, sin, cos, key_cos)
        return
    if (key_cos is None) != (key_sin is None):
        raise ValueError("rotate_qk: key_cos and key_sin come together; give both or neither")
    of_keys = (cos, sin) if key_cos is None or key_sin is None else (key_cos, key_sin)
    for name, x, c, s in (("q", q, cos, sin), ("k", k, *of_keys)):
        if c.shape != s.shape or c.dim() != 3 or c.shape[0] not in (1, x.shape[0]) or c.shape[1] != x.shape[2]:
            raise ValueError(
                f"rotate_qk: {name} is {list(x.shape)}, its cos {list(c.shape)} and sin {list(s.shape)}; "
                f"give both as [{x.shape[0]} or 1, {x.shape[2]}, width/2]"
            )
        if c.dtype != torch.float32 or s.dtype != torch.float32:
            raise ValueError(f"rotate_qk: cos and sin of {name} are {c.dtype} and {s.dtype}; give torch.float32")
        if 2 * c.shape[2] > x.shape[3]:
            raise ValueError(f"rotate_qk: {name} has {x.shape[3]} channels, too few for {c.shape[2]} pairs")
    if cos.shape[2] != of_keys[0].shape[2] or q.shape[3] != k.shape[3]:
        raise ValueError("rotate_qk: q and k must have equally many channels and pairs; rotate them apart")


def _demand_turns(q: Tensor, k: Tensor, turns: Tensor, position: Tensor, key_position: Tensor | None) -> None:
    """Refuse positions and turns that do not fit."""
    of_keys = position if key_position is None else key_position
    for name, x, p in (("q", q, position), ("k", k, of_keys)):
        if p.dim() != 2 or p.shape[0] not in (1, x.shape[0]) or p.shape[1] != x.shape[2] or p.is_floating_point():
            raise ValueError(
                f"rotate_qk_at: {name} is {list(x.shape)} and its positions are {list(p.shape)} of {p.dtype}; "
                f"give whole numbers as [{x.shape[0]} or 1, {x.shape[2]}]"
            )
    if turns.dtype != torch.int64 or turns.dim() != 1 or 2 * turns.shape[0] > q.shape[3] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"rotate_qk_at: turns are {list(turns.shape)} of {turns.dtype}, for {q.shape[3]} and {k.shape[3]} "
            "channels; give turns_of(frequencies), one for every pair, and q and k of equally many channels"
        )


def _rotate_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, key_cos: Tensor | None, key_sin: Tensor | None,
    size: float | None, neighbours: bool, inverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the kernel. size: not None where cos are positions, sin the turns of one step, and key_sin is left out."""
    _demand(q, k, cos, sin, key_cos, key_sin, size)
    if size is not None:
        cos, key_cos, key_sin = cos.contiguous(), None if key_cos is None else key_cos.contiguous(), sin
    waves, keys = (cos, sin), None if key_cos is None or key_sin is None else (key_cos, key_sin)
    if not (q.is_cuda or INTERPRETED):
        raise RuntimeError(f"the kernels run on CUDA devices; the tensors are on {q.device}")
    out_q, out_k = _empty(q, k)
    q, k = close(q, k)
    with device_of(q):
        if q.numel() and k.numel():
            _turn(q, k, out_q, out_k, waves, keys, neighbours, inverse, k.shape[1], size)
        elif q.numel():
            _turn(q, q, out_q, out_q, waves, None, neighbours, inverse, 0, size)
        elif k.numel():
            _turn(k, k, out_k, out_k, keys or waves, None, neighbours, inverse, 0, size)
    return out_q, out_k


def _empty(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(q, q.shape[3]), _like(k, k.shape[3])


def _turn(
    q: Tensor, k: Tensor, out_q: Tensor, out_k: Tensor, waves: Waves, keys: Waves | None, neighbours: bool,
    inverse: bool, key_heads: int, size: float | None = None,
) -> Launched:  # fmt: skip
    """Return the launch. key_heads: how many heads of k are turned. size: given where waves are positions and turns."""
    b, h, t, d = q.shape
    g, s = key_heads, k.shape[2]
    same, counted = keys is None, size is not None
    cos, sin = waves if counted else _alike(*waves)
    key_cos, key_sin = (cos, sin) if keys is None else keys if counted else _alike(*keys)
    pairs = sin.shape[-1]
    half = power_of_two(pairs)
    longest = t if same else max(t, s)
    warps, at_once, tokens = shares_of(half, longest, counted, q.stride(1) > q.stride(2))
    tokens = min(max(1, tokens * 128 // q.itemsize // half), power_of_two(longest))
    query_blocks = blocks_of(t, tokens)
    blocks = query_blocks if same else query_blocks + blocks_of(s, tokens)
    # All heads in one program, so that cos and sin are read once; shared out only where there are few tokens.
    shares = min(blocks_of(FULL, blocks * b), max(blocks_of(h, at_once), blocks_of(g, at_once)))
    q_share, k_share = blocks_of(h, shares), blocks_of(g, shares)
    strides = (
        *q.stride()[:3], *k.stride()[:3], *out_q.stride()[:3], *out_k.stride()[:3],
        batch_step(cos), cos.stride(1), batch_step(key_cos), key_cos.stride(1),
    )  # fmt: skip
    tensors = (q, k, out_q, out_k, cos, sin, key_cos, key_sin)
    looks = (
        q.dtype, cos.dtype, key_cos.dtype, q.shape, k.shape, pairs, g, same, neighbours, inverse, warps, at_once,
        tokens, *map(looks_of, strides), *[each.data_ptr() % 16 for each in tensors],
    )  # fmt: skip
    return launch_alike(
        looks, turn, (blocks, shares, b),
        (*tensors, *strides, t, s, h, g, query_blocks, q_share, k_share, 1.0 if size is None else size,
         -1.0 if inverse else 1.0),
        lambda: {
            "BQ": min(at_once, power_of_two(q_share)), "BK": min(at_once, power_of_two(k_share)), "BT": tokens,
            "HALF": half, "PAIRS": pairs, "REST": power_of_two(d - 2 * pairs) if d > 2 * pairs else 0, "D": d,
            "NEIGHBOURS": neighbours, "SAME": same, "COUNTED": counted, "num_warps": warps,
        },
    )  # fmt: skip


def _alike(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin with the same steps, 1 along the pairs."""
    if cos.stride(2) != 1 or cos.stride() != sin.stride():
        return cos.contiguous(), sin.contiguous()
    return cos, sin


define(
    "rotate_qk",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? key_cos, Tensor? key_sin, float? size, bool neighbours, "
    "bool inverse) -> (Tensor, Tensor)",
    _rotate_qk,
    _empty,
)
