# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""Decoding: few queries against many keys, the keys split over programs and the parts joined.

Bound by reading keys and values once. The query heads that share a key head, and all their tokens, are the rows of one
tile, so that a key is read once for all of them. A second kernel joins the parts by their log-sum-exps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from milepost.backends.triton.attention.flash import (
    GIVEN,
    INTERPRETED,
    UNLIMITED,
    Call,
    Facets,
    _like,
    _width,
    check,
    close,
)
from milepost.backends.triton.attention.score import (
    COUNTS,
    FLOOR,
    LN2,
    LOG2E,
    between,
    finished,
    plus_keys,
    seen,
    tile,
    up_to,
)
from milepost.backends.triton.packed.block_ranges import Tokens, belonging, bounds, is_sink, numbered, poison
from milepost.backends.triton.runtime.configs import blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import (
    Launched,
    Layers,
    batch_step,
    device_of,
    launch,
    launch_alike,
    looks_of,
)
from milepost.backends.triton.runtime.played import arguments, define
from milepost.memory.surroundings import has_numbers


@triton.jit
def _paired(lines, inside, N, HALF, PAIRS, NEIGHBOURS):
    """Return the two channels of each pair of some rows, [N, HALF] each; lines: where each row begins, [N, 1]."""
    pair = tl.arange(0, HALF)[None, :]
    if NEIGHBOURS:
        both = tl.arange(0, 2 * HALF)[None, :]
        pairs = tl.load(lines + both, mask=inside & (both < 2 * PAIRS), other=0.0)
        return tl.split(pairs.reshape([N, HALF, 2]))
    else:
        x = tl.load(lines + pair, mask=inside & (pair < PAIRS), other=0.0)
        y = tl.load(lines + PAIRS + pair, mask=inside & (pair < PAIRS), other=0.0)
        return x, y


@triton.jit
def _rotated(x, y, Cos, Sin, at, inside, c_t, HALF, PAIRS):
    """Return the same channels turned by the angles of the tokens `at`, [N, 1], in their own dtype."""
    pair = tl.arange(0, HALF)[None, :]
    angle = at.to(tl.int64) * c_t + pair
    mask = inside & (pair < PAIRS)
    cos = tl.load(Cos + angle, mask=mask, other=0.0)
    sin = tl.load(Sin + angle, mask=mask, other=0.0)
    wide, high = x.to(tl.float32), y.to(tl.float32)
    return (wide * cos - high * sin).to(x.dtype), (wide * sin + high * cos).to(y.dtype)


@triton.jit
def _turned(lines, Cos, Sin, at, inside, c_t, WIDTH, D, PAIRS, NEIGHBOURS):
    """Return whole rows, [N, WIDTH], turned by the angles of the tokens `at`: each channel with its pair's other."""
    channel = tl.arange(0, WIDTH)[None, :]
    if NEIGHBOURS:
        first = channel % 2 == 0
        pair = channel // 2
        other = tl.where(first, channel + 1, channel - 1)
    else:
        first = channel < PAIRS
        pair = tl.where(first, channel, channel - PAIRS)
        other = tl.where(first, channel + PAIRS, channel - PAIRS)
    mask = inside & (channel < 2 * PAIRS)
    x = tl.load(lines + channel, mask=inside & (channel < D), other=0.0)
    y = tl.load(lines + other, mask=mask, other=0.0).to(tl.float32)
    angle = at.to(tl.int64) * c_t + pair
    cos = tl.load(Cos + angle, mask=mask, other=1.0)
    sin = tl.load(Sin + angle, mask=mask, other=0.0)
    return (x.to(tl.float32) * cos + tl.where(first, -y, y) * sin).to(x.dtype)


