# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""Attention whose scores have something added by a count: of the keys between the pair, as far as their gates are open.

    count_ij = min(n − 1, Σ σ(score_im)), m from j to the last key that i sees
    score_ij ← score_ij + entries_i(count_ij), read linearly between its n numbers

A row's keys are read from its last one back, because that is how the count grows. Once it is n − 1 for all rows of a
block it stays so, and what is left is plain attention: those keys are far, and a number a row is all that is added.

Backwards, a gate has a share in the counts of its own key and of all before it. So the gradient of gates is summed
along the keys, from the first near one on. The pass over keys comes to a tile from nowhere: it reads what the pass over
rows left for it, how much was counted right of the tile, and what its left has for the gates.

Tiles of far keys are larger than those of near ones: nothing but products is done there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.attention.score import (
    FLOOR,
    LN2,
    LOG2E,
    besides,
    between,
    plus_keys,
    put,
    seen,
    tile,
    up_to,
    weighed,
)
from milepost.backends.triton.packed.block_ranges import belonging, numbered, poison

FULL = tl.constexpr(1e9)
"""The count of rows that look nothing up: those past the end, and padding."""


@triton.jit
def _shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED):
    """Return which of the keys from j0 on the rows see, [rows, BN]: those of their document that do not come later."""
    at = j0 + tl.arange(0, BN)
    j = numbered(KeyIndex, at, at < keys, 0, INDEXED)[None, :]
    other = belonging(KeyDocs, at, at < keys, -2)[None, :] if DOCS else 0
    return seen(i, j, at[None, :], own, other, keys, 0, 0, 0, False, True, DOCS)


@triton.jit
def _opened(x, visible):
    """Return how far gates are open. One that is NaN is shut: it spoils its own row, and no other's count."""
    return tl.where(visible & (x == x), 1 / (1 + tl.exp2(-x)), 0.0)


@triton.jit
def _looked_up(x, visible, right, Entries, at, most):
    """Return gates, counts, what is added to scores x, and how that grows with the count.

    right: how much is counted right of these keys, [rows, 1]. Entries + at: where each row's numbers begin, [rows, 1].
    """
    gates = _opened(x, visible)
    count = tl.minimum(right + tl.cumsum(gates, 1, reverse=True), most.to(tl.float32))
    low = tl.floor(count)
    share = count - low
    here = low.to(tl.int32)
    looks = visible & (right < FULL)
    lower = tl.load(Entries + (at + here), mask=looks, other=0.0).to(tl.float32)
    upper = tl.load(Entries + (at + tl.minimum(here + 1, most)), mask=looks, other=0.0).to(tl.float32)
    grows = tl.where(share > 0, upper - lower, 0.0)
    return gates, count, lower + share * grows, grows


@triton.jit
def _rows_of(
    Index, Docs, Bounds, b, block, row, rows, keys, offset, index_b, docs_b, bounds_b, BM, BLOCK, DOCS, INDEXED
):
    """Return a block of rows: indices and documents, [BM, 1], and the BLOCKs of keys that it sees, start … end."""
    at = row + tl.arange(0, BM)
    i = (offset + at)[:, None]
    own = tl.zeros([BM, 1], tl.int32)
    start = 0
    end = up_to(between(offset + tl.minimum(row + BM, rows), 0, keys), BLOCK)
    if DOCS or INDEXED:
        Bounds += b.to(tl.int64) * bounds_b + block * 8
        start = tl.load(Bounds + 2) // BLOCK * BLOCK
        end = up_to(tl.load(Bounds + 5), BLOCK)
    if INDEXED:
        i = numbered(Index + b.to(tl.int64) * index_b, at, at < rows, 0, True)[:, None]
    if DOCS:
        own = belonging(Docs + b.to(tl.int64) * docs_b, at, at < rows, -3)[:, None]
    counted = tl.where((at < rows)[:, None] & (own >= 0), 0.0, FULL)
    return i, own, counted, start, end


