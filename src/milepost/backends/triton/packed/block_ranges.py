# pyright: basic, reportMissingImports=false
"""Which blocks anybody sees, where tokens have documents or indices of their own: found on the device, read there.

A document is a number of 0 or more; anything below is padding, which sees nothing and is not seen. For every block of
rows (or of keys) one small kernel finds the least and the largest document and index in it, and another compares these
with every block of the other side. Nothing is hidden that a pair could see, whatever the order of the tokens; how much
is left out depends on it: everything that can be, where documents lie together and count up.

Indices are compared in 64 bits here. The attention kernels cut them to 32 bits: distances are right where they are less
than 2³⁰, wherever the indices themselves are. A row that sees a key of its own document 2³⁰ or further away gives NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import batch_step, launch

FIELDS = 8
"""Numbers of a block: first and past-the-last sink, start, full, edge, end, offset, and 1 if a distance is too long."""
MANY = tl.constexpr(1 << 30)
LONGEST = tl.constexpr(1 << 30)
"""The least distance that the kernels do not measure."""
LAST_NAME = tl.constexpr((1 << 62) - 1)


class Tokens(NamedTuple):
    """Documents and indices of a call, [b|1 n] in int32 or int64, each for the queries and for the keys; or None."""

    documents: Tensor | None = None
    key_documents: Tensor | None = None
    index: Tensor | None = None
    key_index: Tensor | None = None

    @property
    def flags(self) -> dict[str, bool]:
        """Return what the kernels are compiled for."""
        return {"DOCS": self.documents is not None, "INDEXED": self.index is not None}

    @property
    def any(self) -> bool:
        return self.documents is not None or self.index is not None

    def apart(self) -> Tokens:
        """Return the same, where queries and keys share no tensor."""
        own, keys, index, key_index = self
        keys = keys.view_as(keys) if keys is not None and keys is own else keys
        key_index = key_index.view_as(key_index) if key_index is not None and key_index is index else key_index
        return Tokens(own, keys, index, key_index)

    @property
    def steps(self) -> tuple[int, ...]:
        """Return how far apart the rows of the batch lie: 0 where all share one."""
        return tuple(map(batch_step, self))


def ready(tokens: tuple[Tensor | None, ...]) -> Tokens:
    """Return the same, as the kernels read them."""
    return Tokens(*(each if each is None or each.stride(-1) == 1 else each.contiguous() for each in tokens))


@triton.jit
def numbered(Index, at, inside, offset, INDEXED):
    """Return the indices of the tokens at the places `at`, cut to 32 bits: what counts are their differences."""
    if INDEXED:
        return tl.load(Index + at, mask=inside, other=0).to(tl.int32)
    else:
        return offset + at


@triton.jit
def is_sink(KeyIndex, at, inside, sinks, INDEXED):
    """True for the keys at the places `at` whose index is below `sinks`."""
    if INDEXED:
        return tl.load(KeyIndex + at, mask=inside, other=0) < sinks
    else:
        return at < sinks


@triton.jit
def poison(Bounds):
    """Return NaN if some distance of this block is too long for the kernels, otherwise 0."""
    return tl.where(tl.load(Bounds + 7) > 0, float("nan"), 0.0)


@triton.jit
def belonging(Docs, at, inside, NOBODY):
    """Return their documents. Padding is NOBODY, which differs on the two sides: equal documents see each other."""
    document = tl.load(Docs + at, mask=inside, other=NOBODY)
    return tl.where(document < 0, NOBODY, document)


@triton.jit
def _outlined(Docs, Index, Outline, at, count, offset, STRICT, DOCS, INDEXED):
    """Write of the tokens at `at` the least and the largest document, index, and index less place; 1 if none is padded.

    STRICT: places past the end count as padding.
    """
    inside = at < count
    if DOCS:
        document = tl.load(Docs + at, mask=inside, other=-1).to(tl.int64)
    else:
        document = tl.where(inside, 0, -1).to(tl.int64)
    if INDEXED:
        index = tl.load(Index + at, mask=inside, other=0).to(tl.int64)
    else:
        index = (offset + at).to(tl.int64)
    real = document >= 0
    if STRICT:
        clean = tl.min(real.to(tl.int32), 0)
    else:
        clean = tl.min((real | (at >= count)).to(tl.int32), 0)
    tl.store(Outline, tl.min(tl.where(real, document, LAST_NAME), 0))
    tl.store(Outline + 1, tl.max(tl.where(real, document, -1), 0))
    tl.store(Outline + 2, tl.min(tl.where(real, index, LAST_NAME), 0))
    tl.store(Outline + 3, tl.max(tl.where(real, index, -LAST_NAME), 0))
    tl.store(Outline + 4, tl.min(tl.where(real, index - at, LAST_NAME), 0))
    tl.store(Outline + 5, tl.max(tl.where(real, index - at, -LAST_NAME), 0))
    tl.store(Outline + 6, clean)


@triton.jit(do_not_specialize=["count", "others", "offset", "other_offset", "blocks"])
def outline(
    Docs, OtherDocs, Index, OtherIndex, Outlines, doc_b, other_doc_b, index_b, other_index_b,
    count, others, offset, other_offset, blocks,
    OWN: tl.constexpr, OTHER: tl.constexpr, BY_ROWS: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
):  # fmt: skip
    """Outline each block of OWN tokens, and after these each block of OTHER tokens of the other side."""
    block = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    Outlines += (b * tl.num_programs(0) + block) * 8
    if DOCS:
        Docs += b * doc_b
        OtherDocs += b * other_doc_b
    if INDEXED:
        Index += b * index_b
        OtherIndex += b * other_index_b
    if block < blocks:
        own = block * OWN + tl.arange(0, OWN)
        _outlined(Docs, Index, Outlines, own, count, offset, False, DOCS, INDEXED)
    else:
        other = (block - blocks) * OTHER + tl.arange(0, OTHER)
        _outlined(OtherDocs, OtherIndex, Outlines, other, others, other_offset, BY_ROWS, DOCS, INDEXED)


@triton.jit
def _compared(Outlines, c, blocks, a_doc, b_doc, a, b, behind, ahead, sinks, BY_ROWS, BEHIND, AHEAD):
    """Return blocks c of the other side beside one whose documents are a_doc … b_doc and whose indices are a … b.

    Which may be seen (for rows: not only as sinks), which may be seen as sinks, which are seen whole, as far as these
    numbers tell, the index less the place in each, and which may have a token too far from one here.
    """
    inside = c < blocks
    at = Outlines + c * 8
    c_doc = tl.load(at, mask=inside, other=LAST_NAME)
    d_doc = tl.load(at + 1, mask=inside, other=-1)
    least = tl.load(at + 2, mask=inside, other=LAST_NAME)
    most = tl.load(at + 3, mask=inside, other=-LAST_NAME)
    low = tl.load(at + 4, mask=inside, other=LAST_NAME)
    high = tl.load(at + 5, mask=inside, other=-LAST_NAME)
    clean = tl.load(at + 6, mask=inside, other=0) > 0
    near = (a_doc <= d_doc) & (c_doc <= b_doc)
    long = near & ((b - least >= LONGEST) | (most - a >= LONGEST))
    whole = clean & (c_doc == d_doc) & (a_doc == b_doc) & (a_doc == c_doc) & (low == high)
    if BY_ROWS:
        least_i, most_i, least_j, most_j = a, b, least, most
    else:
        least_i, most_i, least_j, most_j = least, most, a, b
    if AHEAD:
        near = near & (least_j - most_i <= ahead)
        whole = whole & (most_j - least_i <= ahead)
    sink = near & (least_j < sinks)
    if BEHIND:
        near = near & (least_i - most_j < behind)
        whole = whole & ((most_i - least_j < behind) | (most_j < sinks))
        if not BY_ROWS:
            near = near | sink
    return near, sink, whole & near & (long == 0), low, long


@triton.jit
def _too_long(Docs, OtherDocs, Index, OtherIndex, own, count, others, OTHER, DOCS):
    """Return 1 if one of the tokens at `own` is too far from a token of its document on the other side, otherwise 0."""
    there = own < count
    index = tl.load(Index + own, mask=there, other=0).to(tl.int64)[:, None]
    document = tl.where(there, 0, -3)[:, None]
    if DOCS:
        document = belonging(Docs, own, there, -3)[:, None]
    found = tl.zeros([], tl.int32)
    for begin in range(0, others, OTHER):
        other = begin + tl.arange(0, OTHER)
        inside = other < others
        away = index - tl.load(OtherIndex + other, mask=inside, other=0).to(tl.int64)[None, :]
        other_document = tl.where(inside, 0, -2)[None, :]
        if DOCS:
            other_document = belonging(OtherDocs, other, inside, -2)[None, :]
        long = (document == other_document) & (tl.abs(away) >= LONGEST)
        found = tl.maximum(found, tl.max(tl.max(long.to(tl.int32), 1), 0))
    return found


@triton.jit(do_not_specialize=["count", "others", "blocks", "behind", "ahead", "sinks"])
def cut(
    Docs, OtherDocs, Index, OtherIndex, Outlines, Bounds, doc_b, other_doc_b, index_b, other_index_b,
    count, others, blocks, behind, ahead, sinks,
    OWN: tl.constexpr, OTHER: tl.constexpr, MANY_BLOCKS: tl.constexpr, BY_ROWS: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr,
):  # fmt: skip
    """Compute the bounds of one block of rows (BY_ROWS) or keys among the blocks of OTHER tokens of the other side.

    Blocks in [start, full) and [edge, end) need a mask, those in [full, edge) are seen whole: one document, and indices
    that count up, so that i − j = offset + row − key. Sinks before start lie between the first two numbers; rows only.
    """
    block = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    own = tl.num_programs(0)
    Outlines += b * (own + blocks) * 8
    mine = Outlines + block * 8
    Outlines += own * 8
    a_doc = tl.load(mine)
    b_doc = tl.load(mine + 1)
    first = tl.load(mine + 2)
    last = tl.load(mine + 3)
    low = tl.load(mine + 4)
    high = tl.load(mine + 5)
    clean = tl.load(mine + 6) > 0
    number = tl.arange(0, MANY_BLOCKS)
    start = tl.full([], 1 << 30, tl.int32)
    end = tl.zeros([], tl.int32)
    full = tl.full([], 1 << 30, tl.int32)
    shift = tl.zeros([], tl.int64)
    long = tl.zeros([], tl.int32)
    edge = blocks + tl.zeros([], tl.int32)
    for c0 in range(0, blocks, MANY_BLOCKS):
        c = c0 + number
        near, _, whole, moved, some_long = _compared(
            Outlines, c, blocks, a_doc, b_doc, first, last, behind, ahead, sinks, BY_ROWS, BEHIND, AHEAD
        )  # fmt: skip
        whole = whole & clean & (low == high)
        long = tl.maximum(long, tl.max(some_long.to(tl.int32), 0))
        start = tl.minimum(start, tl.min(tl.where(near, c, MANY), 0))
        end = tl.maximum(end, tl.max(tl.where(near, c + 1, 0), 0))
        found = tl.min(tl.where(whole, c, MANY), 0)
        shift = tl.where(found < full, tl.sum(tl.where(c == found, moved, 0), 0), shift)
        full = tl.minimum(full, found)
        # The run of whole blocks ends where one is not, or where indices jump.
        broken = (c > full) & ((whole == 0) | (moved != shift))
        edge = tl.minimum(edge, tl.min(tl.where(broken, c, MANY), 0))
    start = tl.minimum(start, end)
    sink_first = start
    sink_last = tl.zeros([], tl.int32)
    if BY_ROWS and BEHIND:
        past = tl.where(end == 0, MANY, start)
        more = end
        sink_first = tl.full([], 1 << 30, tl.int32)
        for c0 in range(0, tl.where(sinks > 0, blocks, 0), MANY_BLOCKS):
            c = c0 + number
            _, sink, _, _, _ = _compared(
                Outlines, c, blocks, a_doc, b_doc, first, last, behind, ahead, sinks, BY_ROWS, BEHIND, AHEAD
            )  # fmt: skip
            before = sink & (c < past)
            sink_first = tl.minimum(sink_first, tl.min(tl.where(before, c, MANY), 0))
            sink_last = tl.maximum(sink_last, tl.max(tl.where(before, c + 1, 0), 0))
            more = tl.maximum(more, tl.max(tl.where(sink & (c >= past), c + 1, 0), 0))
        end = more
    sink_first = tl.minimum(sink_first, sink_last)
    edge = tl.where(full < end, edge, end)
    full = tl.minimum(full, end)
    Bounds += (b * tl.num_programs(0) + block) * 8
    tl.store(Bounds, sink_first * OTHER)
    tl.store(Bounds + 1, sink_last * OTHER)
    tl.store(Bounds + 2, start * OTHER)
    tl.store(Bounds + 3, full * OTHER)
    tl.store(Bounds + 4, edge * OTHER)
    tl.store(Bounds + 5, end * OTHER)
    if BY_ROWS:
        tl.store(Bounds + 6, (low - shift).to(tl.int32))
    else:
        tl.store(Bounds + 6, (shift - low).to(tl.int32))
    if INDEXED:
        if DOCS:
            Docs += b * doc_b
            OtherDocs += b * other_doc_b
        # Blocks have a few numbers each, which may be of several documents.
        if BY_ROWS and (long > 0):
            long = _too_long(
                Docs, OtherDocs, Index + b * index_b, OtherIndex + b * other_index_b, block * OWN + tl.arange(0, OWN),
                count, others, OTHER, DOCS,
            )  # fmt: skip
    tl.store(Bounds + 7, long)


def bounds(
    tokens: Tokens, counts: tuple[int, ...], own: int, other: int, by_rows: bool, flags: dict[str, Any]
) -> tuple[Tensor, int]:
    """Return the bounds of blocks of `own` rows, or keys, among blocks of `other`: [b|1 blocks 8] int32, and its step.

    counts: as `Call.counts`; flags: BEHIND and AHEAD.
    """
    rows, keys, _, offset, behind, ahead, sinks, *_ = counts
    sides = (rows, keys, offset, 0) if by_rows else (keys, rows, 0, offset)
    documents, key_documents, index, key_index = tokens
    pointers = (documents, key_documents, index, key_index) if by_rows else (
        key_documents, documents, key_index, index
    )  # fmt: skip
    steps = tokens.steps if by_rows else tuple(tokens.steps[n] for n in (1, 0, 3, 2))
    some = next(each for each in pointers if each is not None)
    batches = max(each.shape[0] for each in pointers if each is not None) if any(steps) else 1
    blocks = blocks_of(sides[0], own)
    others = blocks_of(sides[1], other)
    found = torch.empty(batches, blocks, FIELDS, dtype=torch.int32, device=some.device)
    outlines = torch.empty(batches, blocks + others, FIELDS, dtype=torch.int64, device=some.device)
    launch(
        outline, (blocks + others, batches), *pointers, outlines, *steps, *sides, blocks,
        OWN=own, OTHER=other, BY_ROWS=by_rows, **tokens.flags, num_warps=4,
    )  # fmt: skip
    launch(
        cut, (blocks, batches), *pointers, outlines, found, *steps, *sides[:2], others, behind, ahead, sinks,
        OWN=own, OTHER=other, MANY_BLOCKS=min(power_of_two(others), 1024), BY_ROWS=by_rows, **flags, **tokens.flags,
        num_warps=4,
    )  # fmt: skip
    return found, 0 if batches == 1 else blocks * FIELDS