@triton.jit(do_not_specialize=[*COUNTS, "splits", "o_s", "l_s"])
def attend_split(
    Q, K, V, Out, Lse, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Bounds, QCos, QSin, Cos, Sin,
    Lengths, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, o_s, l_b, l_h, l_t, l_s, table_h, sharpen_b,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b, qc_b, qc_t, c_b, c_t,
    rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap, splits,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, SLOPES: tl.constexpr, TABLE: tl.constexpr, CAP: tl.constexpr,
    SHARPEN: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, LENGTHS: tl.constexpr,
    TURN: tl.constexpr, ROTATE: tl.constexpr, NEIGHBOURS: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    REST: tl.constexpr, DOCS: tl.constexpr, INDEXED: tl.constexpr, SKIP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attend all keys, split over programs: out and lse of one block of rows over one share of the keys.

    Row r is token r % rows of query head r // rows of the group. LENGTHS: batch row b has Lengths[b] keys, and its
    queries are the last of them. TURN: queries are rotated here; ROTATE: keys are. SKIP: the first `sinks` keys are not
    seen at all, where otherwise they are by all. EARLY: the next kernel may start while this one runs, and this one
    while the one before it does; whoever reads what they write waits for the last, which waits for the others.
    """
    if EARLY:
        gdc_launch_dependents()
    split = tl.program_id(0) % splits
    top = tl.program_id(0) // splits * BM
    g = tl.program_id(1)
    b = tl.program_id(2)
    b64 = b.to(tl.int64)
    K += b64 * k_b + g.to(tl.int64) * k_h
    V += b64 * v_b + g.to(tl.int64) * v_h
    if LENGTHS:
        keys = tl.load(Lengths + b).to(tl.int32)
        offset = keys - rows
    r = top + tl.arange(0, BM)
    real = r < group * rows
    token = r % rows
    head = g * group + tl.where(real, r // rows, 0)
    i = (offset + token)[:, None]
    own = 0
    if DOCS:
        own = belonging(Docs + b64 * docs_b, token, real, -3)[:, None]
        KeyDocs += b64 * key_docs_b
    if INDEXED:
        i = numbered(Index + b64 * index_b, token, real, 0, True)[:, None]
        KeyIndex += b64 * key_index_b
    lines = Q + b64 * q_b + head.to(tl.int64)[:, None] * q_h + token.to(tl.int64)[:, None] * q_t
    # Keys that are turned here meet queries by pairs of channels, all others whole rows.
    if ROTATE:
        q1, q2 = _paired(lines, real[:, None], BM, HALF, PAIRS, NEIGHBOURS)
        if TURN:
            QCos += b64 * qc_b
            QSin += b64 * qc_b
            q1, q2 = _rotated(q1, q2, QCos, QSin, token[:, None], real[:, None], qc_t, HALF, PAIRS)
        if REST > 0:
            rest = 2 * PAIRS + tl.arange(0, REST)[None, :]
            q3 = tl.load(lines + rest, mask=real[:, None] & (rest < D), other=0.0)
        Cos += b64 * c_b
        Sin += b64 * c_b
    elif TURN:
        QCos += b64 * qc_b
        QSin += b64 * qc_b
        q = _turned(lines, QCos, QSin, token[:, None], real[:, None], qc_t, WIDTH, D, PAIRS, NEIGHBOURS)
    else:
        channel = tl.arange(0, WIDTH)[None, :]
        q = tl.load(lines + channel, mask=real[:, None] & (channel < D), other=0.0)

    c = scale * LOG2E
    if SHARPEN:
        c = c * tl.load(Sharpen + b64 * sharpen_b + token)[:, None]
    behind_slope = 0.0
    ahead_slope = 0.0
    if SLOPES:
        behind_slope = tl.load(Slopes + head)[:, None] * LOG2E
        ahead_slope = tl.load(Ahead + head)[:, None] * LOG2E
    if TABLE:
        entries = Table + head.to(tl.int64)[:, None] * table_h
    cap = cap * LOG2E

    # Blocks that anyone can see: those of the sinks, then those of the band. Each program takes its share of them.
    end = up_to(keys, BN)
    if AHEAD:
        end = up_to(between(offset + rows + ahead, 0, keys), BN)
    start = 0
    sink = 0
    sink_blocks = 0
    if BEHIND:
        start = tl.minimum(tl.maximum(offset - behind + 1, 0) // BN * BN, end)
        sink_blocks = 0 if SKIP else tl.minimum(up_to(sinks, BN), start) // BN
    if DOCS or INDEXED:
        Bounds += b64 * bounds_b
        sink = tl.load(Bounds)
        sink_blocks = (tl.load(Bounds + 1) - sink) // BN
        start = tl.load(Bounds + 2)
        end = tl.load(Bounds + 5)
    blocks = sink_blocks + (end - start) // BN
    m = tl.full([BM], FLOOR, tl.float32)
    l = tl.zeros([BM], tl.float32)
    if INDEXED:
        l += poison(Bounds)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    # All shares are of as many blocks, or of one more: none is idle.
    for block in tl.range(split * blocks // splits, (split + 1) * blocks // splits):
        j0 = tl.where(block < sink_blocks, sink + block * BN, start + (block - sink_blocks) * BN)
        at = j0 + tl.arange(0, BN)
        j = numbered(KeyIndex, at, at < keys, 0, INDEXED)[None, :]
        if ROTATE:
            there = (at < keys)[:, None]
            k1, k2 = _paired(K + at.to(tl.int64)[:, None] * k_t, there, BN, HALF, PAIRS, NEIGHBOURS)
            k1, k2 = _rotated(k1, k2, Cos, Sin, at[:, None], there, c_t, HALF, PAIRS)
            x = tl.dot(q1, k1.T, input_precision=PRECISION)
            x = tl.dot(q2, k2.T, x, input_precision=PRECISION)
            if REST > 0:
                k3 = tile(K + 2 * PAIRS, 0, 0, j0, keys, k_t, BN, REST, D - 2 * PAIRS, False)
                x = tl.dot(q3, k3.T, x, input_precision=PRECISION)
        else:
            k = tile(K, 0, 0, j0, keys, k_t, BN, WIDTH, D, False)
            x = tl.dot(q, k.T, input_precision=PRECISION)
        bias = 0.0
        if TABLE:
            bias = tl.load(entries + (between(i - j, first, last) - first)) * LOG2E
        if SLOPES:
            away = (i - j).to(tl.float32)
            bias = bias + tl.where(away > 0, -behind_slope * away, ahead_slope * away)
        x, _ = finished(x * c, bias, cap, SLOPES or TABLE, CAP, FAST)
        other = belonging(KeyDocs, at, at < keys, -2)[None, :] if DOCS else 0
        spared = is_sink(KeyIndex, at, at < keys, 0 if SKIP else sinks, INDEXED)[None, :]
        visible = seen(i, j, at[None, :], own, other, keys, behind, ahead, spared, BEHIND, AHEAD, DOCS)
        if SKIP:
            visible = visible & (at[None, :] >= sinks)
        x = tl.where(visible, x, float("-inf"))
        acc, l, m = plus_keys(acc, l, m, x, V, j0, keys, v_t, BN, VWIDTH, DV, PRECISION)

    blind = l == 0
    lse = tl.where(blind, float("-inf"), (m + tl.log2(tl.where(blind, 1.0, l))) * LN2)
    out = acc / tl.where(blind, 1.0, l)[:, None]
    h64 = head.to(tl.int64)
    t64 = token.to(tl.int64)
    s64 = split.to(tl.int64)
    tl.store(Lse + b64 * l_b + h64 * l_h + t64 * l_t + s64 * l_s, lse, mask=real)
    channel = tl.arange(0, VWIDTH)[None, :]
    lines = Out + b64 * o_b + h64[:, None] * o_h + t64[:, None] * o_t + s64 * o_s
    tl.store(lines + channel, out.to(Out.dtype.element_ty), mask=real[:, None] & (channel < DV))
    if EARLY:
        gdc_wait()


@triton.jit(do_not_specialize=["splits", "rows", "near"])
def join(
    Parts, PartLse, Out, Lse, Strength, Gain, o_b, o_h, o_t, strength_b, gain_b, heads, rows, splits, near,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, DV: tl.constexpr, CONTRAST: tl.constexpr, GAINS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK channels of one row's parts, Parts [b h t splits dv] and PartLse [b h t splits], joined:
    Σ out · exp(lse − all's lse).

    CONTRAST: parts from number `near` on are of far keys, set off against what the others offer. GAINS: their scores
    have a number added. EARLY: launched before the parts are there.
    """
    at = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    if EARLY:
        gdc_wait()
    lse = tl.load(PartLse + at * splits + split, mask=split < splits, other=float("-inf"))
    if CONTRAST:
        beside = tl.where(split < near, lse, float("-inf"))
        most = tl.maximum(tl.max(beside, 0), FLOOR)
        offered = tl.sum(tl.exp2((beside - most) * LOG2E), 0)
        level = tl.where(offered == 0, 0.0, most + tl.log2(tl.where(offered == 0, 1.0, offered)) * LN2)
        strength = tl.load(Strength + at // rows // heads * strength_b + at % rows)
        lse -= tl.where(split < near, 0.0, strength * level)
    if GAINS:
        lse += tl.where(split < near, 0.0, tl.load(Gain + at // rows // heads * gain_b + at % rows))
    highest = tl.maximum(tl.max(lse, 0), FLOOR)
    weight = tl.exp2((lse - highest) * LOG2E)
    total = tl.sum(weight, 0)
    blind = total == 0
    whole = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = whole[None, :]
    inside = (split < splits)[:, None] & (channel < DV)
    parts = tl.load(Parts + (at * splits + split)[:, None] * DV + channel, mask=inside, other=0.0)
    out = tl.sum(parts * weight[:, None], 0) / tl.where(blind, 1.0, total)
    t = at % rows
    h = at // rows % heads
    b = at // rows // heads
    tl.store(Out + b * o_b + h * o_h + t * o_t + whole, out.to(Out.dtype.element_ty), mask=whole < DV)
    if tl.program_id(1) == 0:
        tl.store(Lse + at, tl.where(blind, float("-inf"), highest + tl.log2(tl.where(blind, 1.0, total)) * LN2))


LITTLE = 1 << 25
"""Bytes of keys up to which a step waits for its launches and for the first keys to come, and not for all of them."""

JOINED = 32
"""Channels of a row that a program joins."""


class Setting(NamedTuple):
    """Keys a block, warps, blocks in flight, and programs that fill the chip: by measurement."""

    keys: int
    warps: int
    stages: int
    programs: int


NO_TOKENS = Tokens()
SETTINGS = {"little": Setting(32, 2, 3, 528), "much": Setting(32, 4, 3, 264)}


def decode(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, offset: int | None = None,
    behind: int | None = None, ahead: int | None = 0, cap: float | None = None, sharpen: Tensor | None = None,
    query_cos: Tensor | None = None, query_sin: Tensor | None = None, key_cos: Tensor | None = None,
    key_sin: Tensor | None = None, neighbours: bool = False, lengths: Tensor | None = None, **more: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return attention of a few queries over many keys, and each row's log-sum-exp; no gradient.

    As `flash`, but causal by default, and the queries are the last of the keys unless `offset` says where
    they start. lengths: [b] int32, how many keys each row of the batch has, its queries being the last of them: the
    same launch then serves every step, as a CUDA graph wants. key_cos, key_sin: [b|1 s width/2] float32, for keys that
    are stored raw: they are rotated as they are read, by halves or `neighbours`; query_cos, query_sin: [b|1 t width/2],
    for queries that are not rotated yet.
    """
    b, _, t, d = q.shape
    s = k.shape[2]
    limits = (UNLIMITED if each is None else min(each, UNLIMITED) for each in (behind, ahead))
    how = Facets(
        **more, scale=d**-0.5 if scale is None else scale, offset=s - t if offset is None else offset,
        cap=cap or 0.0, sharpen=sharpen, **dict(zip(("behind", "ahead"), limits, strict=True)),
    )  # fmt: skip
    check("decode", q, k, v, how, cap)
    for side, count, cos, sin in (("query", t, query_cos, query_sin), ("key", s, key_cos, key_sin)):
        if (cos is None) != (sin is None):
            raise ValueError(f"decode: {side}_cos and {side}_sin come together; give both or neither")
        for name, each in (("cos", cos), ("sin", sin)):
            if each is not None and (each.dim() != 3 or each.shape[0] not in (1, b) or each.shape[1] < count):
                raise ValueError(f"decode: {side}_{name} is {list(each.shape)}; give [{b} or 1, {count}, width/2]")
    if query_cos is not None and key_cos is not None and query_cos.shape[2] != key_cos.shape[2]:
        raise ValueError(
            f"decode: query_cos has {query_cos.shape[2]} pairs and key_cos {key_cos.shape[2]}; they must agree"
        )
    if lengths is not None and (lengths.shape != (b,) or lengths.dtype != torch.int32):
        raise ValueError(f"decode: lengths is {list(lengths.shape)} in {lengths.dtype}; give [{b}] in torch.int32")
    if lengths is not None and how.tokens.any:
        raise ValueError("decode: lengths say which keys each row has; give documents and indices without them")
    if lengths is not None and offset is not None:
        raise ValueError("decode: lengths say where the queries start; leave offset out")
    if sharpen is not None and sharpen.dim() == 1:
        how = how._replace(sharpen=sharpen[None])
    # In no graph and no mode the operator would add nothing but time.
    run = _decode if has_numbers() else torch.ops.milepost.decode
    return run(q, k, v, lengths, query_cos, query_sin, key_cos, key_sin, neighbours, *how[:16])


def _empty(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _decode(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, query_cos: Tensor | None, query_sin: Tensor | None,
    key_cos: Tensor | None, key_sin: Tensor | None, neighbours: bool, *given: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch both kernels."""
    b, h, t, _ = q.shape
    s, dv = v.shape[2:]
    out, lse = _empty(q, k, v)
    if 0 in out.shape:
        return out, lse
    if s == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    q, k, v = close(q, k, v)
    call = Call(q, k, v, Facets(*given))
    shape = _Shape.of(q, k, v)
    splits = shape.splits(s)
    if splits == 1:
        parts, part_lse = out, lse
        part_steps = (*out.stride()[:3], 0, *lse.stride(), 0)
    else:
        parts, part_lse = lse.new_empty(b, h, t, splits, dv), lse.new_empty(b, h, t, splits)
        part_steps = (*parts.stride()[:4], *part_lse.stride())
    turns = Turns(query_cos, query_sin, key_cos, key_sin, neighbours)
    with device_of(q):
        limits = None, 0
        if call.tokens.any:
            sides = {"BEHIND": call.counts[4] < UNLIMITED, "AHEAD": call.counts[5] < UNLIMITED}
            limits = bounds(call.tokens, call.counts, max(16, power_of_two(t)), shape.keys, True, sides)
        _launch_split(
            q, k, v, parts, part_lse, part_steps, splits, shape, turns, call.counts, call.scale, call.tensors,
            call.steps, call.tokens, limits, lengths, call.cap, call.capped,
        )  # fmt: skip
        if splits > 1:
            _launch_join(parts, part_lse, out, lse)
    return out, lse


def decode_bare(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, offset: int, behind: int, ahead: int,
    slopes: Tensor | None = None, slopes_ahead: Tensor | None = None, turns: Turns | None = None,
    return_lse: bool = True,
) -> Made:  # fmt: skip
    """`decode` of tensors that were found right before, with slopes at most, and never in a graph that is traced."""
    h, t = q.shape[1:3]
    g, s = v.shape[1:3]
    q, k, v = close(q, k, v)
    shape = _Shape.of(q, k, v)
    splits = shape.splits(s)
    out, lse, parts, part_lse, made = _room(q, v, splits, return_lse)
    counts = (t, s, h // g, offset, behind, ahead, 0, 0, 0)
    tensors = (slopes, slopes if slopes_ahead is None else slopes_ahead, None, None)
    with device_of(q):
        steps = (*parts.stride()[:4], *part_lse.stride())
        split = _launch_split(q, k, v, parts, part_lse, steps, splits, shape, turns or Turns(), counts, scale, tensors)
        joined = _launch_join(parts, part_lse, out, lse)
    assert split is not None
    return Made(out, lse, made, (split, joined))


class Made(NamedTuple):
    """What a step made, and how."""

    out: Tensor
    lse: Tensor
    """Part of what was made on the way, where nobody asked for it."""
    made: tuple[Tensor, ...]
    """All memory that was asked for: the output, the log-sum-exp if it was wanted, and what was made on the way."""
    launches: tuple[Launched, ...]


def repeating(step: Callable[[Tensor, Tensor, Tensor, int], Made | None], wants_lse: bool) -> Callable[..., Any]:
    """Return a step whose launches are repeated for the model's next layers."""
    layers = Layers()

    def run(q: Tensor, k: Tensor, v: Tensor, first: int) -> tuple[Tensor, Tensor | None] | None:
        asked = k.shape[2], first
        made = layers.again(asked, (q, k, v))
        if made is None:
            found = step(q, k, v, first)
            if found is None:
                return None
            layers.keep(asked, (q, k, v), found.made, found.launches)
            made = found
        return made[0], made[1] if wants_lse else None

    return run


def _room(
    q: Tensor, v: Tensor, splits: int, return_lse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Return memory for the output, the log-sum-exp, and those of each split, in few tensors, as each costs time."""
    b, h, t, _ = q.shape
    dv, rows = v.shape[3], b * h * t
    # Whole lines of sixteen bytes, so that all of it can be read in those.
    first = 0 if return_lse else -(-rows // 4) * 4
    last = first + -(-rows * splits // 4) * 4
    out, beside = _like(q, dv), q.new_empty(last + rows * splits * dv, dtype=torch.float32)
    lse = q.new_empty(b, h, t, dtype=torch.float32) if return_lse else beside[:rows].view(b, h, t)
    part_lse = beside[first : first + rows * splits].view(b, h, t, splits)
    parts = beside[last:].view(b, h, t, splits, dv)
    return out, lse, parts, part_lse, (out, lse, beside) if return_lse else (out, beside)


class Turns(NamedTuple):
    """Cosines and sines [b|1 n width/2] by which queries and keys are turned as they are read; None for neither."""

    query_cos: Tensor | None = None
    query_sin: Tensor | None = None
    key_cos: Tensor | None = None
    key_sin: Tensor | None = None
    neighbours: bool = False


class Field(NamedTuple):
    """Some of the keys: how they meet the queries, and which they are, by distance."""

    turns: Turns
    behind: int
    ahead: int


class _Shape(NamedTuple):
    """How a step is shared out: rows and keys of a tile, tiles of rows, programs for each share of the keys."""

    rows: int
    keys: int
    tops: int
    programs: int
    warps: int
    stages: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> _Shape:
        b, h, t, _ = q.shape
        g = k.shape[1]
        rows = min(64, max(16, power_of_two(h // g * t)))
        setting = SETTINGS["little" if k.nbytes <= LITTLE else "much"]
        tops = blocks_of(h // g * t, rows)
        # At full precision registers hold the tiles.
        stages = 1 if q.itemsize > 2 and not INTERPRETED else setting.stages
        programs = blocks_of(setting.programs, b * g * tops)
        return cls(rows, setting.keys, tops, programs, max(setting.warps, rows // 8), stages)

    def splits(self, keys: int) -> int:
        """Return into how many shares so many keys are split."""
        return max(1, min(self.programs, blocks_of(keys, self.keys), 128))

    def near_and_far(self, near: int, far: int, own: int, little: bool) -> tuple[int, int]:
        """Return the same of so many near keys and so many far ones, where `own` shares more are read."""
        if not little:
            first = max(1, min(self.splits(near), self.programs * near // (near + far)))
            return first, max(1, min(self.splits(far), 128 - own - first))
        # All run side by side. Near keys are turned, and take twice as long; where they are few, each block is a share.
        most = max(self.programs // 4 + 1, self.programs * 2 * near // (2 * near + far))
        first = max(1, min(self.splits(near), most))
        return first, max(1, min(self.splits(far), self.programs - own - first))


def decode_fields(
    q: Tensor, k: Tensor, v: Tensor, near: Field, far: Field, *, scale: float, offset: int,
    strength: Tensor | None = None, gain: Tensor | None = None, sinks: int = 0, spared: Turns | None = None,
    return_lse: bool = True,
) -> Made:  # fmt: skip
    """Return the same where near and far keys meet the queries in different ways, joined at once; no gradient.

    strength: [b|1 t], where far scores are set off against the near keys' log-sum-exp; gain: [b|1 t], what is added to
    them. The first `sinks` keys, as far as they are far, count as near, and are turned by `spared`. Never in a graph
    that is traced.
    """
    h, t, s = *q.shape[1:3], v.shape[2]
    q, k, v = close(q, k, v)
    shape = _Shape.of(q, k, v)
    # Sinks are a share of their own.
    own, little = int(spared is not None), k.nbytes <= LITTLE
    beside, others = min(s, near.behind + t - 1 + shape.keys), max(1, offset + t + far.ahead)
    first, second = shape.near_and_far(beside, others, own, little)
    splits = own + first + second
    out, lse, parts, part_lse, made = _room(q, v, splits, return_lse)
    with device_of(q):
        steps = (*parts.stride()[:4], *part_lse.stride())
        some = [(near, 0, first, s, 0), (far, first + own, second, s, sinks)]
        # What is launched second runs beside the first, and begins a little later.
        some = some[::-1] if little else some
        if spared is not None:
            some.append((Field(spared, far.behind, far.ahead), first, own, min(sinks, s), 0))
        launches: list[Launched | None] = []
        for field, start, count, keys, skipped in some:
            counts = (t, keys, h // k.shape[1], offset, field.behind, field.ahead, skipped, 0, 0)
            share = parts[:, :, :, start:], part_lse[:, :, :, start:]
            more = {"skip": skipped > 0, "beside": bool(launches)}
            launches.append(_launch_split(q, k, v, *share, steps, count, shape, field.turns, counts, scale, **more))
        launches.append(_launch_join(parts, part_lse, out, lse, first + own, strength, gain))
    return Made(out, lse, made, tuple(each for each in launches if each is not None))


def _launch_split(
    q: Tensor, k: Tensor, v: Tensor, parts: Tensor, part_lse: Tensor, part_steps: tuple[int, ...], splits: int,
    shape: _Shape, turns: Turns, counts: tuple[int, ...], scale: float, tensors: Sequence[Tensor | None] = (None,) * 4,
    steps: tuple[int, ...] = (0, 0), tokens: Tokens = NO_TOKENS, limits: tuple[Tensor | None, int] = (None, 0),
    lengths: Tensor | None = None, cap: float = 0.0, capped: int = 0, skip: bool = False, beside: bool = False,
) -> Launched | None:  # fmt: skip
    """beside: it may run while the launch before it does, another of these."""
    d, dv = q.shape[3], v.shape[3]
    query_cos, query_sin, waves = _even(turns.query_cos, turns.query_sin)
    key_cos, key_sin, key_waves = _even(turns.key_cos, turns.key_sin)
    some = query_cos if key_cos is None else key_cos
    pairs = 0 if some is None else some.shape[2]
    grid = splits * shape.tops, k.shape[1], q.shape[0]
    args = (
        q, k, v, parts, part_lse, *tensors, *tokens, limits[0], query_cos, query_sin, key_cos, key_sin, lengths,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *part_steps, *steps, *tokens.steps, limits[1], *waves,
        *key_waves, *counts, scale, cap, splits,
    )  # fmt: skip

    def named() -> dict[str, Any]:
        return {
            "BM": shape.rows, "BN": shape.keys, "WIDTH": _width(d), "VWIDTH": _width(dv), "D": d, "DV": dv,
            "BEHIND": counts[4] < UNLIMITED, "AHEAD": counts[5] < UNLIMITED, **tokens.flags, "SKIP": skip,
            "SLOPES": tensors[0] is not None, "TABLE": tensors[2] is not None, "CAP": capped,
            "SHARPEN": tensors[3] is not None, "FAST": q.itemsize == 2 and not INTERPRETED, "PRECISION": "ieee",
            "LENGTHS": lengths is not None,
            "TURN": query_cos is not None, "ROTATE": key_cos is not None, "NEIGHBOURS": turns.neighbours,
            "HALF": _width(pairs), "PAIRS": pairs, "REST": _width(d - 2 * pairs) if d > 2 * pairs else 0,
            "EARLY": _early(), "num_warps": shape.warps, "num_stages": shape.stages,
            **({"launch_pdl": True} if beside and _early() else {}),
        }  # fmt: skip

    if tensors[2] is not None or tensors[3] is not None or limits[0] is not None or lengths is not None or capped:
        launch(attend_split, grid, *args, **named())
        return None
    # Whatever Triton compiles for follows from these: counts are numbers to it, whatever they are.
    looks = (
        q.dtype, q.shape, v.shape[3], shape, pairs, turns.neighbours, query_cos is None,
        key_cos is None, counts[4] < UNLIMITED, counts[5] < UNLIMITED, tensors[0] is None, skip, beside,
        *map(looks_of, (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *part_steps, *waves, *key_waves)),
        *[each.data_ptr() % 16 for each in (q, k, v, parts, part_lse, query_cos, query_sin, key_cos, key_sin, *tensors)
          if each is not None],
    )  # fmt: skip
    return launch_alike(looks, attend_split, grid, args, named)


def _even(cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor | None, Tensor | None, tuple[int, int]]:
    """Return cosines and sines with the same steps, and these: along the batch and along the tokens."""
    if cos is None or sin is None:
        return None, None, (0, 0)
    if cos.stride(2) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin, (cos.stride(0) if cos.shape[0] > 1 else 0, cos.stride(1))


def _launch_join(
    parts: Tensor, part_lse: Tensor, out: Tensor, lse: Tensor, near: int = 0, strength: Tensor | None = None,
    gain: Tensor | None = None,
) -> Launched:  # fmt: skip
    b, h, t, splits, dv = parts.shape
    by_row = batch_step(strength), batch_step(gain)
    looks = (
        out.dtype, out.shape, out.stride(), power_of_two(splits), strength is None, gain is None, *by_row,
        *[each.data_ptr() % 16 for each in (parts, part_lse, out, lse, strength, gain) if each is not None],
    )  # fmt: skip
    return launch_alike(
        looks, join, (b * h * t, blocks_of(dv, JOINED), 1),
        (parts, part_lse, out, lse, strength, gain, *out.stride()[:3], *by_row, h, t, splits, near),
        lambda: {
            "SPLITS": power_of_two(splits), "BLOCK": JOINED, "DV": dv, "CONTRAST": strength is not None,
            "GAINS": gain is not None, "EARLY": _early(), "num_warps": 4, **({"launch_pdl": True} if _early() else {}),
        },
    )  # fmt: skip


def _early() -> bool:
    """True if a kernel can start while the one before it runs: that spares a microsecond of about twelve."""
    return not INTERPRETED and _starts_early(triton.runtime.driver.active.get_current_device())  # pyright: ignore


@functools.cache
def _starts_early(device: int) -> bool:
    return triton.runtime.driver.active.get_current_target().arch >= 90  # pyright: ignore


define(
    "decode",
    f"({GIVEN}, Tensor? lengths, {arguments(Turns)}, {arguments(Facets, most=16)}) -> (Tensor, Tensor)",
    _decode,
    _empty,
    # Every step has another number of keys.
    again=False,
)