@triton.jit
def _far_keys(
    acc, l, m, q, far, K, V, KeyDocs, KeyIndex, b, h, i, own, lo, hi, keys, k_t, v_t, c,
    BN, WIDTH, VWIDTH, D, DV, DOCS, INDEXED, PRECISION,
):  # fmt: skip
    """Add what the keys lo … hi answer, to whose scores each row adds its last number, far."""
    for j0 in tl.range(lo, hi, BN):
        j0 = j0 + tl.zeros([], tl.int32)
        k = tile(K, b, h, j0, keys, k_t, BN, WIDTH, D, False)
        x = tl.dot(q, k.T, input_precision=PRECISION) * c + far[:, None]
        if DOCS or INDEXED:
            visible = _shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED)
            x = tl.where(visible, x, float("-inf"))
        acc, l, m = plus_keys(acc, l, m, x, V, j0, keys, v_t, BN, VWIDTH, DV, PRECISION)
    return acc, l, m


@triton.jit(do_not_specialize=["rows", "keys", "group", "offset", "most"])
def forward(
    Q, K, V, Entries, Out, Lse, Docs, KeyDocs, Index, KeyIndex, Bounds,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, e_b, e_h, e_t, o_b, o_h, o_t, l_b, l_h,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b, rows, keys, group, offset, most, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    DOCS: tl.constexpr, INDEXED: tl.constexpr, PRECISION: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """out = softmax(scores) v and lse, for one block of rows of one head; near keys by BN, far ones by FAR."""
    # The last rows see most: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    Q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    K += b.to(tl.int64) * k_b + (h // group).to(tl.int64) * k_h
    V += b.to(tl.int64) * v_b + (h // group).to(tl.int64) * v_h
    Entries += b.to(tl.int64) * e_b + h.to(tl.int64) * e_h
    row = block * BM
    i, own, counted, start, end = _rows_of(
        Index, Docs, Bounds, b, block, row, rows, keys, offset, index_b, docs_b, bounds_b, BM, BN, DOCS, INDEXED
    )
    if INDEXED:
        KeyIndex += b.to(tl.int64) * key_index_b
    if DOCS:
        KeyDocs += b.to(tl.int64) * key_docs_b
    at = row + tl.arange(0, BM)
    Entries += row.to(tl.int64) * e_t
    entry = tl.arange(0, BM) * e_t
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, False)
    c = scale * LOG2E
    m = tl.full([BM], FLOOR, tl.float32)
    l = tl.zeros([BM], tl.float32)
    if INDEXED:
        l += poison(Bounds + b.to(tl.int64) * bounds_b + block * 8)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    j0 = end - BN
    while (j0 >= start) & (tl.min(counted) < most):
        k = tile(K, b, h, j0, keys, k_t, BN, WIDTH, D, False)
        x = tl.dot(q, k.T, input_precision=PRECISION) * c
        visible = _shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED)
        gates, _, bias, _ = _looked_up(x, visible, counted, Entries, entry[:, None], most)
        counted += tl.sum(gates, 1)[:, None]
        x = tl.where(visible, x + bias * LOG2E, float("-inf"))
        acc, l, m = plus_keys(acc, l, m, x, V, j0, keys, v_t, BN, VWIDTH, DV, PRECISION)
        j0 -= BN
    far = tl.load(Entries + (entry + most), mask=at < rows, other=0.0).to(tl.float32) * LOG2E
    beyond = j0 + BN
    large = start + (beyond - start) // FAR * FAR
    acc, l, m = _far_keys(
        acc, l, m, q, far, K, V, KeyDocs, KeyIndex, b, h, i, own, start, large, keys, k_t, v_t, c,
        FAR, WIDTH, VWIDTH, D, DV, DOCS, INDEXED, PRECISION,
    )  # fmt: skip
    if FAR > BN:
        acc, l, m = _far_keys(
            acc, l, m, q, far, K, V, KeyDocs, KeyIndex, b, h, i, own, large, beyond, keys, k_t, v_t, c,
            BN, WIDTH, VWIDTH, D, DV, DOCS, INDEXED, PRECISION,
        )  # fmt: skip
    # A row that saw nothing has l = 0: zeros, and a log-sum-exp of −∞.
    blind = l == 0
    out = acc / tl.where(blind, 1.0, l)[:, None]
    KEPT: tl.constexpr = Lse.dtype.element_ty
    lse = (m.to(KEPT) + tl.log2(tl.where(blind, 1.0, l).to(KEPT))) * LN2
    tl.store(Lse + b.to(tl.int64) * l_b + h.to(tl.int64) * l_h + at, tl.where(blind, float("-inf"), lse), at < rows)
    put(Out + b.to(tl.int64) * o_b + h.to(tl.int64) * o_h, out, row, rows, o_t, BM, VWIDTH, DV)


