# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""Which keys a block of rows sees, and which rows see a block of keys, in parts that need different work.

A block of rows goes over six parts of the keys, a block of keys over five parts of the rows:

    keys:  [sink, past) and [start, full) MASKED, [full, near) BACK, [near, beyond) LOOK, [beyond, edge) FRONT,
           [edge, end) MASKED
    rows:  [start, full) MASKED, [full, near) FRONT, [near, beyond) LOOK, [beyond, edge) BACK, [edge, end) MASKED

MASKED: some pairs are not visible. BACK: every key is so far behind its query that a table has one number for all.
FRONT: likewise ahead. LOOK: every pair looks its number up. A loop over a part is compiled without what it does not
need, and parts that cannot occur are not compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl

from milepost.backends.triton.attention.score import GRANULE, between, up_to
from milepost.backends.triton.packed.block_ranges import belonging, numbered

MASKED, BACK, LOOK, FRONT = range(4)
_KEYS = (MASKED, MASKED, BACK, LOOK, FRONT, MASKED)
_ROWS = (MASKED, FRONT, LOOK, BACK, MASKED)


@triton.constexpr_function
def kind_of_keys(part):
    """Return what a part of the keys is."""
    return _KEYS[part]


@triton.constexpr_function
def kind_of_rows(part):
    """Return what a part of the rows is."""
    return _ROWS[part]


@triton.constexpr_function
def is_masked(kind):
    """True if some pairs of a part are not visible."""
    return kind == MASKED


@triton.constexpr_function
def slope_of(kind, slopes, looked, two_sided):
    """Return which keys have a slope in a part. 0: none, 1: all behind, 2: on any side, 3: all ahead."""
    if not slopes:
        return 0
    if kind == BACK:
        return 2 if looked and two_sided else 1
    if kind == LOOK:
        return 2 if two_sided else 1
    return 3 if kind == FRONT and not looked else 2


@triton.constexpr_function
def table_of(kind, table):
    """Return how a part reads a table by distance. 0: not at all, 1: one number for all pairs, 2: one for each."""
    return (2 if kind in (MASKED, LOOK) else 1) if table else 0


@triton.constexpr_function
def relation_of(kind, relate):
    """Return which vectors by distance a part adds: see `related`."""
    return relate if kind in (MASKED, LOOK) else 0


@triton.constexpr_function
def _has(kind, slopes, table, relate, two_sided):
    if kind == LOOK:
        return table or relate > 0 or (slopes and two_sided)
    return kind != FRONT or (two_sided and (table or slopes) and relate == 0)


@triton.constexpr_function
def has_keys(part, behind, bounded, slopes, table, relate, two_sided):
    """True if a part of the keys can have any."""
    if part < 2:
        return behind or (part == 1 and bounded)
    return _has(_KEYS[part], slopes, table, relate, two_sided)


@triton.constexpr_function
def has_rows(part, behind, ahead, bounded, slopes, table, relate, two_sided, short):
    """True if a part of the rows can have any; short: the first has all."""
    if part == 0:
        return ahead or bounded
    return not short and (part < 4 or behind or bounded) and _has(_ROWS[part], slopes, table, relate, two_sided)


