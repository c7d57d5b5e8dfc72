# pyright: basic, reportMissingImports=false
"""How far back keys can weigh anything where scores fall by a slope: blocks of keys further back are skipped.

A query sees its own key, whose score is at least −|q|·|k|·scale. A key n back has at most |q|·|k|·scale − slope · n.
Beyond

    n  =  (2 · |q|·|k|·scale + SPARE) / slope

it weighs less than e^−SPARE of the query's own: less than float32 has digits for, though there be millions. |q| is the
longest query of a block of rows, |k| the longest key of all. Where any of them is not finite, nothing is skipped.
A cap before the slope only lowers |q|·|k|·scale; a cap after it bounds every score from below, so nothing is skipped.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.score import GRANULE, tile
from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import launch, steps

SPARE = tl.constexpr(34.0)
"""e^−34 is 2^−49."""
FARTHEST = tl.constexpr(float(1 << 30))


@triton.jit
def _longest(x):
    """Return the longest row; ∞ where one is not finite."""
    squares = tl.sum(x * x, 1)
    return tl.where(tl.sum(tl.where(squares < float("inf"), 0, 1), 0) > 0, float("inf"), tl.sqrt(tl.max(squares, 0)))


@triton.jit(do_not_specialize=["rows", "keys", "heads"])
def longest(
    Q, K, V, QLong, KLong, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, rows, keys, heads,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Compute the longest query and the longest key of each block; ∞ where a key or its value is not finite."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    row = block * BLOCK
    if head < heads:
        if row < rows:
            x = tile(Q + b * q_b + head.to(tl.int64) * q_h, 0, 0, row, rows, q_t, BLOCK, WIDTH, D, False)
            place = (b * heads + head) * tl.cdiv(rows, BLOCK) + block
            tl.store(QLong + place, _longest(x.to(tl.float32)))
    elif row < keys:
        g = (head - heads).to(tl.int64)
        x = tile(K + b * k_b + g * k_h, 0, 0, row, keys, k_t, BLOCK, WIDTH, D, False)
        found = _longest(x.to(tl.float32))
        x = tile(V + b * v_b + g * v_h, 0, 0, row, keys, v_t, BLOCK, VWIDTH, DV, False)
        whole = tl.abs(x.to(tl.float32)) < float("inf")
        lost = tl.sum(tl.sum(tl.where(whole, 0, 1), 1), 0) > 0
        place = (b * (tl.num_programs(1) - heads) + g) * tl.cdiv(keys, BLOCK) + block
        tl.store(KLong + place, tl.where(lost, float("inf"), found))


@triton.jit(do_not_specialize=["q_blocks", "k_blocks", "group"])
def reaches(QLong, KLong, Slopes, Away, scale, q_blocks, k_blocks, group, MANY: tl.constexpr):
    """Compute how far back keys can have weight, for each block of rows of one head, then for all rows."""
    h = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(0)
    n = tl.arange(0, MANY)
    k_long = tl.load(KLong + (b * (heads // group) + h // group) * k_blocks + n, mask=n < k_blocks, other=0.0)
    q_long = tl.load(QLong + (b * heads + h) * q_blocks + n, mask=n < q_blocks, other=0.0)
    slope = tl.load(Slopes + h)
    away = (2 * q_long * tl.max(k_long, 0) * scale + SPARE) / slope
    # Nothing that is not a number is less.
    away = tl.where(away < FARTHEST, away, FARTHEST)
    away = tl.where(slope > 0, away, FARTHEST).to(tl.int32)
    place = (b * heads + h) * (q_blocks + 1)
    tl.store(Away + place + n, away, mask=n < q_blocks)
    tl.store(Away + place + q_blocks, tl.max(tl.where(n < q_blocks, away, 0), 0))


def launch_reaches(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, scale: float, widths: tuple[int, int]) -> Tensor:
    """Return how far back keys can weigh anything, by blocks of 128 rows, and last for all rows: [b h blocks + 1]."""
    (b, h, t, d), (g, s) = q.shape, k.shape[1:3]
    side = GRANULE.value
    q_blocks, k_blocks = blocks_of(t, side), blocks_of(s, side)
    q_long, k_long = (torch.empty(b, n, m, device=q.device) for n, m in ((h, q_blocks), (g, k_blocks)))
    launch(
        longest, (max(q_blocks, k_blocks), h + g, b),
        q, k, v, q_long, k_long, *steps(q, k, v), t, s, h,
        BLOCK=side, WIDTH=widths[0], VWIDTH=widths[1], D=d, DV=v.shape[3], num_warps=8,
    )  # fmt: skip
    away = torch.empty(b, h, q_blocks + 1, device=q.device, dtype=torch.int32)
    many = power_of_two(max(q_blocks, k_blocks))
    launch(reaches, (h, b), q_long, k_long, slopes, away, scale, q_blocks, k_blocks, h // g, MANY=many, num_warps=4)
    return away
