# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""The gradient of a table by distance: sums of dS along diagonals.

Squares of 128 × 128 on one block diagonal have the same distances in the same places. So one program walks down a block
diagonal, adds up the tiles of dS as they are, and writes one tile; `fold` then sums its 255 diagonals. No atomics.
What lies past the table's ends is not walked: the pass over rows has summed it already.

Documents whose tokens have indices are walked in an order in which each lies together, so that the distances along a
diagonal are the same again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.attention.score import (
    COUNTS,
    GRANULE,
    LOG2E,
    distances,
    finished,
    looked_up,
    seen,
    sloped,
    slopes_of,
    tile,
    weighed,
)
from milepost.backends.triton.packed.block_ranges import belonging, is_sink, numbered


@triton.jit
def _score_gradients(
    q, k, v, grad, lse, delta, c, entries, i, j, i0, behind_slope, ahead_slope, cap, visible,
    BM, BN, MASK, SLOPES, CAP, FAST, PRECISION,
):  # fmt: skip
    """Return a tile of dS. entries: of the table, for its distances; MASK: visible says which pairs are."""
    bias = looked_up(entries, BM, BN, True)
    if SLOPES:
        bias = bias + sloped(i, j, i0, behind_slope, ahead_slope, 2, False, False)
    x = tl.dot(q, k.T, input_precision=PRECISION)
    x, bent = finished(x * c, bias, cap, True, CAP, FAST)
    p = weighed(x, lse[:, None])
    if MASK:
        p = tl.where(visible, p, 0.0)
    ds = p * (tl.dot(grad, v.T, input_precision=PRECISION) - delta[:, None])
    if CAP == 2:
        ds = ds * (1 - bent * bent)
    return ds


