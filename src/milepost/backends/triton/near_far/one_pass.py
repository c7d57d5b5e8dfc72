# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""Near and far keys of one softmax in one pass: a block of rows goes over its near keys, then over its far ones.

Both have queries and keys of their own, turned in different ways; values, running maximum and sum are shared. Blocks in
which near keys end and far ones begin are gone over twice, each time with the others masked. `fields` says what is
near, what is far, and how far scores are set off against near ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.attention.loops import Band, Bias, Vectors, attend_keys, key_gradients, query_gradients
from milepost.backends.triton.attention.parts import keys_seen, rows_seen
from milepost.backends.triton.attention.score import FLOOR, LN2, LOG2E, put, tile

_COUNTS = ["rows", "keys", "group", "offset", "near", "behind", "ahead"]


@triton.constexpr_function
def _kind(part):
    """Return what the three parts of one field need: a mask, nothing, a mask. See `parts`."""
    return 1 if part == 1 else 0


@triton.jit
def _attend_field(
    acc, l, m, q, K, V, b, g, i0, i1, c, keys, k_t, v_t, behind, ahead,
    BM, BN, WIDTH, VWIDTH, D, DV, BEHIND, TMA, PRECISION,
):  # fmt: skip
    """Add all keys of one field to a running softmax."""
    start, full, edge, end = keys_seen(i0, i1, keys, behind, ahead, BN, BEHIND, True)
    los = (start, full, edge)
    his = (full, edge, end)
    for PART in tl.static_range(3):
        if BEHIND or (PART > 0):
            acc, l, m = attend_keys(
                acc, l, m, q, K, V, b, g, los[PART], his[PART], 0.0, c, i0, keys, k_t, v_t, Band(behind, ahead), Bias(),
                Vectors(), BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, _kind(PART), BEHIND, True,
            )  # fmt: skip
    return acc, l, m


