# pyright: basic, reportMissingImports=false
"""Attention forward: one program a block of rows, one pass over the keys it sees."""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.attention.loops import Band, Bias, Vectors, attend_keys
from milepost.backends.triton.attention.parts import has_keys, kind_of_keys, parts_of_keys
from milepost.backends.triton.attention.score import COUNTS, FLOOR, LN2, LOG2E, ends_of, put, slopes_of, tile, within
from milepost.backends.triton.packed.block_ranges import poison


@triton.jit
def _joined(out, lse, FarOut, FarLse, Strength, NearLse, at, rows, far_row, far_t, VWIDTH, DV, FAR):
    """Return near keys' answer joined with that of the far ones, which rows from far_row on have.

    FAR 2: far scores are set off against the near ones' log-sum-exp, which is written for the backward pass.
    """
    inside = (at < rows) & (at >= far_row)
    far = tl.load(FarLse + at - far_row, mask=inside, other=float("-inf"))
    if FAR == 2:
        strength = tl.load(Strength + at, mask=at < rows, other=0.0)
        far -= strength * tl.where(lse == float("-inf"), 0.0, lse)
        tl.store(NearLse + at, lse, mask=at < rows)
    top = tl.maximum(lse, far)
    top = tl.where(top == float("-inf"), 0.0, top)
    near_share = tl.exp(lse - top)
    far_share = tl.exp(far - top)
    total = near_share + far_share
    blind = total == 0
    total = tl.where(blind, 1.0, total)
    channel = tl.arange(0, VWIDTH)
    pointers = FarOut + (at - far_row).to(tl.int64)[:, None] * far_t + channel[None, :]
    far_out = tl.load(pointers, mask=inside[:, None] & (channel < DV)[None, :], other=0.0).to(tl.float32)
    out = (out * near_share[:, None] + far_out * far_share[:, None]) / total[:, None]
    return out, tl.where(blind, float("-inf"), top + tl.log(total))


@triton.jit(do_not_specialize=[*COUNTS, "far_row", "row_first", "key_first", "many"])
def forward(
    Q, K, V, Out, Lse, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Bounds,
    FarOut, FarLse, Strength, NearLse, fo_b, fo_h, fo_t, fl_b, fl_h, strength_b, far_row,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, l_b, l_h, table_h, sharpen_b,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b,
    ByRow, ByKey, br_b, br_h, br_t, bk_b, bk_h, bk_t, row_first, key_first, many,
    Away, rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, TWO_SIDED: tl.constexpr, SLOPES: tl.constexpr, TABLE: tl.constexpr,
    CAP: tl.constexpr, SHARPEN: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, FAR: tl.constexpr, RELATE: tl.constexpr, DIAGONAL: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """out = softmax(scores) v and lse, the natural log of each row's sum, for one block of rows of one head.

    REACH: keys that are too far back to weigh anything are skipped; Away has how far that is.
    """
    block = tl.program_id(0)
    if AHEAD:
        # The last rows see most: they start first.
        block = tl.num_programs(0) - 1 - block
    h = tl.program_id(1)
    b = tl.program_id(2)
    g = h // group
    if not TMA:
        Q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
        K += b.to(tl.int64) * k_b + g.to(tl.int64) * k_h
        V += b.to(tl.int64) * v_b + g.to(tl.int64) * v_h
    row = block * BM
    at = row + tl.arange(0, BM)
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)

    if SHARPEN:
        c = tl.load(Sharpen + b.to(tl.int64) * sharpen_b + at, mask=at < rows, other=1.0)[:, None] * (scale * LOG2E)
    else:
        c = scale * LOG2E
    if TABLE:
        Table += h.to(tl.int64) * table_h
    behind_slope, ahead_slope = slopes_of(Slopes, Ahead, h, SLOPES)
    far_behind, far_ahead = ends_of(Table, first, last, TABLE)
    if DIAGONAL > 0:
        row_first -= within(row, DIAGONAL)
    if RELATE == 1 or RELATE == 3:
        ByRow += b.to(tl.int64) * br_b + h.to(tl.int64) * br_h + row.to(tl.int64) * br_t
    if RELATE >= 2:
        ByKey += b.to(tl.int64) * bk_b + h.to(tl.int64) * bk_h
    BOUNDED: tl.constexpr = DOCS or INDEXED
    sink, past, start, full, near, beyond, edge, end, i0, i, own = parts_of_keys(
        Docs, Index, Bounds, Away, b, h, block, rows, keys, offset, behind, ahead, sinks, first, last,
        docs_b, index_b, bounds_b, BM, BN, BEHIND, AHEAD, TWO_SIDED, SLOPES, TABLE, DOCS, INDEXED, RELATE, REACH,
    )  # fmt: skip
    if DOCS:
        KeyDocs += b.to(tl.int64) * key_docs_b
    if INDEXED:
        KeyIndex += b.to(tl.int64) * key_index_b

    m = tl.full([BM], FLOOR, tl.float32)
    l = tl.zeros([BM], tl.float32)
    if INDEXED:
        l += poison(Bounds + b.to(tl.int64) * bounds_b + block * 8)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    los = (sink, start, full, near, beyond, edge)
    his = (past, full, near, beyond, edge, end)
    fars = (0.0, 0.0, far_behind, 0.0, far_ahead, 0.0)
    band = Band(behind, ahead, sinks)
    bias = Bias(behind_slope, ahead_slope, Table, first, last, cap * LOG2E)
    vectors = Vectors(ByRow, ByKey, None, br_t, bk_t, row_first, key_first, many)
    for PART in tl.static_range(6):
        if has_keys(PART, BEHIND, BOUNDED, SLOPES, TABLE, RELATE, TWO_SIDED):
            acc, l, m = attend_keys(
                acc, l, m, q, K, V, b, g, los[PART], his[PART], fars[PART], c, i0, keys, k_t, v_t, band, bias, vectors,
                BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, kind_of_keys(PART), BEHIND, AHEAD, TWO_SIDED, SLOPES,
                TABLE, CAP, SHARPEN, FAST, DOCS, INDEXED, MASK_STAGES, RELATE, DIAGONAL,
                i, own, KeyDocs, KeyIndex, rows - row,
            )  # fmt: skip

    # A row that saw nothing has l = 0: zeros, and a log-sum-exp of −∞.
    blind = l == 0
    out = acc / tl.where(blind, 1.0, l)[:, None]
    KEPT: tl.constexpr = Lse.dtype.element_ty
    lse = m.to(KEPT) + tl.log2(tl.where(blind, 1.0, l).to(KEPT))
    if SLOPES and (CAP != 2) and (not INDEXED):
        # Slopes were counted from the first row on: see `sloped`.
        lse -= behind_slope * tl.arange(0, BM).to(tl.float32)
    lse = tl.where(blind, float("-inf"), lse * LN2)
    if FAR:
        FarOut += b.to(tl.int64) * fo_b + h.to(tl.int64) * fo_h
        FarLse += b.to(tl.int64) * fl_b + h.to(tl.int64) * fl_h
        if FAR == 2:
            Strength += b.to(tl.int64) * strength_b
            NearLse += b.to(tl.int64) * l_b + h.to(tl.int64) * l_h
        out, lse = _joined(out, lse, FarOut, FarLse, Strength, NearLse, at, rows, far_row, fo_t, VWIDTH, DV, FAR)
    tl.store(Lse + b.to(tl.int64) * l_b + h.to(tl.int64) * l_h + at, lse, mask=at < rows)
    Out += b.to(tl.int64) * o_b + h.to(tl.int64) * o_h
    put(Out, out, row, rows, o_t, BM, VWIDTH, DV)