@triton.jit
def keys_seen(i0, i1, keys, behind, ahead, BN, BEHIND, AHEAD):
    """Return start, full, edge and end of the keys that the rows i0 … i1 see, but for sinks."""
    end = up_to(keys, BN)
    edge = keys // BN * BN
    if AHEAD:
        end = up_to(between(i1 + ahead + 1, 0, keys), BN)
        edge = between(i0 + ahead + 1, 0, keys) // BN * BN
    start = 0
    full = 0
    if BEHIND:
        start = tl.minimum(tl.maximum(i0 - behind + 1, 0) // BN * BN, end)
        full = tl.minimum(up_to(tl.maximum(i1 - behind + 1, 0), BN), end)
    return start, full, tl.maximum(edge, full), end


@triton.jit
def keys_looked_up(full, edge, i0, corner, first, last, BM, BN, SLOPES, TABLE, RELATE, TWO_SIDED):
    """Return near and beyond. corner: the index of the first row of the square of GRANULE rows."""
    near = edge
    beyond = edge
    if TABLE or (RELATE > 0):
        near = between(tl.maximum(corner - last + 1, 0) // GRANULE * GRANULE, full, edge)
        if TWO_SIDED and TABLE:
            beyond = between(up_to(tl.maximum(corner + GRANULE - 1 - first, 0), GRANULE), near, edge)
    elif SLOPES and TWO_SIDED:
        near = between(tl.maximum(i0 + 1, 0) // BN * BN, full, edge)
        beyond = between(up_to(tl.maximum(i0 + BM, 0), BN), near, edge)
    return near, beyond


@triton.jit
def parts_of_keys(
    Docs, Index, Bounds, Away, b, h, block, rows, keys, offset, behind, ahead, sinks, first, last, docs_b, index_b,
    bounds_b, BM, BN, BEHIND, AHEAD, TWO_SIDED, SLOPES, TABLE, DOCS, INDEXED, RELATE, REACH,
):  # fmt: skip
    """Return the parts of the keys that a block of rows sees: sink, past, start, full, near, beyond, edge, end.

    And the rows: the index that blocks which are seen whole count from, their indices and their documents. REACH: keys
    too far back to weigh anything are left out; Away has how far that is.
    """
    b64 = b.to(tl.int64)
    row = block * BM
    i0 = offset + row
    at = row + tl.arange(0, BM)
    i = (i0 + tl.arange(0, BM))[:, None]
    own = 0
    sink = 0
    past = 0
    if DOCS or INDEXED:
        Bounds += b64 * bounds_b + block * 8
        sink = tl.load(Bounds)
        past = tl.load(Bounds + 1)
        start = tl.load(Bounds + 2)
        full = tl.load(Bounds + 3)
        edge = tl.load(Bounds + 4)
        end = tl.load(Bounds + 5)
    else:
        i1 = offset + tl.minimum(row + BM, rows) - 1
        start, full, edge, end = keys_seen(i0, i1, keys, behind, ahead, BN, BEHIND, AHEAD)
        if BEHIND:
            past = tl.minimum(up_to(sinks, BN), start)
        if REACH:
            place = (b64 * tl.num_programs(1) + h) * (tl.cdiv(rows, GRANULE) + 1) + row // GRANULE
            full = tl.minimum(tl.maximum(i0 - tl.load(Away + place), 0) // BN * BN, edge)
            start = full
    if DOCS:
        own = belonging(Docs + b64 * docs_b, at, at < rows, -3)[:, None]
    if INDEXED:
        i = numbered(Index + b64 * index_b, at, at < rows, 0, True)[:, None]
        # Blocks that are seen whole count up on both sides: their rows stand here among the keys.
        offset = tl.load(Bounds + 6)
        i0 = offset + row
    near, beyond = keys_looked_up(
        full, edge, i0, offset + row // GRANULE * GRANULE, first, last, BM, BN, SLOPES, TABLE, RELATE, TWO_SIDED
    )
    return sink, past, start, full, near, beyond, edge, end, i0, i, own


@triton.jit
def rows_seen(j0, j1, offset, rows, behind, ahead, sinks, BM, BEHIND, AHEAD):
    """Return start, full, edge and end of the rows that see the keys j0 … j1; sinks are seen by all rows after them."""
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
    return tl.minimum(start, end), full, between(edge, full, end), end


@triton.jit
def rows_looked_up(full, edge, j0, j1, offset, first, last, BM, SLOPES, TABLE, RELATE, TWO_SIDED):
    """Return near and beyond."""
    near = full
    beyond = full
    if TABLE or (RELATE > 0):
        corner = j0 // GRANULE * GRANULE - offset
        beyond = between(up_to(tl.maximum(corner + GRANULE - 1 + last, 0), GRANULE), full, edge)
        if TWO_SIDED and TABLE:
            near = between(tl.maximum(corner + 1 + first, 0) // GRANULE * GRANULE, full, beyond)
    elif SLOPES and TWO_SIDED:
        near = between(tl.maximum(j0 - offset, 0) // BM * BM, full, edge)
        beyond = between(up_to(tl.maximum(j1 - offset, 0), BM), near, edge)
    return near, beyond
