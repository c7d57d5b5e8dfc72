# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportArgumentType=false
"""The three loops of attention over one part of the keys or rows: forward, dq, and dk with dv.

    P = exp(score − lse)      dP = grad · vᵀ      dS = P · (dP − delta),   delta = Σ grad · out − grad_lse
    dv = Pᵀ grad              dq = dS k           dk = dSᵀ q,              each times what multiplies q·k

KIND says what the part needs: see `parts`. With a mask, DOCS: rows and keys that see each other are of one document;
INDEXED: both have indices of their own, otherwise rows count up from i0 and keys from 0. Tiles have rows down and keys
across, but for dk and dv, where they are transposed and stay in registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from milepost.backends.triton.attention.parts import is_masked, relation_of, slope_of, table_of
from milepost.backends.triton.attention.score import (
    GRANULE,
    LOG2E,
    addressed,
    apart,
    distances,
    finished,
    looked_up,
    plus_diagonal,
    put_diagonal,
    put_related,
    related,
    seen,
    sloped,
    tile,
    weighed,
    within,
)
from milepost.backends.triton.packed.block_ranges import belonging, is_sink, numbered


class Bias(NamedTuple):
    """What is added to the scores of one head, in units of log2(e), and the cap."""

    behind_slope: Any = 0.0
    ahead_slope: Any = 0.0
    Table: Any = None
    """Numbers for the distances first … last; `far` is that of a part which has one number for all pairs."""
    first: Any = 0
    last: Any = 0
    cap: Any = 0.0
    Derivative: Any = None
    """Of the table, by the second of the two numbers that it follows from."""


class Vectors(NamedTuple):
    """What vectors by distance add to the products of one head: see `related` and `diagonal_at`."""

    ByRow: Any = None
    ByKey: Any = None
    Grad: Any = None
    """Where the gradient of one of them goes."""
    row_t: Any = 0
    key_t: Any = 0
    row_first: Any = 0
    key_first: Any = 0
    many: Any = 0


class Band(NamedTuple):
    """Which keys a row sees: j − i ≤ ahead and (i − j < behind or j < sinks)."""

    behind: Any
    ahead: Any
    sinks: Any = 0


@triton.constexpr_function
def _stages(mask_stages, masked, docs, indexed, looked_up):
    """Return how many tiles are in flight; None: as many as the kernel was launched with.

    Documents and indices take shared memory, too, and addresses of a tile's pairs even more.
    """
    if masked and indexed and looked_up:
        return 1
    return mask_stages if masked and (docs or indexed) else None


@triton.jit
def _product(
    q, K, b, g, i, j, i0, j0, keys, k_t, rows_left, vectors, BM, BN, WIDTH, D, TMA, PRECISION, RELATE, DIAGONAL
):
    """Return the products of a block of rows and the keys from j0 on, with what vectors by distance add; these keys"""
    by_key = vectors.ByKey
    if RELATE >= 2:
        by_key += j0.to(tl.int64) * vectors.key_t
    if (RELATE > 0) and (DIAGONAL == 0):
        # Asked for before the product, which it comes beside.
        more = related(
            vectors.ByRow, by_key, i, j, rows_left, keys - j0, vectors.row_first, vectors.key_first, vectors.many,
            vectors.row_t, vectors.key_t, BM, BN, RELATE,
        )  # fmt: skip
    k = tile(K, b, g, j0, keys, k_t, BN, WIDTH, D, TMA)
    x = tl.dot(q, k.T, input_precision=PRECISION)
    if (RELATE > 0) and (DIAGONAL > 0):
        x = plus_diagonal(
            x, vectors.ByRow, by_key, vectors.row_first, vectors.key_first - within(j0, DIAGONAL), i0, j0, rows_left,
            keys - j0, vectors.row_t, vectors.key_t, BM, BN, RELATE, True, PRECISION,
        )  # fmt: skip
    elif RELATE > 0:
        x += more
    return x, k


@triton.jit
def _score(x, c, far, i, j, i0, j0, bias, BM, BN, SLOPE, TABLE, CAP, SHIFT, FAST, READ, UPRIGHT):
    """Return the scores of a tile of products, the tanh that they went through, and what was added."""
    added = far
    if READ and (TABLE == 2):
        added = addressed(bias.Table, i, j, bias.first, bias.last)
    elif TABLE == 2:
        added = looked_up(distances(bias.Table, i0, j0, bias.first, bias.last, BM, BN), BM, BN, UPRIGHT)
    if SLOPE > 0:
        added = added + sloped(i, j, i0, bias.behind_slope, bias.ahead_slope, SLOPE, SHIFT, READ)
    x, bent = finished(x * c, added, bias.cap, (SLOPE > 0) or (TABLE > 0), CAP, FAST)
    return x, bent, added


@triton.jit
def keys_visible(i, j, at, own, KeyDocs, KeyIndex, keys, band, BEHIND, AHEAD, DOCS, INDEXED):
    """Return which of the keys at the places `at` each row sees; own: the rows' documents."""
    other = belonging(KeyDocs, at, at < keys, -2)[None, :] if DOCS else 0
    sink = is_sink(KeyIndex, at, at < keys, band.sinks, INDEXED)[None, :]
    return seen(i, j, at[None, :], own, other, keys, band.behind, band.ahead, sink, BEHIND, AHEAD, DOCS)


