# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: N803, N806
"""Attention backward: dk and dv by blocks of keys, dq by blocks of rows. No atomics: the same bits every time.

P = exp(score − lse)      dP = grad · vᵀ      dS = P · (dP − delta),   delta = Σ grad · out − grad_lse
dv = Pᵀ grad              dq = dS k           dk = dSᵀ q,              each times what multiplies q·k
"""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.bounds import belonging, numbered
from milepost.backends.triton.score import (
    GRANULE,
    LN2,
    LOG2E,
    addressed,
    apart,
    besides,
    between,
    distances,
    finished,
    looked_up,
    plus_eights,
    put,
    put_by_eights,
    put_related,
    related,
    related_from,
    seen,
    sloped,
    tile,
    up_to,
    weighed,
    within,
)

_COUNTS = ["rows", "keys", "group", "offset", "behind", "ahead", "sinks", "first", "last", "row_first", "key_first",
           "many"]  # fmt: skip


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


@triton.jit
def _along(x, UPRIGHT: tl.constexpr):
    """A number a row, laid along the rows of a tile."""
    if UPRIGHT:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def _across(x, UPRIGHT: tl.constexpr):
    """A number a key, laid along the keys of a tile."""
    if UPRIGHT:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def _rows_of_keys(
    dk, dv, before_sum, k, v, Q, Grad, Lse2, Delta, Sharpen, b, h, lo, hi, j0, offset, scale, rows, keys, q_t, do_t,
    behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, far, cap, index, other, Docs, Index,
    ByRow, ByKey, DByKey, br_t, bk_t, row_first, key_first, many,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    MASK: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr, CAP: tl.constexpr, SHARPEN: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, SPAN: tl.constexpr, SHIFT: tl.constexpr, FAST: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, UPRIGHT: tl.constexpr, LEAD: tl.constexpr, DOCS: tl.constexpr,
    INDEXED: tl.constexpr, MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, ENDS: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Add what the rows lo … hi of one head give to dk and dv.

    UPRIGHT tiles have rows down and keys across, and reach dk and dv through shared memory; the others are transposed
    and stay in registers. Keys past the end give garbage in their own rows of dk and dv only, which nobody writes: no
    mask for them. Rows past the end have a log-sum-exp of +∞, so that their weights are 0. `index` and `other`, the
    keys' own, are read with a MASK: see `_span` of the forward pass. RELATE: what tables of queries add to the scores
    gets its gradient here, by key and distance; before_sum has that of all distances from the first on ahead.
    """
    READ: tl.constexpr = MASK and INDEXED
    # Documents and indices take shared memory, too.
    FEWER: tl.constexpr = MASK_STAGES if MASK and (DOCS or INDEXED) else None
    STAGES: tl.constexpr = 1 if READ and (TABLE == 2) else FEWER
    down = tl.arange(0, BM)
    across = tl.arange(0, BN)
    place = _across(j0 + across, UPRIGHT)
    j = _across(index, UPRIGHT) if READ else place
    own_first = key_first - within(j0, EIGHTS)
    for row in tl.range(lo, hi, BM, num_stages=STAGES):
        row = tl.multiple_of(row, BM)
        i0 = offset + row
        q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
        lse = _along(tl.load(Lse2 + row + down), UPRIGHT)
        i = _along(numbered(Index, row + down, row + down < rows, offset, READ), UPRIGHT)
        by_row = ByRow
        if (RELATE == 1) or (RELATE == 3):
            by_row += row.to(tl.int64) * br_t
        if (RELATE > 0) and (EIGHTS == 0):
            # Asked for before the product, which it comes beside.
            if UPRIGHT:
                more = related(
                    by_row, ByKey, i, j, rows - row, keys - j0, row_first, key_first, many, br_t, bk_t, BM, BN, RELATE
                )
            else:
                more = related(
                    by_row, ByKey, i.T, j.T, rows - row, keys - j0, row_first, key_first, many, br_t, bk_t, BM, BN,
                    RELATE,
                ).T  # fmt: skip
        if UPRIGHT:
            x = tl.dot(q, k.T, input_precision=PRECISION)
        else:
            x = tl.dot(k, q.T, input_precision=PRECISION)
        if LEAD:
            # Begun before the exponentials, which then run beside it.
            grad = tile(Grad, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
            if UPRIGHT:
                dp = tl.dot(grad, v.T, input_precision=PRECISION)
            else:
                dp = tl.dot(v, grad.T, input_precision=PRECISION)
        if (RELATE > 0) and (EIGHTS > 0):
            x = plus_eights(
                x, by_row, ByKey, row_first - within(row, EIGHTS), own_first, i0, j0, rows - row, keys - j0, br_t, bk_t,
                BM, BN, RELATE, UPRIGHT, PRECISION,
            )  # fmt: skip
        elif RELATE > 0:
            x += more
        c = scale * LOG2E
        if SHARPEN:
            sharpen = _along(tl.load(Sharpen + row + down, mask=row + down < rows, other=1.0), UPRIGHT)
            c = c * sharpen
        bent = 0.0
        if (SLOPE == 0) and (TABLE < 2) and (CAP == 0):
            p = weighed(x * c, lse - far)
        else:
            bias = far
            if READ and (TABLE == 2):
                bias = addressed(Table, i, j, first, last)
            elif TABLE == 2:
                entries = distances(Table, i0, j0, first, last, BM, BN, SPAN)
                bias = looked_up(entries, BM, BN, UPRIGHT)
            if SLOPE > 0:
                near = tl.min(index, 0) if READ else i0
                bias = bias + sloped(i, j, near, behind_slope, ahead_slope, SLOPE, SHIFT)
            x, bent = finished(x * c, bias, cap, (SLOPE > 0) or (TABLE > 0), CAP, FAST)
            if SHIFT:
                lse += behind_slope * (i - i0).to(tl.float32)
            p = weighed(x, lse)
        if MASK:
            own = 0
            theirs = 0
            if DOCS:
                own = _along(belonging(Docs, row + down, row + down < rows, -3), UPRIGHT)
                theirs = _across(other, UPRIGHT)
            visible = seen(i, j, place, own, theirs, keys, behind, ahead, sinks, BEHIND, AHEAD, DOCS)
            p = tl.where(visible, p, 0.0)
        if not LEAD:
            grad = tile(Grad, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
        if UPRIGHT:
            if not LEAD:
                dp = tl.dot(grad, v.T, input_precision=PRECISION)
            dv = tl.dot(p.to(grad.dtype).T, grad, dv, input_precision=PRECISION)
        else:
            dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision=PRECISION)
            if not LEAD:
                dp = tl.dot(v, grad.T, input_precision=PRECISION)
        ds = p * (dp - _along(tl.load(Delta + row + down), UPRIGHT))
        if CAP > 0:
            ds = ds * (1 - bent * bent)
        if SHARPEN:
            ds = ds * sharpen
        if RELATE >= 2:
            if ENDS:
                before_sum += tl.sum(tl.where(i - j <= key_first, ds, 0.0), 0 if UPRIGHT else 1)
            if EIGHTS > 0:
                put_by_eights(
                    DByKey, ds * scale, own_first, i0, _across(across, UPRIGHT), _along(down, UPRIGHT), keys - j0, bk_t
                )
            elif UPRIGHT:
                shown = visible if MASK else 0
                put_related(DByKey, ds * scale, i - j, shown, keys - j0, key_first, many, bk_t, BN, MASK, ENDS)
            else:
                shown = visible.T if MASK else 0
                put_related(DByKey, ds.T * scale, i.T - j.T, shown, keys - j0, key_first, many, bk_t, BN, MASK, ENDS)
        if UPRIGHT:
            dk = tl.dot(ds.to(q.dtype).T, q, dk, input_precision=PRECISION)
        else:
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv, before_sum


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
    CAP: tl.constexpr, SHARPEN: tl.constexpr, SPAN: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, UPRIGHT: tl.constexpr, SINGLE: tl.constexpr, PARTS: tl.constexpr,
    LEAD: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, ENDS: tl.constexpr, EIGHTS: tl.constexpr, REACH: tl.constexpr,
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
    SHIFT: tl.constexpr = SLOPES and (CAP != 2) and (not INDEXED)
    BOUNDED: tl.constexpr = DOCS or INDEXED
    cap = cap * LOG2E

    # Blocks of rows: [start, full), masked; [full, near), [near, beyond), [beyond, edge), whole; [edge, end), masked.
    start = 0
    full = 0
    end = up_to(rows, BM)
    if AHEAD:
        start = tl.minimum(tl.maximum(j0 - ahead - offset, 0) // BM * BM, end)
        full = tl.minimum(up_to(tl.maximum(j1 - ahead - offset, 0), BM), end)
    edge = end
    if BEHIND:
        whole = j0 + behind - offset
        edge = tl.where(whole >= rows, end, tl.maximum(whole, 0) // BM * BM)
        if j0 >= sinks:
            end = tl.minimum(end, up_to(tl.maximum(j1 + behind - offset, 0), BM))
    full = tl.minimum(full, end)
    start = tl.minimum(start, end)
    edge = between(edge, full, end)
    at = j0 + tl.arange(0, BN)
    index = at
    other = 0
    if BOUNDED:
        Bounds += b64 * bounds_b + tl.program_id(0) * 8
        start = tl.load(Bounds + 2)
        full = tl.load(Bounds + 3)
        edge = tl.load(Bounds + 4)
        end = tl.load(Bounds + 5)
    if DOCS:
        other = belonging(KeyDocs + b64 * key_docs_b, at, at < keys, -2)
        Docs += b64 * docs_b
    if INDEXED:
        index = numbered(KeyIndex + b64 * key_index_b, at, at < keys, 0, True)
        Index += b64 * index_b
        offset = tl.load(Bounds + 6)
    near = full
    beyond = full
    LOOKED: tl.constexpr = TABLE or (RELATE > 0)
    if LOOKED:
        corner = j0 // GRANULE * GRANULE - offset
        beyond = between(up_to(tl.maximum(corner + GRANULE - 1 + last, 0), GRANULE), full, edge)
        if TWO_SIDED and TABLE:
            near = between(tl.maximum(corner - GRANULE + 1 + first + GRANULE, 0) // GRANULE * GRANULE, full, beyond)
    elif SLOPES and TWO_SIDED:
        near = between(tl.maximum(j0 - offset, 0) // BM * BM, full, edge)
        beyond = between(up_to(tl.maximum(j1 - offset, 0), BM), near, edge)
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
    ANY: tl.constexpr = 2 if SLOPES else 0
    BACK: tl.constexpr = (2 if LOOKED and TWO_SIDED else 1) if SLOPES else 0
    FRONT: tl.constexpr = (2 if LOOKED else 3) if SLOPES else 0
    MIDDLE: tl.constexpr = (2 if TWO_SIDED else 1) if SLOPES else 0
    LOOK: tl.constexpr = 2 if TABLE else 0
    ONE: tl.constexpr = 1 if TABLE else 0

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
        behind_slope = 0.0
        ahead_slope = 0.0
        if SLOPES:
            behind_slope = tl.load(Slopes + h) * LOG2E
            ahead_slope = tl.load(Ahead + h) * LOG2E
        far_behind = 0.0
        far_ahead = 0.0
        table = Table
        if TABLE:
            table = Table + h64 * table_h
            far_behind = tl.load(table + (last - first)) * LOG2E
            far_ahead = tl.load(table) * LOG2E
        by_row = ByRow
        by_key = ByKey
        d_by_key = DByKey
        before_sum = tl.zeros([BN], tl.float32)
        if RELATE == 1 or RELATE == 3:
            by_row += b64 * br_b + h64 * br_h
        if RELATE >= 2:
            by_key += b64 * bk_b + h64 * bk_h + j0.to(tl.int64) * bk_t
            d_by_key += b64 * bk_b + h64 * bk_h + j0.to(tl.int64) * bk_t
        if AHEAD or BOUNDED:
            dk, dv, before_sum = _rows_of_keys(
                dk, dv, before_sum, k, v, q, grad, lse2, delta, Sharpen, b, h, start, full, j0, offset, scale, rows,
                keys, q_t, do_t, behind, ahead, sinks, behind_slope, ahead_slope, table, first, last, 0.0, cap,
                index, other, Docs, Index, by_row, by_key, d_by_key, br_t, bk_t, row_first, key_first, many,
                BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
                PRECISION, UPRIGHT, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
            )  # fmt: skip
        if TWO_SIDED and (TABLE or SLOPES) and (RELATE == 0) and (not SHORT):
            dk, dv, before_sum = _rows_of_keys(
                dk, dv, before_sum, k, v, q, grad, lse2, delta, Sharpen, b, h, full, near, j0, offset, scale, rows,
                keys, q_t, do_t, behind, ahead, sinks, behind_slope, ahead_slope, table, first, last, far_ahead, cap,
                index, other, Docs, Index, by_row, by_key, d_by_key, br_t, bk_t, row_first, key_first, many,
                BM, BN, WIDTH, VWIDTH, D, DV, False, FRONT, ONE, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
                PRECISION, UPRIGHT, LEAD, DOCS, INDEXED, MASK_STAGES, 0, ENDS, EIGHTS,
            )  # fmt: skip
        if (LOOKED or (MIDDLE == 2)) and (not SHORT):
            dk, dv, before_sum = _rows_of_keys(
                dk, dv, before_sum, k, v, q, grad, lse2, delta, Sharpen, b, h, near, beyond, j0, offset, scale, rows,
                keys, q_t, do_t, behind, ahead, sinks, behind_slope, ahead_slope, table, first, last, 0.0, cap,
                index, other, Docs, Index, by_row, by_key, d_by_key, br_t, bk_t, row_first, key_first, many,
                BM, BN, WIDTH, VWIDTH, D, DV, False, MIDDLE, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
                PRECISION, UPRIGHT, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
            )  # fmt: skip
        last_row = edge
        if REACH:
            # What all rows of the head have comes after what each block of them has.
            blocks = tl.cdiv(rows, GRANULE)
            away = tl.load(Away + (b64 * tl.num_programs(1) * group + h) * (blocks + 1) + blocks)
            last_row = tl.minimum(edge, up_to(tl.maximum(j1 + away + 1 - offset, 0), BM))
        if not SHORT:
            dk, dv, before_sum = _rows_of_keys(
                dk, dv, before_sum, k, v, q, grad, lse2, delta, Sharpen, b, h, beyond, last_row, j0, offset, scale,
                rows, keys, q_t, do_t, behind, ahead, sinks, behind_slope, ahead_slope, table, first, last, far_behind,
                cap, index, other, Docs, Index, by_row, by_key, d_by_key, br_t, bk_t, row_first, key_first, many,
                BM, BN, WIDTH, VWIDTH, D, DV, False, BACK, ONE, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
                PRECISION, UPRIGHT, LEAD, DOCS, INDEXED, MASK_STAGES, 0, ENDS, EIGHTS,
            )  # fmt: skip
        if (BEHIND or BOUNDED) and (not SHORT):
            dk, dv, before_sum = _rows_of_keys(
                dk, dv, before_sum, k, v, q, grad, lse2, delta, Sharpen, b, h, edge, end, j0, offset, scale, rows,
                keys, q_t, do_t, behind, ahead, sinks, behind_slope, ahead_slope, table, first, last, 0.0, cap,
                index, other, Docs, Index, by_row, by_key, d_by_key, br_t, bk_t, row_first, key_first, many,
                BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
                PRECISION, UPRIGHT, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
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


@triton.jit
def _keys_of_rows(
    dq, behind_sum, ahead_sum, past_sum, before_sum, q, grad, lse, delta, K, V, b, g, lo, hi, row, i0, c, keys,
    k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, far, cap, i, own,
    KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows_left, br_t, bk_t, row_first, key_first, many,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    MASK: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr, CAP: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, TWO_SIDED: tl.constexpr, SPAN: tl.constexpr, SHIFT: tl.constexpr,
    FAST: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, SUM_BIAS: tl.constexpr, SUM_FAR: tl.constexpr,
    LEAD: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, ENDS: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Add what the keys lo … hi give to dq, and, where asked, to the sums that biases need.

    SUM_BIAS, 1: dS times the distances behind and ahead, for slopes. 2: dS times the table, and times its Derivative,
    in units of log2(e); every distance that is seen is in the table then.

    Distances past the table's ends: block by block, or where DOCS or INDEXED one by one. RELATE: what tables of keys
    add to the scores gets its gradient here, dS · factor, by row and distance; before_sum has that of all distances
    from the first on ahead.
    """
    READ: tl.constexpr = MASK and INDEXED
    # Documents and indices take shared memory, too.
    FEWER: tl.constexpr = MASK_STAGES if MASK and (DOCS or INDEXED) else None
    STAGES: tl.constexpr = 1 if READ and (TABLE == 2) else FEWER
    if not READ:
        i = (i0 + tl.arange(0, BM))[:, None]
    for j0 in tl.range(lo, hi, BN, num_stages=STAGES):
        j0 = tl.multiple_of(j0, BN)
        at = j0 + tl.arange(0, BN)
        j = numbered(KeyIndex, at, at < keys, 0, READ)[None, :]
        if (RELATE > 0) and (EIGHTS == 0):
            # Asked for before the product, which it comes beside.
            more = related_from(
                ByRow, ByKey, i, j, j0, rows_left, keys, row_first, key_first, many, br_t, bk_t, BM, BN, RELATE
            )
        k = tile(K, b, g, j0, keys, k_t, BN, WIDTH, D, TMA)
        x = tl.dot(q, k.T, input_precision=PRECISION)
        if (RELATE > 0) and (EIGHTS > 0):
            by_key = ByKey
            if RELATE >= 2:
                by_key += j0.to(tl.int64) * bk_t
            x = plus_eights(
                x, ByRow, by_key, row_first, key_first - within(j0, EIGHTS), i0, j0, rows_left, keys - j0, br_t, bk_t,
                BM, BN, RELATE, True, PRECISION,
            )  # fmt: skip
        elif RELATE > 0:
            x += more
        if LEAD:
            # Begun before the exponentials, which then run beside it.
            v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
            dp = tl.dot(grad, v.T, input_precision=PRECISION)
        bent = 0.0
        if (SLOPE == 0) and (TABLE < 2) and (CAP == 0):
            p = weighed(x * c, (lse - far)[:, None])
        else:
            bias = far
            if READ and (TABLE == 2):
                bias = addressed(Table, i, j, first, last)
            elif TABLE == 2:
                entries = distances(Table, i0, j0, first, last, BM, BN, SPAN)
                bias = looked_up(entries, BM, BN, True)
            if SLOPE > 0:
                bias = bias + sloped(i, j, i0, behind_slope, ahead_slope, SLOPE, SHIFT)
            x, bent = finished(x * c, bias, cap, (SLOPE > 0) or (TABLE > 0), CAP, FAST)
            p = weighed(x, lse[:, None])
        if MASK:
            other = belonging(KeyDocs, at, at < keys, -2)[None, :] if DOCS else 0
            visible = seen(i, j, at[None, :], own, other, keys, behind, ahead, sinks, BEHIND, AHEAD, DOCS)
            p = tl.where(visible, p, 0.0)
        if not LEAD:
            v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
            dp = tl.dot(grad, v.T, input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        if CAP == 2:
            ds = ds * (1 - bent * bent)
        if (SUM_BIAS == 2) and (TABLE == 2):
            if READ:
                grown = addressed(Derivative, i, j, first, last)
            else:
                steps = distances(Derivative, i0, j0, first, last, BM, BN, SPAN)
                grown = looked_up(steps, BM, BN, True)
            behind_sum += tl.sum(ds * bias, 1)
            ahead_sum += tl.sum(ds * grown, 1)
        if SUM_BIAS == 1:
            away = apart(i, j, i0)
            if SLOPE == 1:
                behind_sum -= tl.sum(ds * away, 1)
            elif SLOPE == 3:
                ahead_sum += tl.sum(ds * away, 1)
            else:
                behind_sum -= tl.sum(tl.where(away > 0, ds * away, 0.0), 1)
                ahead_sum += tl.sum(tl.where(away < 0, ds * away, 0.0), 1)
        if SUM_FAR and (DOCS or INDEXED):
            before_sum += tl.sum(tl.where(i - j <= first, ds, 0.0), 1)
            past_sum += tl.sum(tl.where((i - j >= last) & (i - j > first), ds, 0.0), 1)
        elif SUM_FAR and (TABLE > 0):
            corner = i0 - row + row // GRANULE * GRANULE
            first_key = j0 // GRANULE * GRANULE
            summed = tl.sum(ds, 1)
            is_past = corner - (first_key + GRANULE - 1) >= last
            past_sum += tl.where(is_past, summed, 0.0)
            if TWO_SIDED:
                is_before = corner + GRANULE - 1 - first_key <= first
                before_sum += tl.where(is_past, 0.0, tl.where(is_before, summed, 0.0))
        if CAP == 1:
            ds = ds * (1 - bent * bent)
        if RELATE == 1 or RELATE == 3:
            if ENDS:
                before_sum += tl.sum(tl.where(i - j <= row_first, ds, 0.0), 1)
            if EIGHTS > 0:
                put_by_eights(
                    DByRow, ds * factor, row_first, j0, tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :],
                    rows_left, br_t,
                )  # fmt: skip
            else:
                shown = visible.T if MASK else 0
                put_related(DByRow, (ds * factor).T, i.T - j.T, shown, rows_left, row_first, many, br_t, BM, MASK, ENDS)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq, behind_sum, ahead_sum, past_sum, before_sum


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
    CAP: tl.constexpr, SHARPEN: tl.constexpr, SPAN: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, SUM_BIAS: tl.constexpr, SUM_FAR: tl.constexpr,
    LEAD: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, ENDS: tl.constexpr, EIGHTS: tl.constexpr, REACH: tl.constexpr,
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
    i0 = offset + row
    i1 = offset + tl.minimum(row + BM, rows) - 1
    at = row + tl.arange(0, BM)
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
    grad = tile(Grad, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
    lse = tl.load(Lse2 + b64 * l_b + h64 * l_h + at)
    delta = tl.load(Delta + b64 * l_b + h64 * l_h + at)

    SHIFT: tl.constexpr = SLOPES and (CAP != 2) and (not INDEXED)
    BOUNDED: tl.constexpr = DOCS or INDEXED
    c = scale * LOG2E
    factor = scale
    if EIGHTS > 0:
        row_first -= within(row, EIGHTS)
    if RELATE == 1 or RELATE == 3:
        ByRow += b64 * br_b + h64 * br_h + row.to(tl.int64) * br_t
        DByRow += b64 * br_b + h64 * br_h + row.to(tl.int64) * br_t
    if RELATE >= 2:
        ByKey += b64 * bk_b + h64 * bk_h
    if SHARPEN:
        sharpen = tl.load(Sharpen + b64 * sharpen_b + at, mask=at < rows, other=1.0)[:, None]
        c = c * sharpen
        factor = factor * sharpen
    behind_slope = 0.0
    ahead_slope = 0.0
    if SLOPES:
        behind_slope = tl.load(Slopes + h) * LOG2E
        ahead_slope = tl.load(Ahead + h) * LOG2E
        if SHIFT:
            lse += behind_slope * tl.arange(0, BM).to(tl.float32)
    far_behind = 0.0
    far_ahead = 0.0
    if TABLE:
        Table += h64 * table_h
        far_behind = tl.load(Table + (last - first)) * LOG2E
        far_ahead = tl.load(Table) * LOG2E
    if SUM_BIAS == 2:
        Derivative += h64 * table_h
    cap = cap * LOG2E

    # The same blocks of keys as in the forward pass.
    end = up_to(keys, BN)
    edge = keys // BN * BN
    if AHEAD:
        end = up_to(between(i1 + ahead + 1, 0, keys), BN)
        edge = between(i0 + ahead + 1, 0, keys) // BN * BN
    start = 0
    full = 0
    sink = 0
    past = 0
    if BEHIND:
        start = tl.minimum(tl.maximum(i0 - behind + 1, 0) // BN * BN, end)
        full = tl.minimum(up_to(tl.maximum(i1 - behind + 1, 0), BN), end)
        past = tl.minimum(up_to(sinks, BN), start)
    edge = tl.maximum(edge, full)
    if REACH:
        place = (b64 * tl.num_programs(1) + h) * (tl.cdiv(rows, GRANULE) + 1) + row // GRANULE
        full = tl.minimum(tl.maximum(i0 - tl.load(Away + place), 0) // BN * BN, edge)
        start = full
    i = (i0 + tl.arange(0, BM))[:, None]
    own = 0
    some = i0
    if BOUNDED:
        Bounds += b64 * bounds_b + block * 8
        sink = tl.load(Bounds)
        past = tl.load(Bounds + 1)
        start = tl.load(Bounds + 2)
        full = tl.load(Bounds + 3)
        edge = tl.load(Bounds + 4)
        end = tl.load(Bounds + 5)
    if DOCS:
        own = belonging(Docs + b64 * docs_b, at, at < rows, -3)[:, None]
        KeyDocs += b64 * key_docs_b
    if INDEXED:
        Index += b64 * index_b
        KeyIndex += b64 * key_index_b
        i = numbered(Index, at, at < rows, 0, True)[:, None]
        some = tl.load(Index + row).to(tl.int32)
        offset = tl.load(Bounds + 6)
        i0 = offset + row
    near = edge
    beyond = edge
    LOOKED: tl.constexpr = TABLE or (RELATE > 0)
    if LOOKED:
        corner = offset + row // GRANULE * GRANULE
        near = between(tl.maximum(corner - last + 1, 0) // GRANULE * GRANULE, full, edge)
        if TWO_SIDED and TABLE:
            beyond = between(up_to(tl.maximum(corner + GRANULE - 1 - first, 0), GRANULE), near, edge)
    elif SLOPES and TWO_SIDED:
        near = between(tl.maximum(i0 + 1, 0) // BN * BN, full, edge)
        beyond = between(up_to(tl.maximum(i0 + BM, 0), BN), near, edge)
    ANY: tl.constexpr = 2 if SLOPES else 0
    BACK: tl.constexpr = (2 if LOOKED and TWO_SIDED else 1) if SLOPES else 0
    FRONT: tl.constexpr = (2 if LOOKED else 3) if SLOPES else 0
    MIDDLE: tl.constexpr = (2 if TWO_SIDED else 1) if SLOPES else 0
    LOOK: tl.constexpr = 2 if TABLE else 0
    ONE: tl.constexpr = 1 if TABLE else 0

    dq = tl.zeros([BM, WIDTH], tl.float32)
    s0 = tl.zeros([BM], tl.float32)
    s1 = tl.zeros([BM], tl.float32)
    s2 = tl.zeros([BM], tl.float32)
    s3 = tl.zeros([BM], tl.float32)
    if BEHIND:
        dq, s0, s1, s2, s3 = _keys_of_rows(
            dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, sink, past, row, some, c,
            keys, k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, 0.0, cap,
            i, own, KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, BEHIND, AHEAD, TWO_SIDED, SPAN, SHIFT, FAST, TMA,
            PRECISION, SUM_BIAS, SUM_FAR, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
        )  # fmt: skip
    if BEHIND or BOUNDED:
        dq, s0, s1, s2, s3 = _keys_of_rows(
            dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, start, full, row, some, c,
            keys, k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, 0.0, cap,
            i, own, KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, BEHIND, AHEAD, TWO_SIDED, SPAN, SHIFT, FAST, TMA,
            PRECISION, SUM_BIAS, SUM_FAR, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
        )  # fmt: skip
    dq, s0, s1, s2, s3 = _keys_of_rows(
        dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, full, near, row, i0, c,
        keys, k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, far_behind,
        cap, i, own, KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows - row, br_t, bk_t, row_first, key_first,
        many,
        BM, BN, WIDTH, VWIDTH, D, DV, False, BACK, ONE, CAP, BEHIND, AHEAD, TWO_SIDED, SPAN, SHIFT, FAST, TMA,
        PRECISION, SUM_BIAS, SUM_FAR, LEAD, DOCS, INDEXED, MASK_STAGES, 0, ENDS, EIGHTS,
    )  # fmt: skip
    if LOOKED or (MIDDLE == 2):
        dq, s0, s1, s2, s3 = _keys_of_rows(
            dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, near, beyond, row, i0, c,
            keys, k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, 0.0, cap,
            i, own, KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, False, MIDDLE, LOOK, CAP, BEHIND, AHEAD, TWO_SIDED, SPAN, SHIFT, FAST, TMA,
            PRECISION, SUM_BIAS, SUM_FAR and BOUNDED, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
        )  # fmt: skip
    if TWO_SIDED and (TABLE or SLOPES) and (RELATE == 0):
        dq, s0, s1, s2, s3 = _keys_of_rows(
            dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, beyond, edge, row, i0, c,
            keys, k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, far_ahead,
            cap, i, own, KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows - row, br_t, bk_t, row_first, key_first,
            many,
            BM, BN, WIDTH, VWIDTH, D, DV, False, FRONT, ONE, CAP, BEHIND, AHEAD, TWO_SIDED, SPAN, SHIFT, FAST, TMA,
            PRECISION, SUM_BIAS, SUM_FAR, LEAD, DOCS, INDEXED, MASK_STAGES, 0, ENDS, EIGHTS,
        )  # fmt: skip
    dq, s0, s1, s2, s3 = _keys_of_rows(
        dq, s0, s1, s2, s3, q, grad, lse, delta, K, V, b, g, edge, end, row, some, c,
        keys, k_t, v_t, behind, ahead, sinks, behind_slope, ahead_slope, Table, Derivative, first, last, 0.0, cap,
        i, own, KeyDocs, KeyIndex, ByRow, ByKey, DByRow, factor, rows - row, br_t, bk_t, row_first, key_first, many,
        BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, BEHIND, AHEAD, TWO_SIDED, SPAN, SHIFT, FAST, TMA,
        PRECISION, SUM_BIAS, SUM_FAR, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, ENDS, EIGHTS,
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
