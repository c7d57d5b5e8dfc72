# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
"""Answers and gradients that come in shares, each of some of the tokens: joined, or added up, one launch a stretch.

    joined:  out = Σ w_i out_i,  w_i = e^(lse_i − lse),  lse = ln Σ e^lse_i        added:  Σ R_i⁻¹ x_i,  or R⁻¹ Σ x_i

Sums are in float32, and rounded once. A stretch is written as soon as it has all its shares, which are then let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from milepost.backends.triton.attention.flash import _width
from milepost.backends.triton.attention.score import put, tile
from milepost.backends.triton.rotary.rotate import Waves, _alike, _angles, read_pairs, shared_out, write_pairs
from milepost.backends.triton.runtime.configs import blocks_of
from milepost.backends.triton.runtime.launch import batch_step, launch, steps

JOINED, MOST = 4, 6
"""How many answers one launch joins, and how many shares of a gradient it adds."""
ROWS = 32


@triton.jit
def less(lse, top):
    """e^(lse − top), in float32; 0 where nothing was seen."""
    return tl.exp((lse - tl.where(top == float("-inf"), 0.0, top)).to(tl.float32))


@triton.jit
def _lse_of(part, b, h, at, inside):
    """Load the log-sum-exp of the rows `at`; part: a pointer and its steps."""
    Lse, l_b, l_h = part
    return tl.load(Lse + b * l_b + h * l_h + at, mask=inside, other=float("-inf"))


@triton.jit
def both(lse, other):
    """ln(e^lse + e^other), −∞ where nothing was seen in either."""
    top = tl.maximum(lse, other)
    total = less(lse, top) + less(other, top)
    return tl.where(total == 0, float("-inf"), top + tl.log(tl.where(total == 0, 1.0, total)))


@triton.jit
def set_off(lse, level, Strength, line, inside):
    """lse − strength · level, and the strength; level: of the keys that scores are set off against, if any was seen."""
    strength = tl.load(Strength + line, mask=inside, other=0.0)
    return lse - strength * tl.where(level == float("-inf"), 0.0, level), strength


@triton.jit(do_not_specialize=["rows"])
def join(
    Out, Lse, Out0, Out1, Out2, Out3, Lse0, Lse1, Lse2, Lse3, Strength, o_b, o_h, o_t, l_b, l_h,
    a_b, a_h, a_t, b_b, b_h, b_t, c_b, c_h, c_t, d_b, d_h, d_t, la_b, la_h, lb_b, lb_h, lc_b, lc_h, ld_b, ld_h, s_b,
    rows, BM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr, SET_OFF: tl.constexpr,
):  # fmt: skip
    """out and lse of one block of rows. The first part may be what is written over. SET_OFF: the last is."""
    row = tl.program_id(0) * BM
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    at = row + tl.arange(0, BM)
    inside = at < rows
    outs = ((Out0, a_b, a_h, a_t), (Out1, b_b, b_h, b_t), (Out2, c_b, c_h, c_t), (Out3, d_b, d_h, d_t))
    lses = ((Lse0, la_b, la_h), (Lse1, lb_b, lb_h), (Lse2, lc_b, lc_h), (Lse3, ld_b, ld_h))
    top = _lse_of(lses[0], b, h, at, inside)
    found = (top,)
    level = top
    for part in tl.static_range(1, PARTS):
        lse = _lse_of(lses[part], b, h, at, inside)
        if SET_OFF:
            if part == PARTS - 1:
                lse, _strength = set_off(lse, level, Strength, b * s_b + at, inside)
            else:
                level = both(level, lse)
        found = found + (lse,)  # noqa: RUF005
        top = tl.maximum(top, lse)
    total = less(found[0], top)
    out = tile(Out0 + b * a_b + h * a_h, 0, 0, row, rows, a_t, BM, WIDTH, D, False).to(tl.float32)
    if PARTS > 1:
        out = total[:, None] * out
    for part in tl.static_range(1, PARTS):
        X, x_b, x_h, x_t = outs[part]
        weight = less(found[part], top)
        total += weight
        out += weight[:, None] * tile(X + b * x_b + h * x_h, 0, 0, row, rows, x_t, BM, WIDTH, D, False)
    line = Lse + b * l_b + h * l_h + at
    if PARTS == 1:
        put(Out + b * o_b + h * o_h, out, row, rows, o_t, BM, WIDTH, D)
        tl.store(line, found[0], mask=inside)
    else:
        blind = total == 0
        total = tl.where(blind, 1.0, total)
        put(Out + b * o_b + h * o_h, out / total[:, None], row, rows, o_t, BM, WIDTH, D)
        tl.store(line, tl.where(blind, float("-inf"), top + tl.log(total)), mask=inside)


def joined(out: Tensor, lse: Tensor, parts: Sequence[tuple[Tensor, Tensor]], strength: Tensor | None = None) -> None:
    """Write out [b h n d] and lse [b h n] of parts that are as large.

    strength: [b|1 n], where the last of up to JOINED parts is set off against the others: lse − strength · theirs.
    """
    b, h, t, d = out.shape
    some, more = parts[:JOINED], parts[JOINED:]
    outs, lses = (filled(each, JOINED) for each in zip(*some, strict=True))
    launch(
        join, (blocks_of(t, ROWS), h, b), out, lse, *outs, *lses, strength, *steps(out), *steps(lse, axes=2),
        *steps(*outs), *steps(*lses, axes=2), batch_step(strength), t,
        BM=ROWS, WIDTH=_width(d), D=d, PARTS=len(some), SET_OFF=strength is not None, num_warps=4,
    )  # fmt: skip
    if more:
        joined(out, lse, [(out, lse), *more])


@triton.jit
def _share(x, y, share, waves, b, head, token, tokens, inside, BH, BT, HALF, PAIRS, NEIGHBOURS, TURNED):
    """Add the two channels of every pair of one share, turned back. share, waves: pointers and their steps."""
    X, x_b, x_h, x_t = share
    rows = X + b * x_b + head.to(tl.int64) * x_h + token[None, :, None].to(tl.int64) * x_t
    own_x, own_y = read_pairs(rows, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
    if TURNED:
        Cos, Sin, c_t = waves
        cos, sin = _angles(Cos, Sin, token, tokens, c_t, -1.0, HALF, PAIRS)
        return x + own_x * cos - own_y * sin, y + own_x * sin + own_y * cos
    else:
        return x + own_x, y + own_y


@triton.jit
def _rest(share, b, head, token, rest, mask):
    """Load the channels past the pairs."""
    X, x_b, x_h, x_t = share
    rows = X + b * x_b + head.to(tl.int64) * x_h + token[None, :, None].to(tl.int64) * x_t
    return tl.load(rows + rest, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["heads", "tokens", "share"])
def add(
    Out, X0, X1, X2, X3, X4, X5, Cos0, Cos1, Cos2, Cos3, Cos4, Cos5, Sin0, Sin1, Sin2, Sin3, Sin4, Sin5, Cos, Sin,
    o_b, o_h, o_t, a_b, a_h, a_t, b_b, b_h, b_t, c_b, c_h, c_t, d_b, d_h, d_t, e_b, e_h, e_t, f_b, f_h, f_t,
    t0, t1, t2, t3, t4, t5, t_all, heads, tokens, share,
    BH: tl.constexpr, BT: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, D: tl.constexpr,
    NEIGHBOURS: tl.constexpr, PARTS: tl.constexpr, TURNED: tl.constexpr, ALL_TURNED: tl.constexpr,
):  # fmt: skip
    """Add shares. TURNED: a bit for each that is turned back by its own cosines; ALL_TURNED: the sum is, by Cos.

    Programs along axis 1 share the heads out.
    """
    own = tl.program_id(1) * share
    b = tl.program_id(2).to(tl.int64)
    token = tl.program_id(0) * BT + tl.arange(0, BT)
    end = tl.minimum(own + share, heads)
    xs = (
        (X0, a_b, a_h, a_t), (X1, b_b, b_h, b_t), (X2, c_b, c_h, c_t), (X3, d_b, d_h, d_t), (X4, e_b, e_h, e_t),
        (X5, f_b, f_h, f_t),
    )  # fmt: skip
    waves = (
        (Cos0, Sin0, t0), (Cos1, Sin1, t1), (Cos2, Sin2, t2), (Cos3, Sin3, t3), (Cos4, Sin4, t4), (Cos5, Sin5, t5)
    )  # fmt: skip
    for start in range(own, end, BH):
        head = (start + tl.arange(0, BH))[:, None, None]
        inside = (head < end) & (token < tokens)[None, :, None]
        x = tl.zeros([BH, BT, HALF], tl.float32)
        y = tl.zeros([BH, BT, HALF], tl.float32)
        for part in tl.static_range(PARTS):
            x, y = _share(x, y, xs[part], waves[part], b, head, token, tokens, inside,
                          BH, BT, HALF, PAIRS, NEIGHBOURS, (TURNED >> part) & 1 == 1)  # fmt: skip
        rows = Out + b * o_b + head.to(tl.int64) * o_h + token[None, :, None].to(tl.int64) * o_t
        if ALL_TURNED:
            cos, sin = _angles(Cos, Sin, token, tokens, t_all, -1.0, HALF, PAIRS)
            write_pairs(rows, x * cos - y * sin, x * sin + y * cos, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        else:
            write_pairs(rows, x, y, inside, BH, BT, HALF, PAIRS, NEIGHBOURS)
        if REST > 0:
            rest = 2 * PAIRS + tl.arange(0, REST)[None, None, :]
            mask = inside & (rest < D)
            total = _rest(xs[0], b, head, token, rest, mask)
            for part in tl.static_range(1, PARTS):
                total += _rest(xs[part], b, head, token, rest, mask)
            tl.store(rows + rest, total.to(Out.dtype.element_ty), mask=mask)


def added(
    out: Tensor, shares: Sequence[tuple[Tensor, Waves | None]], waves: Waves | None = None, neighbours: bool = False
) -> None:
    """Write the sum of up to MOST shares to out [b h n d].

    Each is turned back by its own cosines and sines, [1 n width/2], or their sum by these.
    """
    turns = [None if own is None else _alike(*own) for _, own in shares]
    last = None if waves is None else _alike(*waves)
    some = next((each for each in (*turns, last) if each is not None), None)
    # Without a turn any channels are pairs.
    pairs, neighbours = (max(1, out.shape[3] // 2), False) if some is None else (some[0].shape[2], neighbours)
    grid, share, constants = shared_out(out, pairs, 2)
    tables = [filled([None if each is None else each[side] for each in turns], MOST) for side in (0, 1)]
    read = filled([each for each, _ in shares], MOST)
    launch(
        add, grid, out, *read, *tables[0], *tables[1], *(last or (None, None)), *steps(out, *read),
        *[0 if each is None else each.stride(1) for each in (*tables[0], (last or (None,))[0])], *out.shape[1:3], share,
        NEIGHBOURS=neighbours, PARTS=len(shares), ALL_TURNED=last is not None,
        TURNED=sum(1 << n for n, each in enumerate(turns) if each is not None), **constants,
    )  # fmt: skip


def filled(some: Sequence[Any], most: int) -> list[Any]:
    """Return so many of them, with None for those that are not there."""
    return [*some, *[None] * (most - len(some))]


Share = tuple[Any, ...]


class Stretches:
    """Shares of some tokens each, gathered by stretches of tokens that are in the same ones; what has all is written.

    spans: the first token of every share to come, and how many, of `count` in all. write: given the first token of a
    stretch, how many, and its shares; 0 of them where there are none to come. fold: makes one share of several; where
    it is given, no more than MOST wait in a stretch.
    """

    def __init__(
        self, spans: Sequence[tuple[int, int]], count: int, write: Callable[[int, int, list[Share]], None],
        fold: Callable[[int, int, list[Share]], Share] | None = None,
    ) -> None:  # fmt: skip
        ends = sorted({0, count, *(end for first, long in spans for end in (first, first + long))})
        self.spans = [(first, end - first) for first, end in pairwise(ends)]
        self.waiting: list[list[Share]] = [[] for _ in self.spans]
        # A stretch lies in a span as a whole, or not at all.
        self.missing = [sum(first <= own < first + long for first, long in spans) for own, _ in self.spans]
        self.write, self.fold = write, fold
        for each, missing in zip(self.spans, self.missing, strict=True):
            if not missing:
                write(*each, [])

    def add(self, first: int, *share: Any) -> None:
        """Compute a share of the tokens from the first on: tensors whose axis 2 is theirs, or anything else."""
        inside = _inside(self.spans, first, share[0].shape[2])
        if self.fold is not None and any(len(self.waiting[n]) == MOST for n in inside):
            # All at once, so that no share is kept by a stretch that could still wait.
            for n, each in enumerate(self.spans):
                if len(self.waiting[n]) > 1:
                    self.waiting[n] = [self.fold(*each, self.waiting[n])]
        for n in inside:
            start, count = self.spans[n]
            own = [x.narrow(2, start - first, count) if isinstance(x, Tensor) else x for x in share]
            self.waiting[n].append(tuple(own))
            self.missing[n] -= 1
            if not self.missing[n]:
                self.write(start, count, self.waiting[n])
                self.waiting[n] = []


def _inside(spans: Sequence[tuple[int, int]], first: int, count: int) -> list[int]:
    """Return the numbers of the spans that lie among these tokens."""
    return [n for n, (start, long) in enumerate(spans) if first <= start and start + long <= first + count]


def some_of(x: Tensor, axis: int, first: int, count: int, times: int = 1, step: int = 0) -> Tensor:
    """Return tokens first … first + count along an axis; or so many times, each `step` on, as a batch."""
    if times == 1:
        return x.narrow(axis, first, count)
    pieces = x.narrow(axis, first, count + (times - 1) * step).unfold(axis, count, step)
    return pieces.movedim(-1, axis + 1).movedim(axis, 0).squeeze(1)


def waves_of(waves: Waves, first: int, count: int) -> Waves:
    """Return cosines and sines of some tokens."""
    cos, sin = waves
    return cos.narrow(1, first, count), sin.narrow(1, first, count)