@triton.jit
def attend_keys(
    acc, l, m, q, K, V, b, g, lo, hi, far, c, i0, keys, k_t, v_t, band, bias, vectors,
    BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, KIND, BEHIND, AHEAD, TWO_SIDED=False, SLOPES=False, TABLED=False,
    CAP=0, SHARPEN=False, FAST=False, DOCS=False, INDEXED=False, MASK_STAGES=0, RELATES=0, DIAGONAL=0,
    i=0, own=0, KeyDocs=0, KeyIndex=0, rows_left=0,
):  # fmt: skip
    """Add the keys lo … hi to a running softmax: sums acc of values, l of weights, and the largest score m."""
    MASK: tl.constexpr = is_masked(KIND)
    SLOPE: tl.constexpr = slope_of(KIND, SLOPES, TABLED or (RELATES > 0), TWO_SIDED)
    TABLE: tl.constexpr = table_of(KIND, TABLED)
    RELATE: tl.constexpr = relation_of(KIND, RELATES)
    READ: tl.constexpr = MASK and INDEXED
    SHIFT: tl.constexpr = SLOPES and (CAP != 2) and (not INDEXED)
    STAGES: tl.constexpr = _stages(MASK_STAGES, MASK, DOCS, INDEXED, TABLE == 2)
    if not READ:
        i = (i0 + tl.arange(0, BM))[:, None]
    for j0 in tl.range(lo, hi, BN, num_stages=STAGES):
        j0 = tl.multiple_of(j0, BN)
        at = j0 + tl.arange(0, BN)
        j = numbered(KeyIndex, at, at < keys, 0, READ)[None, :]
        x, _ = _product(
            q, K, b, g, i, j, i0, j0, keys, k_t, rows_left, vectors, BM, BN, WIDTH, D, TMA, PRECISION, RELATE, DIAGONAL
        )
        if (SLOPE == 0) and (TABLE < 2) and (CAP == 0) and (not SHARPEN) and (not MASK):
            # Nothing but a factor and a number for the whole block: one multiply-add a score.
            highest = tl.maximum(m, tl.max(x, 1) * c + far)
            p = tl.exp2(x * c - (highest - far)[:, None])
        else:
            x, _, _ = _score(x, c, far, i, j, i0, j0, bias, BM, BN, SLOPE, TABLE, CAP, SHIFT, FAST, READ, True)
            if MASK:
                visible = keys_visible(i, j, at, own, KeyDocs, KeyIndex, keys, band, BEHIND, AHEAD, DOCS, READ)
                x = tl.where(visible, x, float("-inf"))
            highest = tl.maximum(m, tl.max(x, 1))
            p = tl.exp2(x - highest[:, None])
        kept = tl.exp2(m - highest)
        l = l * kept + tl.sum(p, 1)
        acc = acc * kept[:, None]
        v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m = highest
    return acc, l, m


