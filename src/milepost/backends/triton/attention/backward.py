# pyright: basic, reportMissingImports=false
"""Attention backward: dk and dv by blocks of keys, dq by blocks of rows. No atomics: the same bits every time.

P = exp(score − lse)      dP = grad · vᵀ      dS = P · (dP − delta),   delta = Σ grad · out − grad_lse
dv = Pᵀ grad              dq = dS k           dk = dSᵀ q,              each times what multiplies q·k
"""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.attention.loops import Band, Bias, Vectors, key_gradients, query_gradients
from milepost.backends.triton.attention.parts import (
    has_keys,
    has_rows,
    kind_of_keys,
    kind_of_rows,
    parts_of_keys,
    rows_looked_up,
    rows_seen,
)
from milepost.backends.triton.attention.score import (
    COUNTS,
    GRANULE,
    LN2,
    LOG2E,
    besides,
    between,
    ends_of,
    put,
    slopes_of,
    tile,
    up_to,
    within,
)
from milepost.backends.triton.packed.block_ranges import belonging, is_sink, numbered

_COUNTS = [*COUNTS, "row_first", "key_first", "many"]


@triton.jit(do_not_specialize=["rows"])
def prepare(
    Out, Grad, Lse, GradLse, Delta, Lse2,
    o_b, o_h, o_t, do_b, do_h, do_t, lse_b, lse_h, gl_b, gl_h, gl_t, l_b, l_h, rows,
    BM: tl.constexpr, VWIDTH: tl.constexpr, DV: tl.constexpr, GRAD_LSE: tl.constexpr,
):  # fmt: skip
    """delta, and the log-sum-exp in units of log2(e), +∞ for a row that saw nothing, so that its weights are 0.

    Both are written past the last row, up to a whole block, as for rows that saw nothing: nobody masks them later.
    """
    row = tl.program_id(0) * BM
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    out = tile(Out + b * o_b + h * o_h, 0, 0, row, rows, o_t, BM, VWIDTH, DV, False).to(tl.float32)
    grad = tile(Grad + b * do_b + h * do_h, 0, 0, row, rows, do_t, BM, VWIDTH, DV, False).to(tl.float32)
    delta = tl.sum(out * grad, 1)
    at = row + tl.arange(0, BM)
    inside = at < rows
    lse = tl.load(Lse + b * lse_b + h * lse_h + at, mask=inside, other=float("-inf"))
    if GRAD_LSE:
        grad_lse = tl.load(GradLse + b * gl_b + h * gl_h + at * gl_t, mask=inside, other=0.0)
        delta -= tl.where(lse == float("-inf"), 0.0, grad_lse)
    tl.store(Delta + b * l_b + h * l_h + at, delta)
    tl.store(Lse2 + b * l_b + h * l_h + at, tl.where(lse == float("-inf"), float("inf"), lse * LOG2E))


