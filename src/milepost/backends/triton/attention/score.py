# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""What forward, both backward passes, the gradient of tables and decoding share: tiles, scores, what is visible.

Scores are kept in units of log2(e), so that every exponential is one `exp2`:

    x = (q·k + relate) · c + bias,  c = scale · sharpen(i) · log2(e),  score = cap · tanh(x / cap) where there is a cap

A query has index i (its row plus an offset), a key index j; distance is i − j, positive behind.
Rows and columns are passed as tensors that broadcast, [rows, 1] and [1, columns] or the other way round, so that the
same functions serve a tile and its transpose.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
FLOOR = tl.constexpr(-1e30)
"""Where a running maximum starts: finite, so that a row that sees nothing needs no special case."""
GRANULE = tl.constexpr(128)
"""Distances are near or far by squares of this side, whatever the tiles, so that all passes agree which are which."""

COUNTS = ["rows", "keys", "group", "offset", "behind", "ahead", "sinks", "first", "last"]
"""Arguments of most kernels for which they are not compiled anew."""


@triton.jit
def tile(X, b, h, row, rows, stride, ROWS, WIDTH, D, TMA):
    """Return rows `row … row + ROWS` of one head, [ROWS, WIDTH]; zeros past the ends.

    X is a descriptor of the whole tensor where TMA, otherwise a pointer to this head.
    """
    if TMA:
        return X.load([b, h, row, 0]).reshape([ROWS, WIDTH])
    else:
        at = tl.arange(0, ROWS)
        channel = tl.arange(0, WIDTH)
        pointers = X + row.to(tl.int64) * stride + at[:, None] * stride + channel[None, :]
        inside = (row + at < rows)[:, None]
        if D != WIDTH:
            inside = inside & (channel < D)[None, :]
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def put(X, x, row, rows, stride, ROWS, WIDTH, D):
    """Write a tile [ROWS, WIDTH] at `row` of one head."""
    at = tl.arange(0, ROWS)
    channel = tl.arange(0, WIDTH)
    pointers = X + row.to(tl.int64) * stride + at[:, None] * stride + channel[None, :]
    inside = (row + at < rows)[:, None]
    if D != WIDTH:
        inside = inside & (channel < D)[None, :]
    tl.store(pointers, x.to(X.dtype.element_ty), mask=inside)


