# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""Tokens times vectors by distance, laid out so that a tile of pairs is read in whole lines.

    numbers[i, c]  =  x_i · rows[e],    e = the distance of query and key, counted from the first

A kernel wants the numbers of a tile of queries i and keys j, e = i − j. Were they stored by distance, neighbours j of
one row would lie side by side, but in each row one place further on: no two rows of a tile begin at an even address,
and a kernel reads number by number. Here eight tokens share a layout. Token 8a + r begins r distances after token
8a, so that the numbers of all eight for one j stand in one column, c = j − 8a + a constant, and the next eight begin
eight columns earlier, which is a whole line of sixteen bytes:

    by row:  e + first  =  i − j,   c  =  j − 8a + beside        by key:  the same with rows and keys exchanged

All tokens with one r meet the same rows in the same columns: that is one product of matrices. Where every distance
there is has a row, as in an encoder no longer than the reach, tokens come in squares of 128 besides, each with the
columns that it needs and no others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import AROUND, SQUARE, _like, _width
from milepost.backends.triton.runtime.configs import blocks_of
from milepost.backends.triton.runtime.launch import device_of, launch
from milepost.backends.triton.runtime.played import demand_first_gradients, resolved

_COUNTS = ["tokens", "batches", "others", "count", "shift", "beside"]
ROOM = 1 << 27
"""Bytes that the rows' gradients may have on their way, or as many as one square wants; further squares are added."""


class Layout(NamedTuple):
    """Which numbers stand where."""

    by_row: bool
    """Whether x are queries; otherwise keys."""
    squares: int
    """Into how many squares tokens are divided; 1: they are not."""
    width: int
    """Columns."""
    shift: int
    """Token 8a + r of square x has in column c the row e = ±(128 x + r + shift − c), + by row, − by key."""
    beside: int
    """And the other token there is number c + 8a − beside, a being counted within the square."""
    others: int
    """How many others there are."""