@triton.jit(do_not_specialize=[*_COUNTS, "apart_blocks", "part_rows", "more_keys"])
def backward_keys(
    Q, K, V, Grad, Lse2, Delta, DK, DV_, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Bounds,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, do_b, do_h, do_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    l_b, l_h, table_h, sharpen_b, docs_b, key_docs_b, index_b, key_index_b, bounds_b,
    ByRow, ByKey, br_b, br_h, br_t, bk_b, bk_h, bk_t, row_first, key_first, many, DByKey, Away,
    MoreDK, MoreDV, mk_b, mk_h, mk_t, mv_b, mv_h, mv_t, more_keys,
    rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap, apart_blocks, part_rows, dk_part, dv_part,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, TWO_SIDED: tl.constexpr, SLOPES: tl.constexpr, TABLE: tl.constexpr,
    CAP: tl.constexpr, SHARPEN: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    SINGLE: tl.constexpr, PARTS: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, ENDS: tl.constexpr, DIAGONAL: tl.constexpr, REACH: tl.constexpr,
    MORE: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys, summed over the query heads that share them.

    Sinks are seen by every row, where other keys are seen by a window of them. So the first `apart_blocks` blocks may
    be done in a launch of their own: PARTS, each of `part_rows` rows, each to its own dk and dv.

    MORE: what the first `more_keys` keys have already is added, 1: to dv, 2: to dk, too. SHORT: one masked loop.
    """
    if PARTS:
        j0 = tl.program_id(0) % apart_blocks * BN
    else:
        j0 = (tl.program_id(0) + apart_blocks) * BN
    g = tl.program_id(1)
    b = tl.program_id(2)
    b64 = b.to(tl.int64)
    g64 = g.to(tl.int64)
    if not TMA:
        K += b64 * k_b + g64 * k_h
        V += b64 * v_b + g64 * v_h
    if SHARPEN:
        Sharpen += b64 * sharpen_b
    j1 = tl.minimum(j0 + BN, keys) - 1
    k = tile(K, b, g, j0, keys, k_t, BN, WIDTH, D, TMA)
    v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
    BOUNDED: tl.constexpr = DOCS or INDEXED
    at = j0 + tl.arange(0, BN)
    index = at
    other = 0
    if BOUNDED:
        Bounds += b64 * bounds_b + tl.program_id(0) * 8
        start = tl.load(Bounds + 2)
        full = tl.load(Bounds + 3)
        edge = tl.load(Bounds + 4)
        end = tl.load(Bounds + 5)
    else:
        start, full, edge, end = rows_seen(j0, j1, offset, rows, behind, ahead, sinks, BM, BEHIND, AHEAD)
    if DOCS:
        other = belonging(KeyDocs + b64 * key_docs_b, at, at < keys, -2)
        Docs += b64 * docs_b
    if INDEXED:
        KeyIndex += b64 * key_index_b
        index = numbered(KeyIndex, at, at < keys, 0, True)
        Index += b64 * index_b
        offset = tl.load(Bounds + 6)
    sink = is_sink(KeyIndex, at, at < keys, sinks, INDEXED)
    near, beyond = rows_looked_up(full, edge, j0, j1, offset, first, last, BM, SLOPES, TABLE, RELATE, TWO_SIDED)
    if SHORT:
        full = end
        near = end
        beyond = end
        edge = end
    if PARTS:
        part = tl.program_id(0) // apart_blocks
        low = part * part_rows
        high = tl.minimum(low + part_rows, up_to(rows, BM))
        DK += part.to(tl.int64) * dk_part
        DV_ += part.to(tl.int64) * dv_part
        start = between(start, low, high)
        full = between(full, low, high)
        near = between(near, low, high)
        beyond = between(beyond, low, high)
        edge = between(edge, low, high)
        end = between(end, low, high)
    band = Band(behind, ahead, sinks)

    dk = tl.zeros([BN, WIDTH], tl.float32)
    dv = tl.zeros([BN, VWIDTH], tl.float32)
    # A loop of one is folded away, and its accumulators with it, which otherwise take registers twice.
    for member in range(1 if SINGLE else group):
        h = g * group + member
        h64 = h.to(tl.int64)
        if TMA:
            q = Q
            grad = Grad
        else:
            q = Q + b64 * q_b + h64 * q_h
            grad = Grad + b64 * do_b + h64 * do_h
        lse2 = Lse2 + b64 * l_b + h64 * l_h
        delta = Delta + b64 * l_b + h64 * l_h
        table = Table
        if TABLE:
            table = Table + h64 * table_h
        behind_slope, ahead_slope = slopes_of(Slopes, Ahead, h, SLOPES)
        far_behind, far_ahead = ends_of(table, first, last, TABLE)
        by_row = ByRow
        by_key = ByKey
        d_by_key = DByKey
        before_sum = tl.zeros([BN], tl.float32)
        if RELATE == 1 or RELATE == 3:
            by_row += b64 * br_b + h64 * br_h
        if RELATE >= 2:
            by_key += b64 * bk_b + h64 * bk_h + j0.to(tl.int64) * bk_t
            d_by_key += b64 * bk_b + h64 * bk_h + j0.to(tl.int64) * bk_t
        last_row = edge
        if REACH:
            # What all rows of the head have comes after what each block of them has.
            blocks = tl.cdiv(rows, GRANULE)
            away = tl.load(Away + (b64 * tl.num_programs(1) * group + h) * (blocks + 1) + blocks)
            last_row = tl.minimum(edge, up_to(tl.maximum(j1 + away + 1 - offset, 0), BM))
        los = (start, full, near, beyond, edge)
        his = (full, near, beyond, last_row, end)
        fars = (0.0, far_ahead, 0.0, far_behind, 0.0)
        bias = Bias(behind_slope, ahead_slope, table, first, last, cap * LOG2E)
        vectors = Vectors(by_row, by_key, d_by_key, br_t, bk_t, row_first, key_first, many)
        for PART in tl.static_range(5):
            if has_rows(PART, BEHIND, AHEAD, BOUNDED, SLOPES, TABLE, RELATE, TWO_SIDED, SHORT):
                dk, dv, before_sum = key_gradients(
                    dk, dv, before_sum, k, v, q, grad, lse2, delta, b, h, los[PART], his[PART], fars[PART], scale, j0,
                    offset, rows, keys, q_t, do_t, sink, band, bias, vectors,
                    BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, kind_of_rows(PART), BEHIND, AHEAD, TWO_SIDED, SLOPES,
                    TABLE, CAP, SHARPEN, FAST, DOCS, INDEXED, MASK_STAGES, RELATE, DIAGONAL, ENDS,
                    index, other, Docs, Index, Sharpen,
                )  # fmt: skip
        if (RELATE >= 2) and ENDS:
            ends = d_by_key + tl.arange(0, BN) * bk_t
            tl.store(ends, (before_sum * scale).to(DByKey.dtype.element_ty), mask=at < keys)
    dk = dk * scale
    if MORE == 2:
        dk += besides(MoreDK + b64 * mk_b + g64 * mk_h, j0, 0, more_keys, mk_t, BN, WIDTH, D)
    if MORE > 0:
        dv += besides(MoreDV + b64 * mv_b + g64 * mv_h, j0, 0, more_keys, mv_t, BN, VWIDTH, DV)
    put(DK + b64 * dk_b + g64 * dk_h, dk, j0, keys, dk_t, BN, WIDTH, D)
    put(DV_ + b64 * dv_b + g64 * dv_h, dv, j0, keys, dv_t, BN, VWIDTH, DV)


@triton.jit(do_not_specialize=[*_COUNTS, "more_row"])
def backward_rows(
    Q, K, V, Grad, Lse2, Delta, DQ, Sums, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Bounds,
    Numbers, Derivative,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, do_b, do_h, do_t, dq_b, dq_h, dq_t,
    l_b, l_h, table_h, sharpen_b, docs_b, key_docs_b, index_b, key_index_b, bounds_b, sums_b, sums_h,
    ByRow, ByKey, br_b, br_h, br_t, bk_b, bk_h, bk_t, row_first, key_first, many, DByRow, Away,
    MoreDQ, mq_b, mq_h, mq_t, more_row, rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, TWO_SIDED: tl.constexpr, SLOPES: tl.constexpr, TABLE: tl.constexpr,
    CAP: tl.constexpr, SHARPEN: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    SUM_BIAS: tl.constexpr, SUM_FAR: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, ENDS: tl.constexpr, DIAGONAL: tl.constexpr, REACH: tl.constexpr,
    MORE: tl.constexpr,
):  # fmt: skip
    """dq of one block of rows. Sums [b h blocks 4]: for the slopes behind and ahead, for distances past and before.

    SUM_BIAS 2: in place of slopes for the two Numbers [2 h] that the table follows from, of which the first is a
    factor, with its Derivative by the second.

    MORE: what the rows from more_row on have already is added.
    """
    block = tl.program_id(0)
    if AHEAD:
        block = tl.num_programs(0) - 1 - block
    h = tl.program_id(1)
    b = tl.program_id(2)
    g = h // group
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    if not TMA:
        Q += b64 * q_b + h64 * q_h
        Grad += b64 * do_b + h64 * do_h
        K += b64 * k_b + g.to(tl.int64) * k_h
        V += b64 * v_b + g.to(tl.int64) * v_h
    row = block * BM
    at = row + tl.arange(0, BM)
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
    grad = tile(Grad, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
    lse = tl.load(Lse2 + b64 * l_b + h64 * l_h + at)
    delta = tl.load(Delta + b64 * l_b + h64 * l_h + at)

    BOUNDED: tl.constexpr = DOCS or INDEXED
    c = scale * LOG2E
    factor = scale
    if DIAGONAL > 0:
        row_first -= within(row, DIAGONAL)
    if RELATE == 1 or RELATE == 3:
        ByRow += b64 * br_b + h64 * br_h + row.to(tl.int64) * br_t
        DByRow += b64 * br_b + h64 * br_h + row.to(tl.int64) * br_t
    if RELATE >= 2:
        ByKey += b64 * bk_b + h64 * bk_h
    if SHARPEN:
        sharpen = tl.load(Sharpen + b64 * sharpen_b + at, mask=at < rows, other=1.0)[:, None]
        c = c * sharpen
        factor = factor * sharpen
    if TABLE:
        Table += h64 * table_h
    if SUM_BIAS == 2:
        Derivative += h64 * table_h
    behind_slope, ahead_slope = slopes_of(Slopes, Ahead, h, SLOPES)
    far_behind, far_ahead = ends_of(Table, first, last, TABLE)
    if SLOPES and (CAP != 2) and (not INDEXED):
        # Slopes are counted from the first row on: see `sloped`.
        lse += behind_slope * tl.arange(0, BM).to(tl.float32)
    sink, past, start, full, near, beyond, edge, end, i0, i, own = parts_of_keys(
        Docs, Index, Bounds, Away, b, h, block, rows, keys, offset, behind, ahead, sinks, first, last,
        docs_b, index_b, bounds_b, BM, BN, BEHIND, AHEAD, TWO_SIDED, SLOPES, TABLE, DOCS, INDEXED, RELATE, REACH,
    )  # fmt: skip
    if DOCS:
        KeyDocs += b64 * key_docs_b
    if INDEXED:
        KeyIndex += b64 * key_index_b

    dq = tl.zeros([BM, WIDTH], tl.float32)
    s0 = tl.zeros([BM], tl.float32)
    s1 = tl.zeros([BM], tl.float32)
    s2 = tl.zeros([BM], tl.float32)
    s3 = tl.zeros([BM], tl.float32)
    los = (sink, start, full, near, beyond, edge)
    his = (past, full, near, beyond, edge, end)
    fars = (0.0, 0.0, far_behind, 0.0, far_ahead, 0.0)
    band = Band(behind, ahead, sinks)
    bias = Bias(behind_slope, ahead_slope, Table, first, last, cap * LOG2E, Derivative)
    vectors = Vectors(ByRow, ByKey, DByRow, br_t, bk_t, row_first, key_first, many)
    for PART in tl.static_range(6):
        if has_keys(PART, BEHIND, BOUNDED, SLOPES, TABLE, RELATE, TWO_SIDED):
            dq, s0, s1, s2, s3 = query_gradients(
                dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, los[PART], his[PART], fars[PART], c, i0, keys,
                k_t, v_t, band, bias, vectors,
                BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, kind_of_keys(PART), BEHIND, AHEAD, TWO_SIDED, SLOPES,
                TABLE, CAP, FAST, DOCS, INDEXED, MASK_STAGES, RELATE, DIAGONAL, SUM_BIAS, SUM_FAR,
                ENDS, i, own, KeyDocs, KeyIndex, rows - row, factor, row,
            )  # fmt: skip
    dq = dq * factor
    if ((RELATE == 1) or (RELATE == 3)) and ENDS:
        ends = (s3[:, None] * factor).to(DByRow.dtype.element_ty)
        tl.store(DByRow + (tl.arange(0, BM) * br_t)[:, None], ends, mask=(at < rows)[:, None])
    if MORE:
        dq += besides(MoreDQ + b64 * mq_b + h64 * mq_h, row, more_row, rows - more_row, mq_t, BM, WIDTH, D)
    put(DQ + b64 * dq_b + h64 * dq_h, dq, row, rows, dq_t, BM, WIDTH, D)
    if (SUM_BIAS > 0) or SUM_FAR:
        if SUM_BIAS == 2:
            s0 = s0 * (LN2 / tl.load(Numbers + h))
            s1 = s1 * LN2
        Sums += b64 * sums_b + h64 * sums_h + block * 4
        tl.store(Sums, tl.sum(s0, 0))
        tl.store(Sums + 1, tl.sum(s1, 0))
        tl.store(Sums + 2, tl.sum(s2, 0))
        tl.store(Sums + 3, tl.sum(s3, 0))