@triton.jit
def besides(X, row, first, count, stride, ROWS, WIDTH, D):
    """Return a tile [ROWS, WIDTH] at `row` of what was found before, of which X has the rows first … first + count."""
    at = row + tl.arange(0, ROWS) - first
    channel = tl.arange(0, WIDTH)
    inside = ((at >= 0) & (at < count))[:, None] & (channel < D)[None, :]
    return tl.load(X + at.to(tl.int64)[:, None] * stride + channel[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def weighed(x, lse):
    """Return weights from scores and their rows' log-sum-exp, which may be more precise than the scores."""
    if lse.dtype == tl.float64:
        most = lse.to(tl.float32)
        left = tl.where(most == float("inf"), 0.0, lse - most)
        return tl.exp2(x - most - left.to(tl.float32))
    else:
        return tl.exp2(x - lse)


@triton.jit
def plus_keys(acc, l, m, x, V, j0, keys, v_t, BN, VWIDTH, DV, PRECISION):
    """Add keys with scores x to a running softmax: sums acc of values, l of weights, and the largest score m."""
    highest = tl.maximum(m, tl.max(x, 1))
    p = tl.exp2(x - highest[:, None])
    kept = tl.exp2(m - highest)
    l = l * kept + tl.sum(p, 1)
    v = tile(V, 0, 0, j0, keys, v_t, BN, VWIDTH, DV, False)
    return tl.dot(p.to(v.dtype), v, acc * kept[:, None], input_precision=PRECISION), l, highest


@triton.jit
def up_to(x, BLOCK):
    """x, rounded up to a whole block."""
    return (x + BLOCK - 1) // BLOCK * BLOCK


@triton.jit
def between(x, least, most):
    """x, kept within bounds."""
    return tl.minimum(tl.maximum(x, least), most)


@triton.jit
def seen(i, j, at, own, other, keys, behind, ahead, sink, BEHIND, AHEAD, DOCS):
    """Return which pairs are visible: j − i ≤ ahead and (i − j < behind or the key is a sink), among keys that exist.

    at: where the keys stand in memory. sink: which keys are sinks. DOCS: the documents of both must be the same, which
    those of padding and of keys past the end never are.
    """
    if DOCS:
        visible = own == other
    else:
        visible = at < keys
    if AHEAD:
        visible = visible & (j - i <= ahead)
    if BEHIND:
        visible = visible & ((i - j < behind) | sink)
    return visible


@triton.jit
def tanh(x, FAST):
    """tanh; FAST is the hardware's own, good to 2⁻¹¹, which a score made of 16-bit numbers cannot tell."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        # 1 − 2/(e²ˣ + 1) loses digits near zero, where five terms of the series have them all.
        far = 1 - 2 / (tl.exp2(x * 2.8853900817779268) + 1)
        xx = x * x
        series = 1 + xx * (-1 / 3 + xx * (2 / 15 + xx * (-17 / 315 + xx * (62 / 2835))))
        return tl.where(tl.abs(x) < 0.25, x * series, far)


@triton.constexpr_function
def _distances_in(rows, keys):
    """Return the least power of two that is as many as a tile has distances."""
    return 1 << (rows + keys - 1).bit_length()


@triton.jit
def distances(Table, i0, j0, first, last, BM, BN):
    """Return the entries that a tile of BM rows from i0 and BN columns from j0 can read, in units of log2(e)."""
    SPAN: tl.constexpr = _distances_in(BM, BN)
    distance = i0 - j0 - (BN - 1) + tl.arange(0, SPAN)
    return tl.load(Table + (between(distance, first, last) - first)) * LOG2E


@triton.jit
def looked_up(entries, BM, BN, UPRIGHT):
    """Return each pair's entry out of those that `distances` loaded: rows down, or keys where not UPRIGHT.

    Where in the entries a pair looks is the same in every tile, and the compiler can see that.
    """
    if UPRIGHT:
        at = tl.arange(0, BM)[:, None] - tl.arange(0, BN)[None, :] + (BN - 1)
        return tl.gather(entries, at.reshape([BM * BN]), 0).reshape([BM, BN])
    else:
        at = tl.arange(0, BM)[None, :] - tl.arange(0, BN)[:, None] + (BN - 1)
        return tl.gather(entries, at.reshape([BM * BN]), 0).reshape([BN, BM])


@triton.jit
def ends_of(Table, first, last, TABLE):
    """Return the entries of all distances past the last one, and before the first one, in units of log2(e)."""
    behind = 0.0
    ahead = 0.0
    if TABLE:
        behind = tl.load(Table + (last - first)) * LOG2E
        ahead = tl.load(Table) * LOG2E
    return behind, ahead


@triton.jit
def slopes_of(Slopes, Ahead, h, SLOPES):
    """Return a head's slopes behind and ahead, in units of log2(e)."""
    behind = 0.0
    ahead = 0.0
    if SLOPES:
        behind = tl.load(Slopes + h) * LOG2E
        ahead = tl.load(Ahead + h) * LOG2E
    return behind, ahead


@triton.jit
def addressed(Table, i, j, first, last):
    """Return each pair's entry, whatever the indices: one address a pair, so never in a pipelined loop."""
    return tl.load(Table + (between(i - j, first, last) - first)) * LOG2E


@triton.jit
def apart(i, j, i0, INDEXED):
    """Return i − j in float32.

    Whole numbers near i0 are cast a row and a column at a time, which is exact. INDEXED: they may be anywhere, so that
    their differences are cast.
    """
    if INDEXED:
        return (i - j).to(tl.float32)
    else:
        return (i - i0).to(tl.float32) - (j - i0).to(tl.float32)


@triton.jit
def sloped(i, j, i0, behind_slope, ahead_slope, SIDE, SHIFT, INDEXED):
    """−slope · |i − j|; where SHIFT, plus behind_slope · (i − i0), which makes it a row vector behind the diagonal.

    What is the same for a whole row moves its log-sum-exp and nothing else. SIDE 1: all keys are behind. 2: any. 3: all
    are ahead.
    """
    if SIDE == 1:
        if SHIFT:
            return behind_slope * (j - i0).to(tl.float32)
        else:
            return -behind_slope * apart(i, j, i0, INDEXED)
    elif SIDE == 3:
        # A number a row and a number a key.
        own = ahead_slope + behind_slope if SHIFT else ahead_slope
        return own * (i - i0).to(tl.float32) - ahead_slope * (j - i0).to(tl.float32)
    else:
        away = apart(i, j, i0, INDEXED)
        bias = tl.where(away > 0, -behind_slope * away, ahead_slope * away)
        if SHIFT:
            bias += behind_slope * (i - i0).to(tl.float32)
        return bias


@triton.jit
def finished(x, bias, cap, HAS_BIAS, CAP, FAST):
    """Return the score, and its tanh (0 without a cap). CAP 1: capped, then bent. 2: bent, then capped."""
    bent = 0.0
    if CAP == 1:
        bent = tanh(x * (1 / cap), FAST)
        x = cap * bent
    if HAS_BIAS:
        x = x + bias
    if CAP == 2:
        bent = tanh(x * (1 / cap), FAST)
        x = cap * bent
    return x, bent


@triton.jit
def within(at, DIAGONAL):
    """Return a tile's first token, counted among those whose numbers begin alike: see `diagonal_at`."""
    if DIAGONAL == 2:
        return at % GRANULE
    else:
        return at


@triton.jit
def diagonal_at(X, beside, begin, own, other, left, stride):
    """Return where the numbers of pairs lie, and which pairs have any; X begins at the first token that owns some.

    own, other: tokens of a tile, counted from its corner, one down and one across. Of eight tokens that follow one
    another each begins one distance further on, so that their numbers for one other token lie below one another, and
    those of neighbours side by side: a tile is read in whole lines. beside + begin: the column of the corner.
    """
    # The compiler believes this of a sum that is made here, and not of one that was given.
    column = tl.multiple_of(beside + begin, 16) + other - own // 8 * 8
    return X + own * stride + column, (own < left) & (column >= 0) & (column < stride)


@triton.jit
def _one(N, like):
    """Return the unit matrix [N, N]."""
    at = tl.arange(0, N)
    return tl.where(at[:, None] == at[None, :], 1.0, 0.0).to(like.dtype)


@triton.jit
def plus_diagonal(
    x, ByRow, ByKey, row_first, key_first, i0, j0, rows_left, keys_left, row_t, key_t,
    BM, BN, RELATE, UPRIGHT, PRECISION,
):  # fmt: skip
    """Return products of a tile plus, exactly, its numbers by distance: ByRow and ByKey begin with the tile's tokens.

    Numbers are multiplied by one on the tensor cores. What goes there is read ahead, while the tile before is worked
    on, and comes from shared memory; what is added is neither. UPRIGHT: rows down and keys across.
    """
    down = tl.arange(0, BM)
    across = tl.arange(0, BN)
    if RELATE != 2:
        at, inside = diagonal_at(ByRow, row_first, j0, down[:, None], across[None, :], rows_left, row_t)
        numbers = tl.load(at, mask=inside, other=0.0)
        if UPRIGHT:
            x = tl.dot(numbers, _one(BN, numbers), x, input_precision=PRECISION)
        else:
            x = tl.dot(_one(BN, numbers), numbers.T, x, input_precision=PRECISION)
    if RELATE >= 2:
        at, inside = diagonal_at(ByKey, key_first, i0, across[:, None], down[None, :], keys_left, key_t)
        numbers = tl.load(at, mask=inside, other=0.0)
        if UPRIGHT:
            x = tl.dot(_one(BM, numbers), numbers.T, x, input_precision=PRECISION)
        else:
            x = tl.dot(numbers, _one(BM, numbers), x, input_precision=PRECISION)
    return x


@triton.jit
def related(ByRow, ByKey, i, j, rows_left, keys_left, row_first, key_first, many, row_t, key_t, BM, BN, RELATE):
    """Return what vectors by distance add to the product of each pair, [BM, BN] in float32: i is [BM, 1], j is [1, BN].

    ByRow and ByKey begin at the tile's first row and key. Each has `many` numbers a token, for row_first or key_first
    and the distances after it; past them there is nothing to add, and what is further ahead has the first. RELATE 1: by
    row, 2: by key, 3: both. One address a pair. Where the compiler sees no order in addresses, a warp reads down a
    tile, so what a row owns is read with its rows across, and what a key owns with its keys across: neighbours in a
    warp are then neighbours in memory. Tokens past the end have the last one's, which nobody reads.
    """
    if RELATE != 2:
        at = tl.minimum(tl.arange(0, BM), rows_left - 1)[None, :] * row_t
        column = tl.maximum(i.T - j.T - row_first, 0)
        found = tl.load(ByRow + (at + column), mask=column < many, other=0.0).T.to(tl.float32)
    if RELATE >= 2:
        at = tl.minimum(tl.arange(0, BN), keys_left - 1)[None, :] * key_t
        column = tl.maximum(i - j - key_first, 0)
        down = tl.load(ByKey + (at + column), mask=column < many, other=0.0).to(tl.float32)
        if RELATE == 3:
            found += down
        else:
            found = down
    return found


@triton.jit
def put_related(X, x, distance, visible, left, first, many, stride, OWN, MASK, ENDS):
    """Write a tile [others, OWN] of gradients by distance, to X, which begins at the tile's first row, or key.

    No two pairs that see each other share an address. ENDS: but those that `first` stands for, which are summed.
    """
    at = tl.arange(0, OWN)[None, :]
    column = distance - first
    inside = (at < left) & (column < many)
    if ENDS:
        inside = inside & (column > 0)
    else:
        inside = inside & (column >= 0)
    if MASK:
        inside = inside & visible
    tl.store(X + (at * stride + column), x.to(X.dtype.element_ty), mask=inside)


@triton.jit
def put_diagonal(X, x, beside, begin, own, other, left, stride):
    """Write a tile of gradients by distance as `diagonal_at` reads it."""
    at, inside = diagonal_at(X, beside, begin, own, other, left, stride)
    tl.store(at, x.to(X.dtype.element_ty), mask=inside)
