# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: N803, N806, E741
"""Decoding: few queries against many keys, the keys split over programs and the parts joined.

Bound by reading keys and values once. The query heads that share a key head, and all their tokens, are the rows of one
tile, so that a key is read once for all of them. A second kernel joins the parts by their log-sum-exps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.bounds import belonging, bounds, numbered
from milepost.backends.triton.configs import blocks_of, power_of_two
from milepost.backends.triton.flash import (
    INTERPRETED,
    TOKENS,
    UNLIMITED,
    Call,
    _check,
    _device_of,
    _like,
    _width,
    check_tokens,
)
from milepost.backends.triton.launch import launch, operator
from milepost.backends.triton.score import FLOOR, LN2, LOG2E, between, finished, seen, tile, up_to


@triton.jit
def _rotated(K, j0, keys, k_t, Cos, Sin, c_t, BN: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
             NEIGHBOURS: tl.constexpr):  # fmt: skip
    """The two channels of each pair of a block of raw keys, rotated, [BN, HALF] each, in the keys' dtype."""
    at = j0 + tl.arange(0, BN)
    pair = tl.arange(0, HALF)[None, :]
    inside = (at < keys)[:, None]
    mask = inside
    if PAIRS != HALF:
        mask = mask & (pair < PAIRS)
    angle = at.to(tl.int64)[:, None] * c_t + pair
    cos = tl.load(Cos + angle, mask=mask, other=0.0)
    sin = tl.load(Sin + angle, mask=mask, other=0.0)
    rows = K + at.to(tl.int64)[:, None] * k_t
    if NEIGHBOURS:
        both = tl.arange(0, 2 * HALF)[None, :]
        wide = inside
        if PAIRS != HALF:
            wide = wide & (both < 2 * PAIRS)
        pairs = tl.load(rows + both, mask=wide, other=0.0).to(tl.float32)
        x, y = tl.split(pairs.reshape([BN, HALF, 2]))
    else:
        x = tl.load(rows + pair, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(rows + PAIRS + pair, mask=mask, other=0.0).to(tl.float32)
    return (x * cos - y * sin).to(K.dtype.element_ty), (x * sin + y * cos).to(K.dtype.element_ty)


@triton.jit(
    do_not_specialize=[
        "rows", "keys", "group", "offset", "behind", "ahead", "sinks", "first", "last", "splits", "o_s", "l_s",
    ]
)  # fmt: skip
def attend_split(
    Q, K, V, Out, Lse, Slopes, Ahead, Table, Sharpen, Docs, KeyDocs, Index, KeyIndex, Bounds, Cos, Sin, Lengths,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, o_s, l_b, l_h, l_t, l_s, table_h, sharpen_b,
    docs_b, key_docs_b, index_b, key_index_b, bounds_b, c_b, c_t,
    rows, keys, group, offset, behind, ahead, sinks, first, last, scale, cap, splits,
    BM: tl.constexpr, BN: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, SLOPES: tl.constexpr, TABLE: tl.constexpr, CAP: tl.constexpr,
    SHARPEN: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, LENGTHS: tl.constexpr,
    ROTATE: tl.constexpr, NEIGHBOURS: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    DOCS: tl.constexpr, INDEXED: tl.constexpr,
):  # fmt: skip
    """out and lse of one block of rows over one share of the keys.

    Row r is token r % rows of query head r // rows of the group. LENGTHS: batch row b has Lengths[b] keys, and its
    queries are the last of them.
    """
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
    if ROTATE:
        pair = tl.arange(0, HALF)[None, :]
        mask = real[:, None] & (pair < PAIRS)
        one = 2 * pair if NEIGHBOURS else pair
        two = one + (1 if NEIGHBOURS else PAIRS)
        q1 = tl.load(lines + one, mask=mask, other=0.0)
        q2 = tl.load(lines + two, mask=mask, other=0.0)
        if REST > 0:
            rest = 2 * PAIRS + tl.arange(0, REST)[None, :]
            q3 = tl.load(lines + rest, mask=real[:, None] & (rest < D), other=0.0)
        Cos += b64 * c_b
        Sin += b64 * c_b
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
        sink_blocks = tl.minimum(up_to(sinks, BN), start) // BN
    if DOCS or INDEXED:
        Bounds += b64 * bounds_b
        sink = tl.load(Bounds)
        sink_blocks = (tl.load(Bounds + 1) - sink) // BN
        start = tl.load(Bounds + 2)
        end = tl.load(Bounds + 5)
    blocks = sink_blocks + (end - start) // BN
    each = (blocks + splits - 1) // splits
    m = tl.full([BM], FLOOR, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    for block in tl.range(split * each, tl.minimum(split * each + each, blocks)):
        j0 = tl.where(block < sink_blocks, sink + block * BN, start + (block - sink_blocks) * BN)
        at = j0 + tl.arange(0, BN)
        j = numbered(KeyIndex, at, at < keys, 0, INDEXED)[None, :]
        if ROTATE:
            k1, k2 = _rotated(K, j0, keys, k_t, Cos, Sin, c_t, BN, HALF, PAIRS, NEIGHBOURS)
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
        visible = seen(i, j, at[None, :], own, other, keys, behind, ahead, sinks, BEHIND, AHEAD, DOCS)
        x = tl.where(visible, x, float("-inf"))
        highest = tl.maximum(m, tl.max(x, 1))
        p = tl.exp2(x - highest[:, None])
        kept = tl.exp2(m - highest)
        l = l * kept + tl.sum(p, 1)
        v = tile(V, 0, 0, j0, keys, v_t, BN, VWIDTH, DV, False)
        acc = tl.dot(p.to(v.dtype), v, acc * kept[:, None], input_precision=PRECISION)
        m = highest

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


@triton.jit(do_not_specialize=["splits", "rows"])
def join(
    Parts, PartLse, Out, Lse, o_b, o_h, o_t, heads, rows, splits,
    SPLITS: tl.constexpr, VWIDTH: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """One row's parts, Parts [b h t splits dv] and PartLse [b h t splits], joined: Σ out · exp(lse − all's lse)."""
    at = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    lse = tl.load(PartLse + at * splits + split, mask=split < splits, other=float("-inf"))
    highest = tl.maximum(tl.max(lse, 0), FLOOR)
    weight = tl.exp2((lse - highest) * LOG2E)
    total = tl.sum(weight, 0)
    blind = total == 0
    channel = tl.arange(0, VWIDTH)[None, :]
    inside = (split < splits)[:, None] & (channel < DV)
    parts = tl.load(Parts + (at * splits + split)[:, None] * DV + channel, mask=inside, other=0.0)
    out = tl.sum(parts * weight[:, None], 0) / tl.where(blind, 1.0, total)
    t = at % rows
    h = at // rows % heads
    b = at // rows // heads
    whole = tl.arange(0, VWIDTH)
    tl.store(Out + b * o_b + h * o_h + t * o_t + whole, out.to(Out.dtype.element_ty), mask=whole < DV)
    tl.store(Lse + at, tl.where(blind, float("-inf"), highest + tl.log2(tl.where(blind, 1.0, total)) * LN2))


SETTINGS = {"keys": 64, "warps": 4, "stages": 3, "programs": 528}
"""Keys a block, warps, blocks in flight, and programs that fill the chip: by measurement."""


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    offset: int | None = None,
    behind: int | None = None,
    ahead: int | None = 0,
    sinks: int = 0,
    slopes: Tensor | None = None,
    slopes_ahead: Tensor | None = None,
    table: Tensor | None = None,
    first: int = 0,
    cap: float | None = None,
    cap_first: bool = False,
    sharpen: Tensor | None = None,
    key_cos: Tensor | None = None,
    key_sin: Tensor | None = None,
    neighbours: bool = False,
    lengths: Tensor | None = None,
    documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    index: Tensor | None = None,
    key_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of a few queries over many keys, and each row's log-sum-exp; no gradient.

    As `flash`, but causal by default, and the queries are the last of the keys unless `offset` says where
    they start. lengths: [b] int32, how many keys each row of the batch has, its queries being the last of them: the
    same launch then serves every step, as a CUDA graph wants. key_cos, key_sin: [b|1 s width/2] float32, for keys that
    are stored raw: they are rotated as they are read, by halves or `neighbours`; q comes rotated already.
    """
    _check(q, k, v, slopes, slopes_ahead, table, sharpen, scale, cap)
    b, _, t, d = q.shape
    s = k.shape[2]
    if (key_cos is None) != (key_sin is None):
        raise ValueError("decode: key_cos and key_sin come together; give both or neither")
    for name, each in (("key_cos", key_cos), ("key_sin", key_sin)):
        if each is not None and (each.dim() != 3 or each.shape[0] not in (1, b) or each.shape[1] < s):
            raise ValueError(f"decode: {name} is {list(each.shape)}; give [{b} or 1, {s}, width/2]")
    if lengths is not None and (lengths.shape != (b,) or lengths.dtype != torch.int32):
        raise ValueError(f"decode: lengths is {list(lengths.shape)} in {lengths.dtype}; give [{b}] in torch.int32")
    tokens = check_tokens("decode", q, k, documents, key_documents, index, key_index)
    if lengths is not None and tokens.any:
        raise ValueError("decode: lengths say which keys each row has; give documents and indices without them")
    if lengths is not None and offset is not None:
        raise ValueError("decode: lengths say where the queries start; leave offset out")
    return operator("decode", _decode)(
        q, k, v, slopes, None if slopes_ahead is slopes else slopes_ahead, table,
        sharpen[None] if sharpen is not None and sharpen.dim() == 1 else sharpen,
        d**-0.5 if scale is None else scale, s - t if offset is None else offset,
        UNLIMITED if behind is None else min(behind, UNLIMITED), UNLIMITED if ahead is None else min(ahead, UNLIMITED),
        sinks, first, cap or 0.0, cap_first, key_cos, key_sin, neighbours, lengths, *tokens,
    )  # fmt: skip


def _decode(
    q: Tensor, k: Tensor, v: Tensor,
    slopes: Tensor | None, slopes_ahead: Tensor | None, table: Tensor | None, sharpen: Tensor | None,
    scale: float, offset: int, behind: int, ahead: int, sinks: int, first: int, cap: float, cap_first: bool,
    key_cos: Tensor | None, key_sin: Tensor | None, neighbours: bool, lengths: Tensor | None,
    *tokens: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Both kernels, launched."""
    b, h, t, d = q.shape
    g, s, dv = v.shape[1:]
    out = _like(q, dv)
    lse = q.new_empty(b, h, t, dtype=torch.float32)
    if 0 in out.shape:
        return out, lse
    if s == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    q, k, v = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v))
    call = Call(
        q,
        k,
        v,
        slopes,
        slopes_ahead,
        table,
        sharpen,
        scale,
        offset,
        behind,
        ahead,
        sinks,
        first,
        cap,
        cap_first,
        tokens,
    )
    pairs = 0
    if key_cos is not None and key_sin is not None:
        pairs = key_cos.shape[2]
        if key_cos.stride(2) != 1 or key_cos.stride() != key_sin.stride():
            key_cos, key_sin = key_cos.contiguous(), key_sin.contiguous()
    rows = min(64, max(16, power_of_two(h // g * t)))
    narrow = q.itemsize > 2 and not INTERPRETED
    keys = 32 if narrow else SETTINGS["keys"]
    tops = blocks_of(h // g * t, rows)
    splits = max(1, min(blocks_of(SETTINGS["programs"], b * g * tops), blocks_of(s, keys), 128))
    if splits == 1:
        parts, part_lse = out, lse
        part_steps = (*out.stride()[:3], 0, *lse.stride(), 0)
    else:
        parts, part_lse = lse.new_empty(b, h, t, splits, dv), lse.new_empty(b, h, t, splits)
        part_steps = (*parts.stride()[:4], *part_lse.stride())
    sides = {"BEHIND": behind < UNLIMITED, "AHEAD": ahead < UNLIMITED}
    with _device_of(q):
        limits, limits_b = None, 0
        if call.tokens.any:
            limits, limits_b = bounds(call.tokens, call.counts, max(16, power_of_two(t)), keys, True, sides)
        launch(
            attend_split, (splits * tops, g, b),
            q, k, v, parts, part_lse, *call.tensors, *call.tokens, limits, key_cos, key_sin, lengths,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *part_steps, *call.steps, *call.tokens.steps, limits_b,
            key_cos.stride(0) if key_cos is not None and key_cos.shape[0] > 1 else 0,
            key_cos.stride(1) if key_cos is not None else 0,
            *call.counts, scale, cap, splits,
            BM=rows, BN=keys, WIDTH=_width(d), VWIDTH=_width(dv), D=d, DV=dv,
            **sides, **call.tokens.flags, SLOPES=slopes is not None, TABLE=table is not None,
            CAP=call.capped, SHARPEN=sharpen is not None, FAST=q.itemsize == 2 and not INTERPRETED, PRECISION="ieee",
            LENGTHS=lengths is not None, ROTATE=pairs > 0, NEIGHBOURS=neighbours, HALF=_width(pairs), PAIRS=pairs,
            REST=_width(d - 2 * pairs) if d > 2 * pairs else 0,
            num_warps=max(SETTINGS["warps"], rows // 8), num_stages=1 if narrow else SETTINGS["stages"],
        )  # fmt: skip
        if splits > 1:
            launch(
                join, (b * h * t,),
                parts, part_lse, out, lse, *out.stride()[:3], h, t, splits,
                SPLITS=power_of_two(splits), VWIDTH=_width(dv), DV=dv, num_warps=4,
            )  # fmt: skip
    return out, lse


torch.library.define(
    "milepost::decode",
    "(Tensor q, Tensor k, Tensor v, Tensor? slopes, Tensor? slopes_ahead, Tensor? table, Tensor? sharpen, float scale, "
    "SymInt offset, SymInt behind, SymInt ahead, SymInt sinks, SymInt first, float cap, bool cap_first, "
    f"Tensor? key_cos, Tensor? key_sin, bool neighbours, Tensor? lengths, {TOKENS}) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
for _kind in ("CUDA", "CPU"):
    torch.library.impl("milepost::decode", _kind, _decode)


@torch.library.register_fake("milepost::decode")
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