@triton.jit
def query_gradients(
    dq, behind_sum, ahead_sum, past_sum, before_sum, q, grad, lse, delta, K, V, b, g, lo, hi, far, c, i0, keys,
    k_t, v_t, band, bias, vectors,
    BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, KIND, BEHIND, AHEAD, TWO_SIDED=False, SLOPES=False, TABLED=False,
    CAP=0, FAST=False, DOCS=False, INDEXED=False, MASK_STAGES=0, RELATES=0, DIAGONAL=0, SUM_BIAS=0, SUM_FAR=False,
    ENDS=False, i=0, own=0, KeyDocs=0, KeyIndex=0, rows_left=0, factor=0.0, row=0,
):  # fmt: skip
    """Add what the keys lo … hi give to dq, and, where asked, to the sums that biases need.

    SUM_BIAS, 1: dS times the distances behind and ahead, for slopes. 2: dS times the table, and times its Derivative,
    in units of log2(e); every distance that is seen is in the table then.

    Distances past the table's ends: block by block, or where DOCS or INDEXED one by one. Vectors of keys get their
    gradient here, dS · factor, by row and distance; before_sum has that of all distances from the first on ahead.
    """
    MASK: tl.constexpr = is_masked(KIND)
    SLOPE: tl.constexpr = slope_of(KIND, SLOPES, TABLED or (RELATES > 0), TWO_SIDED)
    TABLE: tl.constexpr = table_of(KIND, TABLED)
    RELATE: tl.constexpr = relation_of(KIND, RELATES)
    READ: tl.constexpr = MASK and INDEXED
    SHIFT: tl.constexpr = SLOPES and (CAP != 2) and (not INDEXED)
    STAGES: tl.constexpr = _stages(MASK_STAGES, MASK, DOCS, INDEXED, TABLE == 2)
    if not READ:
        i = (i0 + tl.arange(0, BM))[:, None]
    for j0 in tl.range(lo, hi, BN, num_stages=STAGES):
        j0 = tl.multiple_of(j0, BN)
        at = j0 + tl.arange(0, BN)
        j = numbered(KeyIndex, at, at < keys, 0, READ)[None, :]
        x, k = _product(
            q, K, b, g, i, j, i0, j0, keys, k_t, rows_left, vectors, BM, BN, WIDTH, D, TMA, PRECISION, RELATE, DIAGONAL
        )
        if (SLOPE == 0) and (TABLE < 2) and (CAP == 0):
            p = weighed(x * c, (lse - far)[:, None])
        else:
            x, bent, added = _score(x, c, far, i, j, i0, j0, bias, BM, BN, SLOPE, TABLE, CAP, SHIFT, FAST, READ, True)
            p = weighed(x, lse[:, None])
        if MASK:
            visible = keys_visible(i, j, at, own, KeyDocs, KeyIndex, keys, band, BEHIND, AHEAD, DOCS, READ)
            p = tl.where(visible, p, 0.0)
        v = tile(V, b, g, j0, keys, v_t, BN, VWIDTH, DV, TMA)
        dp = tl.dot(grad, v.T, input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        if CAP == 2:
            ds = ds * (1 - bent * bent)
        if (SUM_BIAS == 2) and (TABLE == 2):
            if READ:
                grown = addressed(bias.Derivative, i, j, bias.first, bias.last)
            else:
                grown = looked_up(distances(bias.Derivative, i0, j0, bias.first, bias.last, BM, BN), BM, BN, True)
            behind_sum += tl.sum(ds * added, 1)
            ahead_sum += tl.sum(ds * grown, 1)
        if SUM_BIAS == 1:
            away = apart(i, j, i0, READ)
            if SLOPE == 1:
                behind_sum -= tl.sum(ds * away, 1)
            elif SLOPE == 3:
                ahead_sum += tl.sum(ds * away, 1)
            else:
                behind_sum -= tl.sum(tl.where(away > 0, ds * away, 0.0), 1)
                ahead_sum += tl.sum(tl.where(away < 0, ds * away, 0.0), 1)
        if SUM_FAR and (DOCS or INDEXED):
            before_sum += tl.sum(tl.where(i - j <= bias.first, ds, 0.0), 1)
            past_sum += tl.sum(tl.where((i - j >= bias.last) & (i - j > bias.first), ds, 0.0), 1)
        elif SUM_FAR and (TABLE == 1 or MASK):
            corner = i0 - row + row // GRANULE * GRANULE
            first_key = j0 // GRANULE * GRANULE
            summed = tl.sum(ds, 1)
            is_past = corner - (first_key + GRANULE - 1) >= bias.last
            past_sum += tl.where(is_past, summed, 0.0)
            if TWO_SIDED:
                is_before = corner + GRANULE - 1 - first_key <= bias.first
                before_sum += tl.where(is_past, 0.0, tl.where(is_before, summed, 0.0))
        if CAP == 1:
            ds = ds * (1 - bent * bent)
        if RELATE == 1 or RELATE == 3:
            if ENDS:
                before_sum += tl.sum(tl.where(i - j <= vectors.row_first, ds, 0.0), 1)
            if DIAGONAL > 0:
                put_diagonal(
                    vectors.Grad, ds * factor, vectors.row_first, j0, tl.arange(0, BM)[:, None],
                    tl.arange(0, BN)[None, :], rows_left, vectors.row_t,
                )  # fmt: skip
            else:
                shown = visible.T if MASK else 0
                put_related(
                    vectors.Grad, (ds * factor).T, i.T - j.T, shown, rows_left, vectors.row_first, vectors.many,
                    vectors.row_t, BM, MASK, ENDS,
                )  # fmt: skip
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq, behind_sum, ahead_sum, past_sum, before_sum


@triton.jit
def key_gradients(
    dk, dv, before_sum, k, v, Q, Grad, Lse2, Delta, b, h, lo, hi, far, scale, j0, offset, rows, keys, q_t, do_t, sink,
    band, bias, vectors,
    BM, BN, WIDTH, VWIDTH, D, DV, TMA, PRECISION, KIND, BEHIND, AHEAD, TWO_SIDED=False, SLOPES=False, TABLED=False,
    CAP=0, SHARPEN=False, FAST=False, DOCS=False, INDEXED=False, MASK_STAGES=0, RELATES=0, DIAGONAL=0, ENDS=False,
    index=0, other=0, Docs=0, Index=0, Sharpen=0,
):  # fmt: skip
    """Add what the rows lo … hi of one head give to dk and dv.

    Keys past the end give garbage in their own rows of dk and dv only, which nobody writes: no mask for them. Rows past
    the end have a log-sum-exp of +∞, so that their weights are 0. index, other, sink: the keys' own indices, documents,
    and whether they are sinks. Vectors of queries get their gradient here, by key and distance; before_sum has that of
    all distances from the first on ahead.
    """
    MASK: tl.constexpr = is_masked(KIND)
    SLOPE: tl.constexpr = slope_of(KIND, SLOPES, TABLED or (RELATES > 0), TWO_SIDED)
    TABLE: tl.constexpr = table_of(KIND, TABLED)
    RELATE: tl.constexpr = relation_of(KIND, RELATES)
    READ: tl.constexpr = MASK and INDEXED
    SHIFT: tl.constexpr = SLOPES and (CAP != 2) and (not INDEXED)
    STAGES: tl.constexpr = _stages(MASK_STAGES, MASK, DOCS, INDEXED, TABLE == 2)
    across = tl.arange(0, BM)
    down = tl.arange(0, BN)
    place = (j0 + down)[:, None]
    j = index[:, None] if READ else place
    corner = vectors.key_first - within(j0, DIAGONAL)
    for row in tl.range(lo, hi, BM, num_stages=STAGES):
        row = tl.multiple_of(row, BM)
        i0 = offset + row
        at = row + across
        q = tile(Q, b, h, row, rows, q_t, BM, WIDTH, D, TMA)
        lse = tl.load(Lse2 + at)[None, :]
        i = numbered(Index, at, at < rows, offset, READ)[None, :]
        by_row = vectors.ByRow
        if (RELATE == 1) or (RELATE == 3):
            by_row += row.to(tl.int64) * vectors.row_t
        if (RELATE > 0) and (DIAGONAL == 0):
            # Asked for before the product, which it comes beside.
            more = related(
                by_row, vectors.ByKey, i.T, j.T, rows - row, keys - j0, vectors.row_first, vectors.key_first,
                vectors.many, vectors.row_t, vectors.key_t, BM, BN, RELATE,
            ).T  # fmt: skip
        x = tl.dot(k, q.T, input_precision=PRECISION)
        if (RELATE > 0) and (DIAGONAL > 0):
            x = plus_diagonal(
                x, by_row, vectors.ByKey, vectors.row_first - within(row, DIAGONAL), corner, i0, j0, rows - row,
                keys - j0, vectors.row_t, vectors.key_t, BM, BN, RELATE, False, PRECISION,
            )  # fmt: skip
        elif RELATE > 0:
            x += more
        c = scale * LOG2E
        if SHARPEN:
            sharpen = tl.load(Sharpen + at, mask=at < rows, other=1.0)[None, :]
            c = c * sharpen
        if (SLOPE == 0) and (TABLE < 2) and (CAP == 0):
            p = weighed(x * c, lse - far)
        else:
            x, bent, _ = _score(x, c, far, i, j, i0, j0, bias, BM, BN, SLOPE, TABLE, CAP, SHIFT, FAST, READ, False)
            if SHIFT:
                lse += bias.behind_slope * (i - i0).to(tl.float32)
            p = weighed(x, lse)
        if MASK:
            own = belonging(Docs, at, at < rows, -3)[None, :] if DOCS else 0
            theirs = other[:, None] if DOCS else 0
            visible = seen(i, j, place, own, theirs, keys, band.behind, band.ahead, sink[:, None], BEHIND, AHEAD, DOCS)
            p = tl.where(visible, p, 0.0)
        grad = tile(Grad, b, h, row, rows, do_t, BM, VWIDTH, DV, TMA)
        dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision=PRECISION)
        dp = tl.dot(v, grad.T, input_precision=PRECISION)
        ds = p * (dp - tl.load(Delta + at)[None, :])
        if CAP > 0:
            ds = ds * (1 - bent * bent)
        if SHARPEN:
            ds = ds * sharpen
        if RELATE >= 2:
            if ENDS:
                before_sum += tl.sum(tl.where(i - j <= vectors.key_first, ds, 0.0), 1)
            if DIAGONAL > 0:
                put_diagonal(
                    vectors.Grad, ds * scale, corner, i0, down[:, None], across[None, :], keys - j0, vectors.key_t
                )
            else:
                shown = visible.T if MASK else 0
                put_related(
                    vectors.Grad, ds.T * scale, i.T - j.T, shown, keys - j0, vectors.key_first, vectors.many,
                    vectors.key_t, BN, MASK, ENDS,
                )  # fmt: skip
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv, before_sum
