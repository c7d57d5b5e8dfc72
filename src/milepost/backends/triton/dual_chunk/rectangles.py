# pyright: basic
"""Attention over rectangles of rows and keys that share one softmax, each with queries turned in its own way.

Each rectangle is plain attention: torch's own kernel (cuDNN's) where it can, else ours. What they answer is joined by
log-sum-exp. Each one's backward pass is given the joined output and log-sum-exp, and so answers its own share of the
gradients, which are turned back and added. Keys are turned once, queries of a rectangle right before they are read:
turned copies of all of them are held only where gradients will read them again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from milepost.backends.triton.attention.flash import (
    UNLIMITED,
    Call,
    Facets,
    _like,
    close,
    launch_forward,
    launch_keys,
    launch_prepare,
    launch_rows,
)
from milepost.backends.triton.dual_chunk.cuts import Rectangle
from milepost.backends.triton.joining.sums import Stretches, added, joined, some_of, waves_of
from milepost.backends.triton.rotary.rotate import Waves, _rotate_queries
from milepost.backends.triton.runtime import vendor
from milepost.backends.triton.runtime.launch import device_of
from milepost.backends.triton.runtime.played import demand_first_gradients, gradients
from milepost.backends.triton.runtime.vendor import Dice

SMALLEST = 64
"""Rows and keys of a rectangle from which on torch's kernel is used."""


class Rectangles(NamedTuple):
    """What one call is made of, besides tensors with gradients."""

    cut: tuple[Rectangle, ...]
    queries: dict[int, Waves]
    """Cosines and sines [1 t width/2] of the queries, by the turn of a rectangle."""
    keys: Waves
    """Those of the keys, [1 s width/2]."""
    neighbours: bool
    scale: float


def rectangles(q: Tensor, k: Tensor, v: Tensor, how: Rectangles) -> tuple[Tensor, Tensor]:
    """Attend raw queries q [b h t d] to k [b g s d] and v [b g s dv]: the output and log-sum-exp, with gradients."""
    q, k, v = close(q, k, v)
    if torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)):
        return _Rectangles.apply(q, k, v, how)  # pyright: ignore
    with device_of(q):
        return _forward(q, _turned(k, how.keys, how), v, how, None)[:2]


class _Rectangles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: Rectangles) -> tuple[Tensor, Tensor]:
        queries: list[Tensor] = []
        with device_of(q):
            k = _turned(k, how.keys, how)
            out, lse, ctx.dice = _forward(q, k, v, how, queries)
        ctx.save_for_backward(k, v, out, lse, *queries)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        if grad is None and grad_lse is None:
            return (None,) * 4
        demand_first_gradients("attend")
        k, v, out, lse, *queries = ctx.saved_tensors
        grad, grad_lse = gradients(grad, grad_lse, out)
        # As torch's kernel wants it: laid out as the output is.
        grad = grad if grad.stride() == out.stride() else torch.empty_like(out).copy_(grad)
        with device_of(out):
            return *_backward(queries, k, v, ctx.how, grad, grad_lse, out, lse, ctx.dice), None


def _turned(x: Tensor, waves: Waves, how: Rectangles) -> Tensor:
    return _rotate_queries(x, *waves, how.neighbours)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, how: Rectangles, turned: list[Tensor] | None
) -> tuple[Tensor, Tensor, Dice]:
    """out, lse and the dice, of raw queries and turned keys; turned: gets the queries of every rectangle."""
    theirs, dice = vendor.takes(q, k, v), ()
    out, lse = _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
    parts = Stretches(
        _spans(how, by_rows=True), q.shape[2],
        lambda first, count, some: joined(out.narrow(2, first, count), lse.narrow(2, first, count), some),
    )  # fmt: skip
    for each in how.cut:
        own, keys, values = _own(q, each, how), _keys(k, each), _keys(v, each)
        if theirs and min(each.rows, each.keys) >= SMALLEST:
            part, part_lse, dice = vendor.forward(own, keys, values, each.slanted, how.scale)
        else:
            part, part_lse = _like(own, v.shape[3]), own.new_empty(own.shape[:3], dtype=torch.float32)
            launch_forward(_call(own, keys, values, each, how), part, part_lse)
        if turned is not None:
            turned.append(own)
        del own
        if len(how.cut) == each.times == 1:
            return part, part_lse, dice
        for n, (one, its_lse) in enumerate(zip(_apart(part, each), _apart(part_lse, each), strict=True)):
            parts.add(each.row + n * each.step, one, its_lse)
        # Whoever waits for more of them holds them.
        del part, part_lse, one, its_lse
    return out, lse, dice


