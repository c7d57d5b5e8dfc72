# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: N803, N806, E741
"""Attention forward: one program a block of rows, one pass over the keys it sees."""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.bounds import belonging, numbered
from milepost.backends.triton.score import (
    FLOOR,
    GRANULE,
    LN2,
    LOG2E,
    addressed,
    between,
    distances,
    finished,
    looked_up,
    plus_eights,
    put,
    related_from,
    seen,
    sloped,
    tile,
    up_to,
    within,
)


@triton.jit
def _span(
    acc, l, m, led, q, K, V, b, g, lo, hi, i0, c, keys, k_t, v_t,
    behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, far, cap, i, own, KeyDocs, KeyIndex,
    ByRow, ByKey, rows_left, br_t, bk_t, row_first, key_first, many,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    MASK: tl.constexpr, SLOPE: tl.constexpr, TABLE: tl.constexpr, CAP: tl.constexpr, SHARPEN: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, SPAN: tl.constexpr, SHIFT: tl.constexpr, FAST: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, RELATE: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Go over the keys lo … hi, in blocks of one kind.

    LEAD: the product with the next block is begun before this block's softmax, so that tensor cores and exponentials
    work at the same time; `led` is the product with the block at lo, and the one at hi is returned.

    SLOPE 0: none, 1: every key behind, 2: any, 3: every key ahead. TABLE 0: none, 1: one entry for all, `far`, 2:
    looked up. RELATE: see `related`; 0 where there is nothing to add.

    MASK with DOCS: `own`, the rows' documents, must be the keys'. MASK with INDEXED: rows have the indices `i`, keys
    have theirs; otherwise rows count up from i0 and keys from 0.
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
        if LEAD:
            x = led
            k = tile(K, b, g, j0 + BN, keys, k_t, BN, WIDTH, D, TMA)
            led = tl.dot(q, k.T, input_precision=PRECISION)
        else:
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
        if (SLOPE == 0) and (TABLE < 2) and (CAP == 0) and (not SHARPEN) and (not MASK):
            # Nothing but a factor and a number for the whole block: one multiply-add a score.
            highest = tl.maximum(m, tl.max(x, 1) * c + far)
            p = tl.exp2(x * c - (highest - far)[:, None])
        else:
            x = x * c
            bias = far
            if READ and (TABLE == 2):
                bias = addressed(Table, i, j, first, last)
            elif TABLE == 2:
                entries = distances(Table, i0, j0, first, last, BM, BN, SPAN)
                bias = looked_up(entries, BM, BN, True)
            if SLOPE > 0:
                bias = bias + sloped(i, j, i0, behind_slope, ahead_slope, SLOPE, SHIFT)
            x, _ = finished(x, bias, cap, (SLOPE > 0) or (TABLE > 0), CAP, FAST)
            if MASK:
                other = belonging(KeyDocs, at, at < keys, -2)[None, :] if DOCS else 0
                visible = seen(i, j, at[None, :], own, other, keys, behind, ahead, sinks, BEHIND, AHEAD, DOCS)
                x = tl.where(visible, x, float("-inf"))
            highest = tl.maximum(m, tl.max(x, 1))
            p = tl.exp2(x - highest[:, None])
        kept = tl.exp2(m - highest)
        l = l * kept + tl.sum(p, 1)
        acc = acc * kept[:, None]
        v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m = highest
    return acc, l, m, led


@triton.jit
def _joined(
    out, lse, FarOut, FarLse, Strength, NearLse, at, rows, far_row, far_t,
    VWIDTH: tl.constexpr, DV: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Near keys' answer joined with that of the far ones, which rows from far_row on have.

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


@triton.jit(
    do_not_specialize=[
        "rows", "keys", "group", "offset", "behind", "ahead", "sinks", "first", "last", "far_row", "row_first",
        "key_first", "many",
    ]
)  # fmt: skip
def forward(
    Q, K, V, Out, Lse, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Bounds,
    FarOut, FarLse, Strength, NearLse, fo_b, fo_h, fo_t, fl_b, fl_h, strength_b, far_row,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, l_b, l_h, table_h, sharpen_b,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b,
    ByRow, ByKey, br_b, br_h, br_t, bk_b, bk_h, bk_t, row_first, key_first, many,
    Away, rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, TWO_SIDED: tl.constexpr, SLOPES: tl.constexpr, TABLE: tl.constexpr,
    CAP: tl.constexpr, SHARPEN: tl.constexpr, SPAN: tl.constexpr, FAST: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
    MASK_STAGES: tl.constexpr, FAR: tl.constexpr, RELATE: tl.constexpr, EIGHTS: tl.constexpr, REACH: tl.constexpr,
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
    i0 = offset + row
    i1 = offset + tl.minimum(row + BM, rows) - 1
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)

    at = row + tl.arange(0, BM)
    # A shift by the first row's index is no small number to rows of another document.
    SHIFT: tl.constexpr = SLOPES and (CAP != 2) and (not INDEXED)
    if SHARPEN:
        c = tl.load(Sharpen + b.to(tl.int64) * sharpen_b + at, mask=at < rows, other=1.0)[:, None] * (scale * LOG2E)
    else:
        c = scale * LOG2E
    behind_slope = 0.0
    ahead_slope = 0.0
    if SLOPES:
        behind_slope = tl.load(Slopes + h) * LOG2E
        ahead_slope = tl.load(Ahead + h) * LOG2E
    far_behind = 0.0
    far_ahead = 0.0
    if TABLE:
        Table += h.to(tl.int64) * table_h
        far_behind = tl.load(Table + (last - first)) * LOG2E
        far_ahead = tl.load(Table) * LOG2E
    cap = cap * LOG2E
    if EIGHTS > 0:
        row_first -= within(row, EIGHTS)
    if RELATE == 1 or RELATE == 3:
        ByRow += b.to(tl.int64) * br_b + h.to(tl.int64) * br_h + row.to(tl.int64) * br_t
    if RELATE >= 2:
        ByKey += b.to(tl.int64) * bk_b + h.to(tl.int64) * bk_h

    BOUNDED: tl.constexpr = DOCS or INDEXED
    # Blocks of keys, by what they need: [start, full), masked; [full, near), [near, beyond), [beyond, edge), whole;
    # [edge, end), masked. Keys before `start` are seen only as sinks.
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
        place = (b.to(tl.int64) * tl.num_programs(1) + h) * (tl.cdiv(rows, GRANULE) + 1) + row // GRANULE
        full = tl.minimum(tl.maximum(i0 - tl.load(Away + place), 0) // BN * BN, edge)
        start = full
    # Rows as a mask sees them: their indices, documents, and an index that they all are near.
    i = (i0 + tl.arange(0, BM))[:, None]
    own = 0
    some = i0
    if BOUNDED:
        Bounds += b.to(tl.int64) * bounds_b + block * 8
        sink = tl.load(Bounds)
        past = tl.load(Bounds + 1)
        start = tl.load(Bounds + 2)
        full = tl.load(Bounds + 3)
        edge = tl.load(Bounds + 4)
        end = tl.load(Bounds + 5)
    if DOCS:
        own = belonging(Docs + b.to(tl.int64) * docs_b, at, at < rows, -3)[:, None]
        KeyDocs += b.to(tl.int64) * key_docs_b
    if INDEXED:
        Index += b.to(tl.int64) * index_b
        KeyIndex += b.to(tl.int64) * key_index_b
        i = numbered(Index, at, at < rows, 0, True)[:, None]
        some = tl.load(Index + row).to(tl.int32)
        # Blocks that are seen whole count up on both sides: their rows stand here among the keys.
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

    m = tl.full([BM], FLOOR, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    led = 0.0
    if LEAD:
        k = tile(K, b, g, start + tl.zeros([], tl.int32), keys, k_t, BN, WIDTH, D, TMA)
        led = tl.dot(q, k.T, input_precision=PRECISION)
    if BEHIND:
        acc, l, m, _ = _span(
            acc, l, m, 0.0, q, K, V, b, g, sink, past, some, c, keys, k_t, v_t,
            behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, 0.0, cap, i, own,
            KeyDocs, KeyIndex, ByRow, ByKey, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
            PRECISION, False, DOCS, INDEXED, MASK_STAGES, RELATE, EIGHTS,
        )  # fmt: skip
    if BEHIND or BOUNDED:
        acc, l, m, led = _span(
            acc, l, m, led, q, K, V, b, g, start, full, some, c, keys, k_t, v_t,
            behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, 0.0, cap, i, own,
            KeyDocs, KeyIndex, ByRow, ByKey, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
            PRECISION, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, EIGHTS,
        )  # fmt: skip
    acc, l, m, led = _span(
        acc, l, m, led, q, K, V, b, g, full, near, i0, c, keys, k_t, v_t,
        behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, far_behind, cap, i, own,
        KeyDocs, KeyIndex, ByRow, ByKey, rows - row, br_t, bk_t, row_first, key_first, many,
        BM, BN, WIDTH, VWIDTH, D, DV, False, BACK, ONE, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
        PRECISION, LEAD, DOCS, INDEXED, MASK_STAGES, 0, EIGHTS,
    )  # fmt: skip
    if LOOKED or (MIDDLE == 2):
        acc, l, m, led = _span(
            acc, l, m, led, q, K, V, b, g, near, beyond, i0, c, keys, k_t, v_t,
            behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, 0.0, cap, i, own,
            KeyDocs, KeyIndex, ByRow, ByKey, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, False, MIDDLE, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
            PRECISION, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, EIGHTS,
        )  # fmt: skip
    if TWO_SIDED and (TABLE or SLOPES) and (RELATE == 0):
        acc, l, m, led = _span(
            acc, l, m, led, q, K, V, b, g, beyond, edge, i0, c, keys, k_t, v_t,
            behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, far_ahead, cap, i, own,
            KeyDocs, KeyIndex, ByRow, ByKey, rows - row, br_t, bk_t, row_first, key_first, many,
            BM, BN, WIDTH, VWIDTH, D, DV, False, FRONT, ONE, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
            PRECISION, LEAD, DOCS, INDEXED, MASK_STAGES, 0, EIGHTS,
        )  # fmt: skip
    acc, l, m, led = _span(
        acc, l, m, led, q, K, V, b, g, edge, end, some, c, keys, k_t, v_t,
        behind, ahead, sinks, behind_slope, ahead_slope, Table, first, last, 0.0, cap, i, own,
        KeyDocs, KeyIndex, ByRow, ByKey, rows - row, br_t, bk_t, row_first, key_first, many,
        BM, BN, WIDTH, VWIDTH, D, DV, True, ANY, LOOK, CAP, SHARPEN, BEHIND, AHEAD, SPAN, SHIFT, FAST, TMA,
        PRECISION, LEAD, DOCS, INDEXED, MASK_STAGES, RELATE, EIGHTS,
    )  # fmt: skip

    # A row that saw nothing has l = 0: zeros, and a log-sum-exp of −∞.
    blind = l == 0
    out = acc / tl.where(blind, 1.0, l)[:, None]
    KEPT: tl.constexpr = Lse.dtype.element_ty
    lse = m.to(KEPT) + tl.log2(tl.where(blind, 1.0, l).to(KEPT))
    if SHIFT:
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