def layout_of(by_row: bool, tokens: int, others: int, count: int, first: int, offset: int, squares: bool) -> Layout:
    """Return the layout of `count` distances from the first on. offset: how far queries are behind the keys.

    squares: every distance that occurs is among them. Otherwise count and offset − first are multiples of 16.
    """
    if squares:
        # Columns from −120 on; by row e = i − j + tokens − 1.
        shift = SQUARE + tokens - 1 if by_row else SQUARE - (tokens - 1)
        return Layout(by_row, tokens // SQUARE, others + SQUARE, shift, SQUARE, others)
    if by_row:
        return Layout(True, 1, count + AROUND, count, first + count - offset, others)
    return Layout(False, 1, count + AROUND, 0, offset - first, others)


@triton.jit
def _tokens(block, square, r, batches, tokens, BM, PER):
    """Return tokens with one r, those of one batch row after another: their rows, places, 8a, and which there are."""
    groups = PER // 8 if PER > 0 else (tokens + 7) // 8
    at = block * BM + tl.arange(0, BM)
    b = at // groups
    a = (at - b * groups) * 8
    token = square * PER + a + r
    return b.to(tl.int64), token.to(tl.int64), a, (b < batches) & (token < tokens)


@triton.jit
def _entry(column, square, r, shift, BY_ROW, PER):
    """Return which row of the table stands in a column."""
    back = square * PER + r + shift - column
    return back if BY_ROW else -back


@triton.jit
def _vectors(Rows, entry, count, r_n, channel, D):
    """Return rows of the table, zeros where there is none."""
    inside = ((entry >= 0) & (entry < count))[:, None] & (channel < D)
    return tl.load(Rows + entry.to(tl.int64)[:, None] * r_n + channel, mask=inside, other=0.0)


@triton.jit(do_not_specialize=_COUNTS)
def multiply(
    X, Rows, Out, x_b, x_h, x_t, r_h, r_n, o_b, o_h, width, tokens, batches, others, count, shift, beside,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, BY_ROW: tl.constexpr, PER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the numbers of one block of tokens."""
    # Programs that follow one another write to tokens that do.
    r = tl.program_id(0) % 8
    square = tl.program_id(1)
    h = tl.program_id(2).to(tl.int64)
    b, token, a, there = _tokens(tl.program_id(0) // 8, square, r, batches, tokens, BM, PER)
    channel = tl.arange(0, WIDTH)[None, :]
    lines = X + (b * x_b + h * x_h + token * x_t)[:, None]
    x = tl.load(lines + channel, mask=there[:, None] & (channel < D), other=0.0)
    lines = Out + (b * o_b + h * o_h + token * width)[:, None]
    for start in range(0, width, BN):
        column = start + tl.arange(0, BN)
        rows = _vectors(Rows + h * r_h, _entry(column, square, r, shift, BY_ROW, PER), count, r_n, channel, D)
        found = tl.dot(x, rows.T, input_precision=PRECISION)
        inside = there[:, None] & (column < width)[None, :]
        if PER > 0:
            # In squares nobody reads a column without a pair, and a fifth of them have none. Whole lines of memory are
            # written or left out: part of one would be read first.
            other = start + a - PER
            inside = inside & ((other + BN > 0) & (other < others))[:, None]
        tl.store(lines + column[None, :], found.to(Out.dtype.element_ty), mask=inside)


@triton.jit
def _gradients(Grad, lines, column, entry, a, there, width, others, count, beside, EDGE):
    """Gradients of a tile of numbers. EDGE: 0 where there is no such row or no such pair, and nobody wrote anything."""
    # Read all the same, so that whole lines are.
    found = tl.load(Grad + lines[:, None] + column[None, :], mask=there[:, None] & (column < width)[None, :], other=0.0)
    if EDGE:
        other = column[None, :] + (a - beside)[:, None]
        inside = ((entry >= 0) & (entry < count))[None, :] & (other >= 0) & (other < others)
        found = tl.where(inside, found, 0.0)
    return found


@triton.jit
def _edges(width, BN, PER):
    """Columns that nobody may have written to begin, and end: see `Layout`; in whole blocks."""
    margin = PER if PER > 0 else 16
    return (margin + BN - 1) // BN * BN, (width - margin) // BN * BN


@triton.jit
def _back(
    acc, lo, hi, Grad, Rows, lines, a, there, r, square, r_n, channel, width, others, count, shift, beside,
    BN, D, BY_ROW, PER, PRECISION, EDGE,
):  # fmt: skip
    for start in range(lo, hi, BN):
        start = tl.multiple_of(start, BN)
        column = start + tl.arange(0, BN)
        entry = _entry(column, square, r, shift, BY_ROW, PER)
        grad = _gradients(Grad, lines, column, entry, a, there, width, others, count, beside, EDGE)
        acc = tl.dot(grad, _vectors(Rows, entry, count, r_n, channel, D), acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=_COUNTS)
def multiply_back(
    Grad, Rows, DX, g_b, g_h, r_h, r_n, x_b, x_h, x_t, width, tokens, batches, others, count, shift, beside,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, BY_ROW: tl.constexpr, PER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one block of tokens."""
    r = tl.program_id(0) % 8
    square = tl.program_id(1)
    h = tl.program_id(2).to(tl.int64)
    b, token, a, there = _tokens(tl.program_id(0) // 8, square, r, batches, tokens, BM, PER)
    lines = b * g_b + h * g_h + token * width
    channel = tl.arange(0, WIDTH)[None, :]
    Rows += h * r_h
    acc = tl.zeros([BM, WIDTH], tl.float32)
    head, tail = _edges(width, BN, PER)
    tail = tl.maximum(tail, head)
    los = (0, head, tail)
    his = (head, tail, width)
    for part in tl.static_range(3):
        acc = _back(
            acc, los[part], his[part], Grad, Rows, lines, a, there, r, square, r_n, channel, width, others, count,
            shift, beside, BN, D, BY_ROW, PER, PRECISION, part != 1,
        )  # fmt: skip
    lines = DX + (b * x_b + h * x_h + token * x_t)[:, None]
    tl.store(lines + channel, acc.to(DX.dtype.element_ty), mask=there[:, None] & (channel < D))


@triton.jit
def _summed(
    acc, lo, hi, Grad, X, column, entry, r, square, h, channel, g_b, g_h, x_b, x_h, x_t, width, tokens, batches, others,
    count, beside, BM, D, PER, PRECISION, EDGE,
):  # fmt: skip
    for block in range(lo, hi):
        b, token, a, there = _tokens(block, square, r, batches, tokens, BM, PER)
        lines = b * g_b + h * g_h + token * width
        grad = _gradients(Grad, lines, column, entry, a, there, width, others, count, beside, EDGE)
        at = X + (b * x_b + h * x_h + token * x_t)[:, None]
        x = tl.load(at + channel, mask=there[:, None] & (channel < D), other=0.0)
        acc = tl.dot(grad.T, x, acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=[*_COUNTS, "first"])
def tally(
    Grad, X, Sums, g_b, g_h, x_b, x_h, x_t, width, tokens, batches, others, count, shift, beside, first,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, BY_ROW: tl.constexpr, PER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute what all tokens with one r give to the rows of one block of columns: Sums [h, squares, 8, width, D].

    Some squares, from the first on.
    """
    r = tl.program_id(0) % 8
    start = tl.program_id(0) // 8 * BN
    column = start + tl.arange(0, BN)
    square = first + tl.program_id(1)
    h = tl.program_id(2).to(tl.int64)
    entry = _entry(column, square, r, shift, BY_ROW, PER)
    channel = tl.arange(0, WIDTH)[None, :]
    acc = tl.zeros([BN, WIDTH], tl.float32)
    groups = PER // 8 if PER > 0 else (tokens + 7) // 8
    blocks = tl.cdiv(groups * batches, BM)
    head, tail = _edges(width, BN, PER)
    # Two loops in turn, one of them empty.
    turn = tl.where((start < head) | (start >= tail), blocks, 0)
    los = (0, turn)
    his = (turn, blocks)
    for part in tl.static_range(2):
        acc = _summed(
            acc, los[part], his[part], Grad, X, column, entry, r, square, h, channel, g_b, g_h, x_b, x_h, x_t, width,
            tokens, batches, others, count, beside, BM, D, PER, PRECISION, part == 0,
        )  # fmt: skip
    line = (((h * tl.num_programs(1) + tl.program_id(1)) * 8 + r) * width + column) * D
    tl.store(Sums + line[:, None] + channel, acc, mask=(column < width)[:, None] & (channel < D))


@triton.jit(do_not_specialize=["count", "shift", "kinds", "first"])
def gathered(
    Sums, DRows, width, count, shift, kinds, first,
    BN: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, BY_ROW: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of one block of rows what tokens of every r, in squares from the first on, give to it."""
    entry = tl.program_id(0) * BN + tl.arange(0, BN)
    h = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, WIDTH)[None, :]
    acc = tl.zeros([BN, WIDTH], tl.float32)
    for kind in range(kinds):
        back = (first + kind // 8) * PER + kind % 8 + shift
        column = back - entry if BY_ROW else back + entry
        inside = ((column >= 0) & (column < width) & (entry < count))[:, None] & (channel < D)
        line = ((h * kinds + kind) * width + column) * D
        acc += tl.load(Sums + line[:, None] + channel, mask=inside, other=0.0)
    lines = DRows + (h * count + entry)[:, None] * D + channel
    inside = (entry < count)[:, None] & (channel < D)
    if first > 0:
        acc += tl.load(lines, mask=inside, other=0.0)
    tl.store(lines, acc, mask=inside)


class Tile(NamedTuple):
    """Tokens and columns of a tile, warps, and whether programs share out blocks of either or go over all."""

    tokens: int
    columns: int
    warps: int
    by_token: bool = True
    by_column: bool = True


TILES = {
    multiply: Tile(64, 64, 4, by_column=False),
    multiply_back: Tile(64, 64, 4, by_column=False),
    tally: Tile(64, 64, 4, by_token=False),
    gathered: Tile(0, 32, 4),
}


def diagonal_products(x: Tensor, rows: Tensor, layout: Layout) -> Tensor:
    """x [b h t d] times rows [h|1 n d], laid out: [b h squares t/squares width], with gradients of both."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return _DiagonalProducts.apply(x, rows.contiguous(), layout)  # pyright: ignore


class _DiagonalProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, layout: Layout) -> Tensor:
        b, h, t, _ = x.shape
        found = x.new_empty(b, h, t, layout.width)
        _launch(multiply, layout, x, rows, (x, rows, found), x.stride()[:3], _steps(rows), found.stride()[:2])
        ctx.save_for_backward(x, rows)
        ctx.layout = layout
        return found.view(b, h, layout.squares, t // layout.squares, layout.width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        demand_first_gradients("attend")
        x, rows = ctx.saved_tensors
        layout, grad = ctx.layout, resolved(grad).contiguous().flatten(2, 3)
        h, d, steps = x.shape[1], x.shape[3], grad.stride()[:2]
        dx = d_rows = None
        if ctx.needs_input_grad[0]:
            dx = _like(x, d)
            _launch(multiply_back, layout, x, rows, (grad, rows, dx), steps, _steps(rows), dx.stride()[:3])
        if ctx.needs_input_grad[1]:
            count = rows.shape[1]
            each = x.new_empty(h, count, d, dtype=torch.float32)
            some = max(1, min(layout.squares, ROOM // (h * 8 * layout.width * d * 4)))
            for first in range(0, layout.squares, some):
                own = min(some, layout.squares - first)
                sums = x.new_empty(h, 8 * own, layout.width, d, dtype=torch.float32)
                _launch(tally, layout, x, rows, (grad, x, sums), steps, x.stride()[:3], squares=(first, own))
                tile = TILES[gathered]
                with device_of(x):
                    launch(
                        gathered, (blocks_of(count, tile.columns), h), sums, each, layout.width, count, layout.shift,
                        8 * own, first, BN=tile.columns, WIDTH=_width(d), D=d, BY_ROW=layout.by_row, PER=_per(layout),
                        num_warps=tile.warps,
                    )  # fmt: skip
            d_rows = (each if rows.shape[0] > 1 else each.sum(0, keepdim=True)).to(rows.dtype)
        return dx, d_rows, None


def _steps(rows: Tensor) -> tuple[int, int]:
    """Return how far apart heads, and the vectors of one, lie; all heads may have the same."""
    return 0 if rows.shape[0] == 1 else rows.stride(0), rows.stride(1)


def _per(layout: Layout) -> int:
    return SQUARE if layout.squares > 1 else 0


def _launch(
    kernel: Any, layout: Layout, x: Tensor, rows: Tensor, tensors: tuple[Tensor, ...], *steps: tuple[int, ...],
    squares: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """squares: the first, and how many, where the kernel does some."""
    b, h, t, d = x.shape
    tile = TILES[kernel]
    columns = tile.columns if x.itemsize == 2 else tile.columns // 2
    programs = blocks_of(blocks_of(t // layout.squares, 8) * b, tile.tokens) if tile.by_token else 1
    programs *= blocks_of(layout.width, columns) if tile.by_column else 1
    first, own = (0, layout.squares) if squares is None else squares
    more = () if squares is None else (first,)
    with device_of(x):
        launch(
            kernel, (8 * programs, own, h), *tensors, *[step for each in steps for step in each],
            layout.width, t, b, layout.others, rows.shape[1], layout.shift, layout.beside, *more,
            BM=tile.tokens, BN=columns, WIDTH=_width(d), D=d, BY_ROW=layout.by_row, PER=_per(layout), PRECISION="ieee",
            num_warps=tile.warps,
        )  # fmt: skip