@triton.jit
def _shared_out(DEntries, at, ds, count, looks, most, rows_inside):
    """Add each score's gradient to the two numbers that it was read between, for a tile.

    Four numbers at a time: what lies there comes from far away, and none waits for the one before it.
    """
    least = tl.min(tl.where(looks, count, most.to(tl.float32)))
    highest = tl.max(tl.where(looks, count, 0.0))
    end = tl.minimum(tl.floor(highest).to(tl.int32) + 1, most) + 1
    for number in range(tl.floor(least).to(tl.int32), end, 4):
        place = DEntries + (at + number)
        # A number for each row: Triton 3.9's interpreter takes no mask that began as one truth value.
        numbers = tl.zeros_like(at) + number
        second = rows_inside & (numbers + 1 < end)
        third = rows_inside & (numbers + 2 < end)
        fourth = rows_inside & (numbers + 3 < end)
        d0 = tl.load(place, mask=rows_inside, other=0.0)
        d1 = tl.load(place + 1, mask=second, other=0.0)
        d2 = tl.load(place + 2, mask=third, other=0.0)
        d3 = tl.load(place + 3, mask=fourth, other=0.0)
        past = count - number
        d0 += tl.sum(ds * tl.maximum(1 - tl.abs(past), 0.0), 1)
        d1 += tl.sum(ds * tl.maximum(1 - tl.abs(past - 1), 0.0), 1)
        d2 += tl.sum(ds * tl.maximum(1 - tl.abs(past - 2), 0.0), 1)
        d3 += tl.sum(ds * tl.maximum(1 - tl.abs(past - 3), 0.0), 1)
        tl.store(place, d0, mask=rows_inside)
        tl.store(place + 1, d1, mask=second)
        tl.store(place + 2, d2, mask=third)
        tl.store(place + 3, d3, mask=fourth)
    # The next tile's threads may read what others wrote.
    tl.debug_barrier()


@triton.jit
def _far_gradients(
    dq, d_far, q, grad, lse, delta, K, V, KeyDocs, KeyIndex, b, h, i, own, lo, hi, keys, k_t, v_t, c,
    BN, WIDTH, VWIDTH, D, DV, DOCS, INDEXED, PRECISION,
):  # fmt: skip
    """Add what the far keys lo … hi give to dq, and to the last number of each row, which lse is less."""
    for j0 in tl.range(lo, hi, BN):
        j0 = j0 + tl.zeros([], tl.int32)
        k = tile(K, b, h, j0, keys, k_t, BN, WIDTH, D, False)
        v = tile(V, b, h, j0, keys, v_t, BN, VWIDTH, DV, False)
        p = weighed(tl.dot(q, k.T, input_precision=PRECISION) * c, lse)
        if DOCS or INDEXED:
            p = tl.where(_shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED), p, 0.0)
        ds = p * (tl.dot(grad, v.T, input_precision=PRECISION) - delta)
        d_far += tl.sum(ds, 1)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq, d_far