def _backward(
    queries: list[Tensor], k: Tensor, v: Tensor, how: Rectangles, grad: Tensor, grad_lse: Tensor | None, out: Tensor,
    lse: Tensor, dice: Dice,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv, of raw queries and keys; k is turned, and so are the queries of every rectangle."""
    # Asked for the same bits only now, or given a gradient of the log-sum-exp: ours does it.
    theirs = bool(dice) and grad_lse is None and not torch.are_deterministic_algorithms_enabled()
    dq, dk, dv = _like(out, k.shape[3]), _like(k, k.shape[3]), _like(v, v.shape[3])
    of_rows, of_keys, of_values = _sum(dq, how, True), _sum(dk, how, False, how.keys), _sum(dv, how, False)
    for each, own in zip(how.cut, queries, strict=True):
        keys, values = _keys(k, each), _keys(v, each)
        its_out, its_grad, its_lse = (_rows(x, each) for x in (out, grad, lse))
        if theirs and min(each.rows, each.keys) >= SMALLEST:
            shares = vendor.backward(its_grad, own, keys, values, its_out, its_lse, dice, each.slanted, how.scale)
        else:
            shares = _like(own, own.shape[3]), _like(keys, keys.shape[3]), _like(values, values.shape[3])
            call = _call(own, keys, values, each, how)
            its_more = None if grad_lse is None else _rows(grad_lse, each)
            lse2, delta = launch_prepare(its_grad, its_more, its_out, its_lse)
            launch_keys(call, its_grad, lse2, delta, shares[1], shares[2])
            launch_rows(call, its_grad, lse2, delta, shares[0], False, False)
            del call, lse2, delta
        del keys, values
        for n, (of_q, of_k, of_v) in enumerate(zip(*(_apart(share, each) for share in shares), strict=True)):
            of_rows.add(each.row + n * each.step, of_q, each.turn)
            of_keys.add(each.key + n * each.step, of_k, None)
            of_values.add(each.key + n * each.step, of_v, None)
        del shares, of_q, of_k, of_v
    return dq, dk, dv


def _sum(to: Tensor, how: Rectangles, by_rows: bool, waves: Waves | None = None) -> Stretches:
    """Return what adds up shares, each with its turn or None, and writes the sums, turned back by waves if given."""

    def put(first: int, count: int, some: list[Any]) -> None:
        if some:
            last = None if waves is None else waves_of(waves, first, count)
            add(to.narrow(2, first, count), first, count, some, last)
        else:
            # Keys that nobody sees.
            to.narrow(2, first, count).zero_()

    def fold(first: int, count: int, some: list[Any]) -> tuple[Tensor, None]:
        made = to.new_empty(*to.shape[:2], count, to.shape[3], dtype=torch.float32)
        add(made, first, count, some, None)
        return made, None

    def add(made: Tensor, first: int, count: int, some: list[Any], last: Waves | None) -> None:
        shares = [(x, None if turn is None else waves_of(how.queries[turn], first, count)) for x, turn in some]
        added(made, shares, last, how.neighbours)

    return Stretches(_spans(how, by_rows), to.shape[2], put, fold)


def _call(q: Tensor, k: Tensor, v: Tensor, each: Rectangle, how: Rectangles) -> Call:
    """Return the same for our kernels."""
    return Call(q, k, v, Facets(scale=how.scale, ahead=0 if each.slanted else UNLIMITED))


def _own(q: Tensor, each: Rectangle, how: Rectangles) -> Tensor:
    """Return the queries of a rectangle, turned."""
    where = (each.row, each.rows, each.times, each.step)
    cos, sin = (some_of(wave, 1, *where) for wave in how.queries[each.turn])
    return _turned(some_of(q, 2, *where), (cos, sin), how)


def _rows(x: Tensor, each: Rectangle) -> Tensor:
    return some_of(x, 2, each.row, each.rows, each.times, each.step)


def _keys(x: Tensor, each: Rectangle) -> Tensor:
    return some_of(x, 2, each.key, each.keys, each.times, each.step)


def _apart(x: Tensor, each: Rectangle) -> list[Tensor]:
    """Return what rectangles done at once gave, one by one."""
    return [x] if each.times == 1 else [x.narrow(0, n, 1) for n in range(each.times)]


def _spans(how: Rectangles, by_rows: bool) -> list[tuple[int, int]]:
    """Return the first row, or key, of every rectangle, and how many."""
    return [
        ((each.row if by_rows else each.key) + n * each.step, each.rows if by_rows else each.keys)
        for each in how.cut
        for n in range(each.times)
    ]