@triton.jit
def _steps(
    acc, begin, stop, Q, K, V, Grad, Lse2, Delta, Sharpen, h, g, low, count, diagonal, down, across, entries, i, j, i0,
    behind_slope, ahead_slope, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, do_b, do_h, do_t, l_b, l_h, sharpen_b, rows,
    keys, offset, behind, ahead, sinks, scale, cap,
    BM, BN, WIDTH, VWIDTH, D, DV, MASK, BEHIND, AHEAD, SLOPES, CAP, SHARPEN, FAST, TMA, PRECISION,
):  # fmt: skip
    """Add the tiles of dS of the steps begin … stop down a block diagonal, batch by batch."""
    at_row = tl.arange(0, BM)
    at_key = tl.arange(0, BN)
    for step in tl.range(begin, stop):
        b = step // count
        square = low + step % count
        row = (square + diagonal) * GRANULE + down
        j0 = square * GRANULE + across
        b64 = b.to(tl.int64)
        if TMA:
            q_head = Q
            k_head = K
            v_head = V
            grad_head = Grad
        else:
            q_head = Q + b64 * q_b + h.to(tl.int64) * q_h
            k_head = K + b64 * k_b + g.to(tl.int64) * k_h
            v_head = V + b64 * v_b + g.to(tl.int64) * v_h
            grad_head = Grad + b64 * do_b + h.to(tl.int64) * do_h
        at = row + at_row
        q = tile(q_head, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
        k = tile(k_head, b, g, j0, keys, k_t, BN, WIDTH, D, TMA)
        v = tile(v_head, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
        grad = tile(grad_head, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
        c = scale * LOG2E
        if SHARPEN:
            c = c * tl.load(Sharpen + b64 * sharpen_b + at, mask=at < rows, other=1.0)[:, None]
        lse = tl.load(Lse2 + b64 * l_b + h.to(tl.int64) * l_h + at)
        delta = tl.load(Delta + b64 * l_b + h.to(tl.int64) * l_h + at)
        place = (j0 + at_key)[None, :]
        own = (offset + at)[:, None]
        visible = seen(own, place, place, 0, 0, keys, behind, ahead, place < sinks, BEHIND, AHEAD, False)
        acc += _score_gradients(
            q, k, v, grad, lse, delta, c, entries, i, j, i0, behind_slope, ahead_slope, cap, visible,
            BM, BN, MASK, SLOPES, CAP, FAST, PRECISION,
        )  # fmt: skip
    return acc


@triton.jit
def _lines(X, at, inside, stride, WIDTH, D):
    """Return the rows `at` of one head, wherever they are, [ROWS, WIDTH]."""
    channel = tl.arange(0, WIDTH)
    mask = inside[:, None]
    if D != WIDTH:
        mask = mask & (channel < D)[None, :]
    return tl.load(X + at.to(tl.int64)[:, None] * stride + channel[None, :], mask=mask, other=0.0)


@triton.jit
def _meet(own, other):
    """True if some row and some key may be of one document."""
    least = tl.min(tl.where(own < 0, 9223372036854775807, own.to(tl.int64)), 0)
    other_least = tl.min(tl.where(other < 0, 9223372036854775807, other.to(tl.int64)), 0)
    return (least <= tl.max(other, 0)) & (other_least <= tl.max(own, 0))


@triton.jit
def _steps_of_documents(
    acc, begin, stop, Q, K, V, Grad, Lse2, Delta, Sharpen, Docs, KeyDocs, Index, KeyIndex, Order, h, g, low, count,
    diagonal, down, across, entries, i, j, i0, behind_slope, ahead_slope, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    do_b, do_h, do_t, l_b, l_h, sharpen_b, docs_b, key_docs_b, index_b, key_index_b, order_b, rows, keys, offset,
    behind, ahead, sinks, scale, cap,
    BM, BN, WIDTH, VWIDTH, D, DV, BEHIND, AHEAD, SLOPES, CAP, SHARPEN, FAST, PRECISION, DOCS, INDEXED,
):  # fmt: skip
    """Return the same of tokens that have documents. INDEXED: Order says which token comes where along the diagonal."""
    h64 = h.to(tl.int64)
    for step in tl.range(begin, stop, num_stages=1):
        b = (step // count).to(tl.int64)
        square = low + step % count
        row = (square + diagonal) * GRANULE + down + tl.arange(0, BM)
        key = square * GRANULE + across + tl.arange(0, BN)
        real = row < rows
        there = key < keys
        if INDEXED:
            row = tl.load(Order + b * order_b + row, mask=real, other=0).to(tl.int32)
            key = tl.load(Order + b * order_b + key, mask=there, other=0).to(tl.int32)
        own = belonging(Docs + b * docs_b, row, real, -3)
        other = belonging(KeyDocs + b * key_docs_b, key, there, -2)
        index = numbered(Index + b * index_b, row, real, 0, True) if INDEXED else offset + row
        key_index = numbered(KeyIndex + b * key_index_b, key, there, 0, True) if INDEXED else key
        needed = _meet(own, other)
        sink = is_sink(KeyIndex + b * key_index_b, key, there, sinks, True) if INDEXED else key < sinks
        if BEHIND:
            needed = needed & ((i0 - across - (BN - 1) < behind) | (tl.max((there & sink).to(tl.int32), 0) > 0))
        if needed:
            q = _lines(Q + b * q_b + h64 * q_h, row, real, q_t, WIDTH, D)
            k = _lines(K + b * k_b + g.to(tl.int64) * k_h, key, there, k_t, WIDTH, D)
            v = _lines(V + b * v_b + g.to(tl.int64) * v_h, key, there, v_t, VWIDTH, DV)
            grad = _lines(Grad + b * do_b + h64 * do_h, row, real, do_t, VWIDTH, DV)
            c = scale * LOG2E
            if SHARPEN:
                c = c * tl.load(Sharpen + b * sharpen_b + row, mask=real, other=1.0)[:, None]
            lse = tl.load(Lse2 + b * l_b + h64 * l_h + row, mask=real, other=float("inf"))
            delta = tl.load(Delta + b * l_b + h64 * l_h + row, mask=real, other=0.0)
            visible = seen(
                index[:, None], key_index[None, :], key[None, :], own[:, None], other[None, :], keys, behind, ahead,
                sink[None, :], BEHIND, AHEAD, DOCS,
            )  # fmt: skip
            acc += _score_gradients(
                q, k, v, grad, lse, delta, c, entries, i, j, i0, behind_slope, ahead_slope, cap, visible,
                BM, BN, True, SLOPES, CAP, FAST, PRECISION,
            )  # fmt: skip
    return acc


@triton.jit(do_not_specialize=[*COUNTS, "lowest", "parts", "batches"])
def walk(
    Q, K, V, Grad, Lse2, Delta, Tiles, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Order, Longest,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, do_b, do_h, do_t, l_b, l_h, table_h, sharpen_b,
    docs_b, key_docs_b, index_b, key_index_b, order_b,
    rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap, lowest, parts, batches,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, SLOPES: tl.constexpr, CAP: tl.constexpr, SHARPEN: tl.constexpr,
    FAST: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, DOCS: tl.constexpr,
    INDEXED: tl.constexpr,
):  # fmt: skip
    """Sum dS over one part of one block diagonal of one head, for one tile of its square.

    Tiles [h, diagonals, parts, 128, 128] in float32; block diagonals are counted from `lowest`.
    """
    DOWN: tl.constexpr = GRANULE // BM
    ACROSS: tl.constexpr = GRANULE // BN
    pid = tl.program_id(0)
    h = tl.program_id(1)
    g = h // group
    corner = pid % (DOWN * ACROSS)
    part = pid // (DOWN * ACROSS) % parts
    which = pid // (DOWN * ACROSS) // parts
    diagonal = which + lowest
    down = corner // ACROSS * BM
    across = corner % ACROSS * BN

    # Key squares on this diagonal; past the window only those that hold sinks.
    low = tl.maximum(-diagonal, 0)
    high = tl.minimum(tl.cdiv(keys, GRANULE), tl.cdiv(rows, GRANULE) - diagonal)
    if BEHIND and (not DOCS):  # noqa: SIM102, this one the compiler decides
        if offset + diagonal * GRANULE - (GRANULE - 1) >= behind:
            high = tl.minimum(high, tl.cdiv(sinks, GRANULE))
    count = tl.maximum(high - low, 0)
    if INDEXED:
        # In their order the tokens of a document stand as far apart as their indices are: on a diagonal that is further
        # out than any two indices there is no pair.
        out = tl.maximum(diagonal, -diagonal) * GRANULE - (GRANULE - 1)
        count = tl.where(out > tl.load(Longest), 0, count)
    steps = count * batches
    each = tl.cdiv(steps, parts)

    cap = cap * LOG2E
    behind_slope, ahead_slope = slopes_of(Slopes, Ahead, h, SLOPES)
    # The distances are the same in every tile of the walk, so the biases are, too.
    i0 = offset + diagonal * GRANULE + down
    at_row = tl.arange(0, BM)
    at_key = tl.arange(0, BN)
    i = (i0 + at_row)[:, None]
    j = (across + at_key)[None, :]
    Table += h.to(tl.int64) * table_h
    entries = distances(Table, i0, across, first, last, BM, BN)

    # Where every pair is visible and every key exists, nothing needs a mask.
    nearest = i0 - across - (BN - 1)
    whole = keys % GRANULE == 0
    if AHEAD:
        whole = whole & (-nearest <= ahead)
    if BEHIND:
        whole = whole & (nearest + BM + BN - 2 < behind)
    acc = tl.zeros([BM, BN], tl.float32)
    begin = part * each
    stop = tl.minimum(begin + each, steps)
    if DOCS:
        acc = _steps_of_documents(
            acc, begin, stop, Q, K, V, Grad, Lse2, Delta, Sharpen, Docs, KeyDocs, Index, KeyIndex, Order, h, g, low,
            count, diagonal, down, across, entries, i, j, i0, behind_slope, ahead_slope,
            q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, do_b, do_h, do_t, l_b, l_h, sharpen_b,
            docs_b, key_docs_b, index_b, key_index_b, order_b, rows, keys, offset, behind, ahead, sinks, scale, cap,
            BM, BN, WIDTH, VWIDTH, D, DV, BEHIND, AHEAD, SLOPES, CAP, SHARPEN, FAST, PRECISION, DOCS, INDEXED,
        )  # fmt: skip
    else:
        # Two loops in turn, one of them empty: branches would each have shared memory of their own.
        turn = tl.where(whole, stop, begin)
        begins = (begin, turn)
        stops = (turn, stop)
        for masked in tl.static_range(2):
            acc = _steps(
                acc, begins[masked], stops[masked], Q, K, V, Grad, Lse2, Delta, Sharpen, h, g, low, count, diagonal,
                down, across, entries, i, j, i0, behind_slope, ahead_slope,
                q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, do_b, do_h, do_t, l_b, l_h, sharpen_b,
                rows, keys, offset, behind, ahead, sinks, scale, cap,
                BM, BN, WIDTH, VWIDTH, D, DV, masked == 1, BEHIND, AHEAD, SLOPES, CAP, SHARPEN, FAST, TMA, PRECISION,
            )  # fmt: skip
    Tiles += (((h * (tl.num_programs(0) // (DOWN * ACROSS * parts)) + which) * parts + part).to(tl.int64)) * (
        GRANULE * GRANULE
    )
    tl.store(Tiles + (down + at_row)[:, None] * GRANULE + (across + at_key)[None, :], acc)


@triton.jit(do_not_specialize=["parts", "count"])
def fold(Tiles, ByDistance, parts, count, BM: tl.constexpr):
    """Sum the diagonals of one part's squares: the 128 distances that two squares have between them.

    Square D has the distances 128 D … 128 D + 254 from the least on, the corner above its diagonal first. ByDistance
    [h, parts, 128 (count + 1)] gets all.
    """
    block = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    # From the last distance to the first, so that neighbours in a warp are neighbours in memory.
    back = tl.arange(0, GRANULE)
    acc = tl.zeros([GRANULE], tl.float32)
    for half in range(2):
        which = block - half
        if (which >= 0) & (which < count):
            square = Tiles + ((h * count + which) * parts + part) * (GRANULE * GRANULE)
            for top in range(0, GRANULE, BM):
                row = top + tl.arange(0, BM)
                column = row[:, None] + (back - half * GRANULE)[None, :]
                inside = (column >= 0) & (column < GRANULE)
                acc += tl.sum(tl.load(square + row[:, None] * GRANULE + column, mask=inside, other=0.0), 0)
    tl.store(ByDistance + ((h * parts + part) * (count + 1) + block) * GRANULE + (GRANULE - 1 - back), acc)


@triton.jit(do_not_specialize=["batches", "heads", "blocks", "length", "parts", "start", "first", "last"])
def totals(
    Sums, ByDistance, DSlopes, DAhead, DTable, d_h, batches, heads, blocks, length, parts, start, first, last,
    BLOCK: tl.constexpr, SLOPES: tl.constexpr, SIDES: tl.constexpr, TABLE: tl.constexpr, WALKED: tl.constexpr,
):  # fmt: skip
    """Compute of one head: the gradients of its slopes (of one for both SIDES, or each), and of its table.

    Sums [b h blocks 4] come from the pass over rows, ByDistance [h, parts, length] from `fold`. WALKED: the walk has
    some of what lies past the table's ends; otherwise the rows have it all.
    """
    h = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    s0 = tl.zeros([BLOCK], tl.float32)
    s1 = tl.zeros([BLOCK], tl.float32)
    s2 = tl.zeros([BLOCK], tl.float32)
    s3 = tl.zeros([BLOCK], tl.float32)
    # Blocks of all rows of the batch, one after another.
    for begin in range(0, batches * blocks, BLOCK):
        block = begin + at
        inside = block < batches * blocks
        b = block // blocks
        entry = Sums + ((b * heads + h).to(tl.int64) * blocks + (block - b * blocks)) * 4
        if SLOPES:
            s0 += tl.load(entry, mask=inside, other=0.0)
            s1 += tl.load(entry + 1, mask=inside, other=0.0)
        if TABLE:
            s2 += tl.load(entry + 2, mask=inside, other=0.0)
            s3 += tl.load(entry + 3, mask=inside, other=0.0)
    if SLOPES:
        if SIDES:
            tl.store(DSlopes + h, tl.sum(s0, 0))
            tl.store(DAhead + h, tl.sum(s1, 0))
        else:
            tl.store(DSlopes + h, tl.sum(s0, 0) + tl.sum(s1, 0))
    if TABLE:
        line = ByDistance + h.to(tl.int64) * parts * length
        own = DTable + h.to(tl.int64) * d_h - first
        for begin in range(0, length, BLOCK):
            inside = begin + at < length
            distance = start + begin + at
            value = tl.zeros([BLOCK], tl.float32)
            for part in range(parts):
                value += tl.load(line + part * length + begin + at, mask=inside, other=0.0)
            tl.store(own + distance, value, mask=inside & (distance > first) & (distance < last))
            if WALKED:
                s3 += tl.where(distance <= first, value, 0.0)
                s2 += tl.where((distance >= last) & (distance > first), value, 0.0)
        if first == last:
            tl.store(own + first, tl.sum(s2, 0) + tl.sum(s3, 0))
        else:
            tl.store(own + first, tl.sum(s3, 0))
            tl.store(own + last, tl.sum(s2, 0))