@triton.jit(do_not_specialize=_COUNTS)
def forward(
    Q, K, FarQ, FarK, V, Out, Lse, Strength, Gain, NearOut, NearLse,
    q_b, q_h, q_t, k_b, k_h, k_t, fq_b, fq_h, fq_t, fk_b, fk_h, fk_t, v_b, v_h, v_t, o_b, o_h, o_t, l_b, l_h,
    strength_b, gain_b, rows, keys, group, offset, near, behind, ahead, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ENDS: tl.constexpr, CONTRAST: tl.constexpr, GAINS: tl.constexpr, KEEP: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out and lse of one block of rows. ENDS: what is further behind than `behind` is not seen.

    CONTRAST: far scores are set off against the near ones' log-sum-exp, which, with what near keys alone answer, is
    kept for the backward pass where KEEP. GAINS: a row's far scores have a number added.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    g = h // group
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    g64 = g.to(tl.int64)
    if not TMA:
        Q += b64 * q_b + h64 * q_h
        FarQ += b64 * fq_b + h64 * fq_h
        K += b64 * k_b + g64 * k_h
        FarK += b64 * fk_b + g64 * fk_h
        V += b64 * v_b + g64 * v_h
    row = block * BM
    i0 = offset + row
    i1 = offset + tl.minimum(row + BM, rows) - 1
    at = row + tl.arange(0, BM)
    c = scale * LOG2E
    m = tl.full([BM], FLOOR, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
    acc, l, m = _attend_field(
        acc, l, m, q, K, V, b, g, i0, i1, c, keys, k_t, v_t, tl.minimum(near, behind), ahead,
        BM, BN, WIDTH, VWIDTH, D, DV, True, TMA, PRECISION,
    )  # fmt: skip
    Lse += b64 * l_b + h64 * l_h
    Out += b64 * o_b + h64 * o_h
    shift = tl.zeros([BM], tl.float32)
    if CONTRAST:
        blind = l == 0
        some = tl.where(blind, 1.0, l)
        logged = m + tl.log2(some)
        shift = tl.load(Strength + b64 * strength_b + at, mask=at < rows, other=0.0) * tl.where(blind, 0.0, logged)
        if KEEP:
            told = tl.where(blind, float("-inf"), logged * LN2)
            tl.store(NearLse + b64 * l_b + h64 * l_h + at, told, mask=at < rows)
            put(NearOut + b64 * o_b + h64 * o_h, acc / some[:, None], row, rows, o_t, BM, VWIDTH, DV)
    if GAINS:
        shift -= tl.load(Gain + b64 * gain_b + at, mask=at < rows, other=0.0) * LOG2E
    # Less that for every far key of a row is more of it for what the row has seen before.
    m += shift
    q = tile(FarQ, b, h, row, rows, fq_t, BM, WIDTH, D, TMA)
    acc, l, m = _attend_field(
        acc, l, m, q, FarK, V, b, g, i0, i1, c, keys, fk_t, v_t, behind, -near,
        BM, BN, WIDTH, VWIDTH, D, DV, ENDS, TMA, PRECISION,
    )  # fmt: skip
    blind = l == 0
    some = tl.where(blind, 1.0, l)
    lse = tl.where(blind, float("-inf"), (m - shift + tl.log2(some)) * LN2)
    tl.store(Lse + at, lse, mask=at < rows)
    put(Out, acc / some[:, None], row, rows, o_t, BM, VWIDTH, DV)


@triton.jit
def _key_gradients_of_field(
    dv, k, v, Q, Grad, Lse2, Delta, b, g, group, j0, offset, scale, rows, keys, q_b, q_h, q_t, do_b, do_h, do_t,
    l_b, l_h, behind, ahead, BM, BN, WIDTH, VWIDTH, D, DV, BEHIND, TMA, PRECISION, SINGLE, SHORT,
):  # fmt: skip
    """Return dk and dv of a block of keys, as keys of one field: dv is added to. SHORT: in one masked loop."""
    b64 = b.to(tl.int64)
    j1 = tl.minimum(j0 + BN, keys) - 1
    start, full, edge, end = rows_seen(j0, j1, offset, rows, behind, ahead, 0, BM, BEHIND, True)
    if SHORT:
        full = end
    none = tl.zeros([BN], tl.float32)
    dk = tl.zeros([BN, WIDTH], tl.float32)
    los = (start, full, edge)
    his = (full, edge, end)
    # A loop of one is folded away, and its accumulators with it, which otherwise take registers twice.
    for member in range(1 if SINGLE else group):
        h = g * group + member
        h64 = h.to(tl.int64)
        place = b64 * l_b + h64 * l_h
        q = Q
        grad = Grad
        if not TMA:
            q += b64 * q_b + h64 * q_h
            grad += b64 * do_b + h64 * do_h
        for PART in tl.static_range(3):
            if (PART == 0) or ((not SHORT) and (BEHIND or (PART == 1))):
                dk, dv, _ = key_gradients(
                    dk, dv, none, k, v, q, grad, Lse2 + place, Delta + place, b, h, los[PART], his[PART], 0.0, scale,
                    j0, offset, rows, keys, q_t, do_t, none > 0, Band(behind, ahead), Bias(), Vectors(),
                    BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, _kind(PART), BEHIND, True,
                )  # fmt: skip
    return dk, dv


@triton.jit(do_not_specialize=_COUNTS)
def backward_keys(
    Q, K, FarQ, FarK, V, Grad, Lse2, Delta, FarLse2, FarDelta, DK, FarDK, DV_,
    q_b, q_h, q_t, k_b, k_h, k_t, fq_b, fq_h, fq_t, fk_b, fk_h, fk_t, v_b, v_h, v_t, do_b, do_h, do_t,
    dk_b, dk_h, dk_t, fdk_b, fdk_h, fdk_t, dv_b, dv_h, dv_t, l_b, l_h,
    rows, keys, group, offset, near, behind, ahead, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ENDS: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, SINGLE: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """dk, that of far keys, and dv of one block of keys, summed over the query heads that share them."""
    j0 = tl.program_id(0) * BN
    g = tl.program_id(1)
    b = tl.program_id(2)
    b64 = b.to(tl.int64)
    g64 = g.to(tl.int64)
    if not TMA:
        K += b64 * k_b + g64 * k_h
        FarK += b64 * fk_b + g64 * fk_h
        V += b64 * v_b + g64 * v_h
    v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
    k = tile(K, b, g, j0, keys, k_t, BN, WIDTH, D, TMA)
    dv = tl.zeros([BN, VWIDTH], tl.float32)
    dk, dv = _key_gradients_of_field(
        dv, k, v, Q, Grad, Lse2, Delta, b, g, group, j0, offset, scale, rows, keys, q_b, q_h, q_t, do_b, do_h, do_t,
        l_b, l_h, tl.minimum(near, behind), ahead,
        BM, BN, WIDTH, VWIDTH, D, DV, True, TMA, PRECISION, SINGLE, SHORT,
    )  # fmt: skip
    put(DK + b64 * dk_b + g64 * dk_h, dk * scale, j0, keys, dk_t, BN, WIDTH, D)
    k = tile(FarK, b, g, j0, keys, fk_t, BN, WIDTH, D, TMA)
    dk, dv = _key_gradients_of_field(
        dv, k, v, FarQ, Grad, FarLse2, FarDelta, b, g, group, j0, offset, scale, rows, keys, fq_b, fq_h, fq_t,
        do_b, do_h, do_t, l_b, l_h, behind, -near,
        BM, BN, WIDTH, VWIDTH, D, DV, ENDS, TMA, PRECISION, SINGLE, False,
    )  # fmt: skip
    put(FarDK + b64 * fdk_b + g64 * fdk_h, dk * scale, j0, keys, fdk_t, BN, WIDTH, D)
    put(DV_ + b64 * dv_b + g64 * dv_h, dv, j0, keys, dv_t, BN, VWIDTH, DV)


@triton.jit
def _query_gradients_of_field(
    q, grad, lse, delta, K, V, b, g, i0, i1, c, keys, k_t, v_t, behind, ahead,
    BM, BN, WIDTH, VWIDTH, D, DV, BEHIND, TMA, PRECISION,
):  # fmt: skip
    """Return dq of one field, but for the scale."""
    start, full, edge, end = keys_seen(i0, i1, keys, behind, ahead, BN, BEHIND, True)
    none = tl.zeros([BM], tl.float32)
    dq = tl.zeros([BM, WIDTH], tl.float32)
    los = (start, full, edge)
    his = (full, edge, end)
    for PART in tl.static_range(3):
        if BEHIND or (PART > 0):
            dq, _, _, _, _ = query_gradients(
                dq, none, none, none, none, q, grad, lse, delta, K, V, b, g, los[PART], his[PART], 0.0, c, i0, keys,
                k_t, v_t, Band(behind, ahead), Bias(), Vectors(),
                BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, _kind(PART), BEHIND, True,
            )  # fmt: skip
    return dq


@triton.jit(do_not_specialize=_COUNTS)
def backward_rows(
    Q, K, FarQ, FarK, V, Grad, Lse2, Delta, FarLse2, FarDelta, DQ, FarDQ,
    q_b, q_h, q_t, k_b, k_h, k_t, fq_b, fq_h, fq_t, fk_b, fk_h, fk_t, v_b, v_h, v_t, do_b, do_h, do_t,
    dq_b, dq_h, dq_t, fdq_b, fdq_h, fdq_t, l_b, l_h,
    rows, keys, group, offset, near, behind, ahead, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ENDS: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq and that of far queries, of one block of rows."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    g = h // group
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    g64 = g.to(tl.int64)
    if not TMA:
        Q += b64 * q_b + h64 * q_h
        FarQ += b64 * fq_b + h64 * fq_h
        Grad += b64 * do_b + h64 * do_h
        K += b64 * k_b + g64 * k_h
        FarK += b64 * fk_b + g64 * fk_h
        V += b64 * v_b + g64 * v_h
    row = block * BM
    i0 = offset + row
    i1 = offset + tl.minimum(row + BM, rows) - 1
    place = b64 * l_b + h64 * l_h + row + tl.arange(0, BM)
    c = scale * LOG2E
    grad = tile(Grad, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
    dq = _query_gradients_of_field(
        q, grad, tl.load(Lse2 + place), tl.load(Delta + place), K, V, b, g, i0, i1, c, keys, k_t, v_t,
        tl.minimum(near, behind), ahead, BM, BN, WIDTH, VWIDTH, D, DV, True, TMA, PRECISION,
    )  # fmt: skip
    put(DQ + b64 * dq_b + h64 * dq_h, dq * scale, row, rows, dq_t, BM, WIDTH, D)
    q = tile(FarQ, b, h, row, rows, fq_t, BM, WIDTH, D, TMA)
    dq = _query_gradients_of_field(
        q, grad, tl.load(FarLse2 + place), tl.load(FarDelta + place), FarK, V, b, g, i0, i1, c, keys, fk_t, v_t,
        behind, -near, BM, BN, WIDTH, VWIDTH, D, DV, ENDS, TMA, PRECISION,
    )  # fmt: skip
    put(FarDQ + b64 * fdq_b + h64 * fdq_h, dq * scale, row, rows, fdq_t, BM, WIDTH, D)