@triton.jit(do_not_specialize=["rows", "keys", "group", "offset", "most", "chunk"])
def backward_rows(
    Q, K, V, Grad, Entries, Lse2, Delta, DQ, DEntries, Right, Left, Near, LessFar, Docs, KeyDocs, Index, KeyIndex,
    Bounds,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, e_b, e_h, e_t, l_b, l_h, dq_b, dq_h, dq_t,
    w_b, w_h, w_t, near_b, near_h, docs_b, key_docs_b, index_b, key_index_b, bounds_b,
    rows, keys, group, offset, most, chunk, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    DOCS: tl.constexpr, INDEXED: tl.constexpr, PRECISION: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dq and the gradient of entries, for one block of rows; and what the pass over keys needs to know of it.

    chunk: the first row of those that Right and Left have room for. BLOCK: the keys of a block of the pass over
    far keys, to whole ones of which near keys are rounded. LessFar gets the log-sum-exp less the row's last number.
    """
    block = chunk // BM + tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    Q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    K += b.to(tl.int64) * k_b + (h // group).to(tl.int64) * k_h
    V += b.to(tl.int64) * v_b + (h // group).to(tl.int64) * v_h
    Grad += b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
    Entries += b.to(tl.int64) * e_b + h.to(tl.int64) * e_h
    DEntries += b.to(tl.int64) * e_b + h.to(tl.int64) * e_h
    Right += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    Left += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    row = block * BM
    i, own, counted, start, end = _rows_of(
        Index, Docs, Bounds, b, block, row, rows, keys, offset, index_b, docs_b, bounds_b, BM, BLOCK, DOCS, INDEXED
    )
    if INDEXED:
        KeyIndex += b.to(tl.int64) * key_index_b
    if DOCS:
        KeyDocs += b.to(tl.int64) * key_docs_b
    at = row + tl.arange(0, BM)
    inside = at < rows
    Entries += row.to(tl.int64) * e_t
    DEntries += row.to(tl.int64) * e_t
    Right += (row - chunk).to(tl.int64) * w_t
    Left += (row - chunk).to(tl.int64) * w_t
    entry = tl.arange(0, BM) * e_t
    kept = tl.arange(0, BM) * w_t
    q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, False)
    grad = tile(Grad, b, h, row, rows, g_t, BM, VWIDTH, DV, False)
    lse = tl.load(Lse2 + b.to(tl.int64) * l_b + h.to(tl.int64) * l_h + at)[:, None]
    delta = tl.load(Delta + b.to(tl.int64) * l_b + h.to(tl.int64) * l_h + at)[:, None]
    c = scale * LOG2E
    # From the last keys back: how much is counted right of each tile.
    j0 = end - BN
    while (j0 >= start) & ((tl.min(counted) < most) | ((j0 + BN) % BLOCK != 0)):
        k = tile(K, b, h, j0, keys, k_t, BN, WIDTH, D, False)
        x = tl.dot(q, k.T, input_precision=PRECISION) * c
        visible = _shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED)
        tl.store(Right + (kept[:, None] + j0 // BN), counted, mask=inside[:, None])
        counted += tl.sum(_opened(x, visible), 1)[:, None]
        j0 -= BN
    near = j0 + BN
    tl.store(Near + b.to(tl.int64) * near_b + h.to(tl.int64) * near_h + block, near)
    # What was left there, other threads of this block read.
    tl.debug_barrier()
    # And from the first keys on.
    dq = tl.zeros([BM, WIDTH], tl.float32)
    far = tl.load(Entries + (entry + most), mask=inside, other=0.0).to(tl.float32) * LOG2E
    d_far = tl.zeros([BM], tl.float32)
    less = lse - far[:, None]
    rows_of_less = LessFar + b.to(tl.int64) * l_b + h.to(tl.int64) * l_h + at
    tl.store(rows_of_less[:, None], less)
    large = start + (near - start) // FAR * FAR
    dq, d_far = _far_gradients(
        dq, d_far, q, grad, less, delta, K, V, KeyDocs, KeyIndex, b, h, i, own, start, large, keys, k_t, v_t, c,
        FAR, WIDTH, VWIDTH, D, DV, DOCS, INDEXED, PRECISION,
    )  # fmt: skip
    if FAR > BN:
        dq, d_far = _far_gradients(
            dq, d_far, q, grad, less, delta, K, V, KeyDocs, KeyIndex, b, h, i, own, large, near, keys, k_t, v_t, c,
            BN, WIDTH, VWIDTH, D, DV, DOCS, INDEXED, PRECISION,
        )  # fmt: skip
    left = tl.zeros([BM, 1], tl.float32)
    for j0 in range(near, end, BN):
        k = tile(K, b, h, j0 + tl.zeros([], tl.int32), keys, k_t, BN, WIDTH, D, False)
        v = tile(V, b, h, j0 + tl.zeros([], tl.int32), keys, v_t, BN, VWIDTH, DV, False)
        x = tl.dot(q, k.T, input_precision=PRECISION) * c
        visible = _shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED)
        right = tl.load(Right + (kept[:, None] + j0 // BN), mask=inside[:, None], other=FULL)
        gates, count, bias, grows = _looked_up(x, visible, right, Entries, entry[:, None], most)
        p = weighed(tl.where(visible, x + bias * LOG2E, float("-inf")), lse)
        ds = p * (tl.dot(grad, v.T, input_precision=PRECISION) - delta)
        _shared_out(DEntries, entry, ds, count, visible & (right < FULL), most, inside)
        tl.store(Left + (kept[:, None] + j0 // BN), left, mask=inside[:, None])
        d_count = ds * grows
        d_gates = left + tl.cumsum(d_count, 1)
        left += tl.sum(d_count, 1)[:, None]
        ds += d_gates * gates * (1 - gates)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    last = DEntries + (entry + most)
    tl.store(last, tl.load(last, mask=inside, other=0.0) + d_far, mask=inside)
    put(DQ + b.to(tl.int64) * dq_b + h.to(tl.int64) * dq_h, dq * scale, row, rows, dq_t, BM, WIDTH, D)


@triton.jit
def _last_near(Near, j0, first, end, SIDE):
    """Return the row from which on, up to end, keys from j0 on are far.

    Both passes over keys look at all rows, whatever they see of these keys, and so find the same one.
    """
    turn = first
    stop = tl.cdiv(end, SIDE)
    for begin in range(first // SIDE, stop, 128):
        at = begin + tl.arange(0, 128)
        near = tl.load(Near + at, mask=at < stop, other=1 << 30) <= j0
        turn = tl.maximum(turn, tl.max(tl.where(near, (at + 1) * SIDE, first)))
    return tl.minimum(turn, end)


@triton.jit(do_not_specialize=["rows", "keys", "group", "offset", "most", "chunk", "past"])
def backward_keys(
    Q, K, V, Grad, Entries, Lse2, Delta, DK, DV_, Right, Left, Near, LessFar, Docs, KeyDocs, Index, KeyIndex, Bounds,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, e_b, e_h, e_t, l_b, l_h,
    dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, w_b, w_h, w_t, near_b, near_h,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b, rows, keys, group, offset, most, chunk, past, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    DOCS: tl.constexpr, INDEXED: tl.constexpr, PRECISION: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Add the dk / scale and dv of the rows chunk … past to what is there, for one block of keys of one head;
    but not those after the last one of all to which the BLOCK of keys that this is part of is near.

    Near has a number for SIDE rows each, Right and Left one for TILE keys each, as the pass over rows left them; that
    of later rows is known already.
    """
    j0 = tl.program_id(0) * BN
    g = tl.program_id(1)
    b = tl.program_id(2)
    K += b.to(tl.int64) * k_b + g.to(tl.int64) * k_h
    V += b.to(tl.int64) * v_b + g.to(tl.int64) * v_h
    first = tl.maximum(j0 - offset, chunk) // BM * BM
    last = rows
    if DOCS or INDEXED:
        Bounds += b.to(tl.int64) * bounds_b + tl.program_id(0) * 8
        first = tl.maximum(tl.load(Bounds + 2), chunk)
        last = tl.minimum(tl.load(Bounds + 5), rows)
    end = tl.minimum(last, past)
    if INDEXED:
        Index += b.to(tl.int64) * index_b
        KeyIndex += b.to(tl.int64) * key_index_b
    if DOCS:
        Docs += b.to(tl.int64) * docs_b
        KeyDocs += b.to(tl.int64) * key_docs_b
    if first < end:
        k = tile(K, b, g, j0, keys, k_t, BN, WIDTH, D, False)
        v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, False)
        c = scale * LOG2E
        dk = tl.zeros([BN, WIDTH], tl.float32)
        dv = tl.zeros([BN, VWIDTH], tl.float32)
        # A loop of one is folded away, and its accumulators with it, which otherwise take registers twice.
        for number in range(1 if SINGLE else group):
            h = g * group + number
            heads = b.to(tl.int64) * l_b + h.to(tl.int64) * l_h
            own_entries = Entries + b.to(tl.int64) * e_b + h.to(tl.int64) * e_h
            work = b.to(tl.int64) * w_b + h.to(tl.int64) * w_h + j0 // TILE
            nears = Near + b.to(tl.int64) * near_b + h.to(tl.int64) * near_h
            own_q = Q + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
            own_grad = Grad + b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
            turn = _last_near(nears, j0 // BLOCK * BLOCK, first, rows, SIDE)
            for row in range(first, tl.minimum(turn, end), BM):
                row = row + tl.zeros([], tl.int32)
                at = row + tl.arange(0, BM)
                inside = at < rows
                i = numbered(Index, at, inside, offset, INDEXED)[:, None]
                own = belonging(Docs, at, inside, -3)[:, None] if DOCS else tl.zeros([BM, 1], tl.int32)
                q = tile(own_q, b, h, row, rows, q_t, BM, WIDTH, D, False)
                grad = tile(own_grad, b, h, row, rows, g_t, BM, VWIDTH, DV, False)
                lse = tl.load(Lse2 + heads + at)[:, None]
                delta = tl.load(Delta + heads + at)[:, None]
                rows_entries = own_entries + row.to(tl.int64) * e_t
                entry = (tl.arange(0, BM) * e_t)[:, None]
                visible = _shown(i, own, KeyDocs, KeyIndex, j0, keys, BN, DOCS, INDEXED)
                x = tl.dot(q, k.T, input_precision=PRECISION) * c
                d_weights = tl.dot(grad, v.T, input_precision=PRECISION) - delta
                if j0 >= tl.load(nears + row // SIDE):
                    place = work + (row - chunk).to(tl.int64) * w_t
                    kept = (tl.arange(0, BM) * w_t)[:, None]
                    right = tl.load(Right + place + (kept + (BN // TILE - 1)), mask=inside[:, None], other=FULL)
                    left = tl.load(Left + place + kept, mask=inside[:, None], other=0.0)
                    gates, _, bias, grows = _looked_up(x, visible, right, rows_entries, entry, most)
                    p = weighed(tl.where(visible, x + bias * LOG2E, float("-inf")), lse)
                    ds = p * d_weights
                    # Rows that see none of these keys have left nothing there that is a number.
                    through_gates = (left + tl.cumsum(ds * grows, 1)) * gates * (1 - gates)
                    ds += tl.where(visible, through_gates, 0.0)
                else:
                    p = weighed(tl.where(visible, x, float("-inf")), tl.load(LessFar + heads + at)[:, None])
                    ds = p * d_weights
                dv = tl.dot(p.to(grad.dtype).T, grad, dv, input_precision=PRECISION)
                dk = tl.dot(ds.to(q.dtype).T, q, dk, input_precision=PRECISION)
        DK += b.to(tl.int64) * dk_b + g.to(tl.int64) * dk_h
        DV_ += b.to(tl.int64) * dv_b + g.to(tl.int64) * dv_h
        dk += tile(DK, b, g, j0, keys, dk_t, BN, WIDTH, D, False)
        put(DK, dk, j0, keys, dk_t, BN, WIDTH, D)
        dv += tile(DV_, b, g, j0, keys, dv_t, BN, VWIDTH, DV, False)
        put(DV_, dv, j0, keys, dv_t, BN, VWIDTH, DV)


@triton.jit(do_not_specialize=["rows", "keys", "group", "offset"])
def backward_far_keys(
    Q, K, V, Grad, LessFar, Delta, NearDK, NearDV, DK, DV_, Near, Docs, KeyDocs, Index, KeyIndex, Bounds,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, l_b, l_h,
    nk_b, nk_h, nk_t, nv_b, nv_h, nv_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, near_b, near_h,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b, rows, keys, group, offset, scale,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    DOCS: tl.constexpr, INDEXED: tl.constexpr, PRECISION: tl.constexpr, SIDE: tl.constexpr, SINGLE: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys: what was found before, and what the later rows have, to which it is far."""
    j0 = tl.program_id(0) * BN
    g = tl.program_id(1)
    b = tl.program_id(2)
    first = tl.maximum(j0 - offset, 0) // BM * BM
    end = rows
    if DOCS or INDEXED:
        Bounds += b.to(tl.int64) * bounds_b + tl.program_id(0) * 8
        first = tl.load(Bounds + 2)
        end = tl.minimum(tl.load(Bounds + 5), rows)
    place = j0 + tl.arange(0, BN)
    j = place[:, None]
    other = 0
    if INDEXED:
        Index += b.to(tl.int64) * index_b
        j = numbered(KeyIndex + b.to(tl.int64) * key_index_b, place, place < keys, 0, True)[:, None]
    if DOCS:
        Docs += b.to(tl.int64) * docs_b
        other = belonging(KeyDocs + b.to(tl.int64) * key_docs_b, place, place < keys, -2)[:, None]
    if not TMA:
        K += b.to(tl.int64) * k_b + g.to(tl.int64) * k_h
        V += b.to(tl.int64) * v_b + g.to(tl.int64) * v_h
    k = tile(K, b, g, j0, keys, k_t, BN, WIDTH, D, TMA)
    v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
    c = scale * LOG2E
    dk = besides(NearDK + b.to(tl.int64) * nk_b + g.to(tl.int64) * nk_h, j0, 0, keys, nk_t, BN, WIDTH, D)
    dv = besides(NearDV + b.to(tl.int64) * nv_b + g.to(tl.int64) * nv_h, j0, 0, keys, nv_t, BN, VWIDTH, DV)
    # A loop of one is folded away, and its accumulators with it, which otherwise take registers twice.
    for number in range(1 if SINGLE else group):
        h = g * group + number
        heads = b.to(tl.int64) * l_b + h.to(tl.int64) * l_h
        if TMA:
            own_q = Q
            own_grad = Grad
        else:
            own_q = Q + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
            own_grad = Grad + b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
        turn = _last_near(Near + b.to(tl.int64) * near_b + h.to(tl.int64) * near_h, j0, first, rows, SIDE)
        for row in tl.range(turn, end, BM):
            row = row + tl.zeros([], tl.int32)
            at = row + tl.arange(0, BM)
            q = tile(own_q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
            grad = tile(own_grad, b, h, row, rows, g_t, BM, VWIDTH, DV, TMA)
            less = tl.load(LessFar + heads + at)[None, :]
            p = weighed(tl.dot(k, q.T, input_precision=PRECISION) * c, less)
            if DOCS or INDEXED:
                i = numbered(Index, at, at < rows, offset, INDEXED)[None, :]
                own = belonging(Docs, at, at < rows, -3)[None, :] if DOCS else 0
                p = tl.where(seen(i, j, place[:, None], own, other, keys, 0, 0, 0, False, True, DOCS), p, 0.0)
            dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision=PRECISION)
            d_weights = tl.dot(v, grad.T, input_precision=PRECISION) - tl.load(Delta + heads + at)[None, :]
            dk = tl.dot((p * d_weights).to(q.dtype), q, dk, input_precision=PRECISION)
    put(DK + b.to(tl.int64) * dk_b + g.to(tl.int64) * dk_h, dk * scale, j0, keys, dk_t, BN, WIDTH, D)
    put(DV_ + b.to(tl.int64) * dv_b + g.to(tl.int64) * dv_h, dv, j0, keys, dv_t, BN, VWIDTH, DV)
