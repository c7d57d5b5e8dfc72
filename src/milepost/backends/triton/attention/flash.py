# pyright: basic, reportMissingImports=false, reportArgumentType=false
"""Attention on plain tensors, forward and backward, with what positions need inside the kernel.

    out, lse = flash(q, k, v, ahead=0)                                  # causal
    out, lse = flash(q, k, v, ahead=0, behind=1024, sinks=4)            # a window with sinks
    out, lse = flash(q, k, v, slopes=slopes)                            # an encoder with a linear penalty
    out, lse = flash(q, k, v, ahead=0, table=table, first=0)            # an additive bias by distance, learned
    out, lse = flash(q, k, v, ahead=0, documents=d, key_documents=d)    # several texts in a row
    out, lse = flash(q, k, v, ahead=0, by_row=q @ rows.mT)              # vectors by distance, [n d], on the keys

The score of query i and key j, i − j positive behind:

    (q_i·k_j + by_row[i, e] + by_key[j, e]) · scale · sharpen_i − slope · |i − j| + table[min(e, n − 1)]

e = max(i − j, first) − first, by_row and by_key being 0 past their ends, with a soft cap before or after the bias. Key
j is seen iff j − i ≤ ahead and (i − j < behind or j < sinks), and it is of the query's document.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.backends.triton.attention import backward, forward
from milepost.backends.triton.attention import table_gradient as tables
from milepost.backends.triton.attention.skipped_keys import launch_reaches
from milepost.backends.triton.packed.block_ranges import Tokens, bounds, ready
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config, blocks_of, power_of_two
from milepost.backends.triton.runtime.launch import batch_step, device_of, launch, steps
from milepost.backends.triton.runtime.played import arguments, define, demand_first_gradients, gradients, operator

UNLIMITED = 1 << 30
"""A bound that nothing reaches: no limit behind, or ahead."""
REACH_FROM = 2048
"""With so many keys or more, those that a slope leaves no weight are skipped."""
NARROW = 2048
"""Windows that are no wider have tiles of their own, and so have texts of half as many keys."""
SQUARE, AROUND = 128, 16
"""Tokens of a square, and columns more than there are distances, in the layout of `diagonal_layout`."""
SHORT = 1024
"""Up to such a window the rows that see a block of keys are gone over in one masked loop."""
Pair = tuple[Tensor | None, Tensor | None]
INTERPRETED = triton.knobs.runtime.interpret  # pyright: ignore


class Facets(NamedTuple):
    """What `flash` computes besides plain attention, in the order in which the operators take it.

    slopes, slopes_ahead: [h], the second defaulting to the first; table: [h n]; sharpen: [t] or [b t], all float32.

    documents: [b|1 t], key_documents: [b|1 s], whole numbers, below 0 for padding. index, key_index: [b|1 t], [b|1 s],
    the i and j of the score, in place of offset + row and key. The gradient of a table is summed along diagonals; with
    indices it needs documents, queries that are the keys, and indices that count from 0 in each document.

    by_row: [b h t n], by_key: [b h s n], in q's dtype, where there is no table; no two keys that a query sees have one
    index then, nor two queries that see a key. Or both as `diagonal_layout` has them, [b h squares tokens width], where
    there are no indices and no key is further ahead than first.

    numbers: [2 h] float32, two of each head that the table follows from, which get gradients in its place: the first is
    a factor, table = numbers[0] · f(numbers[1]), and derivative [h n] is that of the table by the second. The table has
    all distances that are seen then, and there are no slopes.
    """

    slopes: Tensor | None = None
    slopes_ahead: Tensor | None = None
    table: Tensor | None = None
    sharpen: Tensor | None = None
    scale: float = 1.0
    offset: int = 0
    behind: int = UNLIMITED
    ahead: int = UNLIMITED
    sinks: int = 0
    first: int = 0
    cap: float = 0.0
    cap_first: bool = False
    documents: Tensor | None = None
    key_documents: Tensor | None = None
    index: Tensor | None = None
    key_index: Tensor | None = None
    by_row: Tensor | None = None
    by_key: Tensor | None = None
    numbers: Tensor | None = None
    derivative: Tensor | None = None

    @property
    def tokens(self) -> Tokens:
        return Tokens(*self[12:16])

    @property
    def products(self) -> Pair:
        return self.by_row, self.by_key


def flash(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, behind: int | None = None,
    ahead: int | None = None, cap: float | None = None, checked: bool = False, **more: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return attention and each row's log-sum-exp, both with gradients; more: see `Facets`.

    q: [b h t d], k: [b g s d], v: [b g s dv], g dividing h, last strides 1; returns [b h t dv] in q's dtype and
    [b h t] in float32. A row that sees nothing gives zeros and −∞. checked: arguments are not checked again.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    behind, ahead = (UNLIMITED if each is None else min(each, UNLIMITED) for each in (behind, ahead))
    how = Facets(**more, scale=scale, behind=behind, ahead=ahead, cap=cap or 0.0)
    if not checked:
        check("flash", q, k, v, how, cap)
    sharpen, by_row, by_key = how.sharpen, packed(how.by_row), packed(how.by_key)
    sharpen = sharpen[None] if sharpen is not None and sharpen.dim() == 1 else sharpen
    slopes_ahead = None if how.slopes_ahead is how.slopes else how.slopes_ahead
    how = how._replace(sharpen=sharpen, slopes_ahead=slopes_ahead, by_row=by_row, by_key=by_key)
    q, k, v = close(q, k, v)
    learned = (q, k, v, *how[:4], by_row, by_key, how.numbers)
    if not (torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in learned)):
        out, lse = operator("flash", _flash, q)(q, k, v, *how[:-2])
        return out, lse.float()
    table = how.table
    if how.numbers is not None and table is not None:
        # It gets no gradient of its own.
        how = how._replace(table=table.detach())
    elif (
        table is not None
        and table.requires_grad
        and how.index is not None
        and (how.documents is None or q.shape[2] != k.shape[2])
    ):
        raise ValueError(
            "flash: the gradient of a table is summed along diagonals; with an index it needs documents, and queries "
            "that are the keys"
        )
    if sharpen is not None and sharpen.requires_grad and not (by_row is None and by_key is None):
        raise ValueError("flash: sharpen has no gradient with by_row and by_key; detach it, or leave them out")
    # The tracer wants every argument to be another tensor.
    v = v.view_as(v) if v is q or v is k else v
    k = k.view_as(k) if k is q else k
    return _Flash.apply(q, k, v, *how[:12], *how.tokens.apart(), *how[16:])  # pyright: ignore


def check(name: str, q: Tensor, k: Tensor, v: Tensor, how: Facets, cap: float | None) -> None:
    """Raise where arguments do not fit one another."""
    b, h, t, d = q.shape
    s = k.shape[2]
    slopes, slopes_ahead, table, sharpen = how[:4]
    if k.shape[0] != b or k.shape[:3] != v.shape[:3] or k.shape[3] != d or h % k.shape[1]:
        shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(
            f"{name}: {shapes} do not go together; they are [b h t d], [b g s d], [b g s dv], g dividing h"
        )
    if not (q.dtype == k.dtype == v.dtype and q.dtype in (torch.bfloat16, torch.float16, torch.float32)):
        raise ValueError(
            f"{name}: q, k and v are {q.dtype}, {k.dtype} and {v.dtype}; give all three in bfloat16, float16 or float32"
        )
    if max(d, v.shape[3]) > 256:
        raise ValueError(
            f"{name}: heads of {d} and {v.shape[3]} channels are too wide for the kernels; 256 is the most"
        )
    if how.scale < 0:
        raise ValueError(f"{name}: scale is {how.scale}; it must not be negative: negate q instead")
    if cap is not None and cap <= 0:
        raise ValueError(f"{name}: cap is {cap}; it must be positive, or None for no cap")
    if slopes_ahead is not None and slopes is None:
        raise ValueError(f"{name}: slopes_ahead was given without slopes; give both")
    if table is not None and not (how.by_row is None and how.by_key is None):
        raise ValueError(f"{name}: by_row and by_key do not go together with a table; add its entries to by_row")
    numbers, derivative = how.numbers, how.derivative
    if not (numbers is derivative is None) and (
        table is None or numbers is None or derivative is None or slopes is not None
    ):
        raise ValueError(
            f"{name}: numbers and derivative come together, with the table that they are of, and no slopes"
        )
    number, whole, batch = (torch.float32,), (torch.int32, torch.int64), {1, b}
    many = next((each.shape[-1] for each in how.products if each is not None), 0)
    for which, shape, dtypes in (
        ("slopes", (h,), number), ("slopes_ahead", (h,), number), ("table", (h, None), number),
        ("sharpen", (t,) if sharpen is not None and sharpen.dim() == 1 else (batch, t), number),
        ("documents", (batch, t), whole), ("key_documents", (batch, s), whole),
        ("index", (batch, t), whole), ("key_index", (batch, s), whole),
        ("by_row", (b, h, t, many), (q.dtype,)), ("by_key", (b, h, s, many), (q.dtype,)),
        ("numbers", (2, h), number), ("derivative", (h, None) if table is None else table.shape, number),
    ):  # fmt: skip
        each = getattr(how, which)
        if each is None:
            continue
        sizes = each.shape if each.dim() < 5 else each.flatten(2, 3).shape
        fits = len(sizes) == len(shape) and all(
            want is None or have == want or (isinstance(want, set) and have in want)
            for have, want in zip(sizes, shape, strict=True)
        )
        if not fits or each.dtype not in dtypes:
            wanted = ", ".join("n" if n is None else " or ".join(map(str, sorted(n))) if isinstance(n, set) else str(n)
                               for n in shape)  # fmt: skip
            kinds = " or ".join(map(str, dtypes))
            raise ValueError(f"{name}: {which} is {list(each.shape)} in {each.dtype}; give [{wanted}] in {kinds}")
    for own, other in (("documents", "key_documents"), ("index", "key_index")):
        if (getattr(how, own) is None) != (getattr(how, other) is None):
            raise ValueError(f"{name}: {own} and {other} come together; give both or neither")


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        out, lse = operator("flash", _flash, q)(q, k, v, *how[:-2])
        ctx.save_for_backward(q, k, v, out, lse, *how[:4], *how[12:])
        ctx.numbers = how[4:12]
        ctx.set_materialize_grads(False)
        return out, lse.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        if grad is None and grad_lse is None:
            return (None,) * 23
        demand_first_gradients("attend")
        needs = ctx.needs_input_grad
        grad, grad_lse = gradients(grad, grad_lse, out)
        dq, dk, dv, *learned, d_by_row, d_by_key, d_numbers = operator("flash_backward", _flash_backward, grad)(
            grad, grad_lse, q, k, v, out, lse, needs[3] or needs[4], needs[5], *tensors[:4], *ctx.numbers, *tensors[4:]
        )
        d_sharpen, sharpen = None, tensors[3]
        if needs[6]:
            # dq_i = sharpen_i · (what q_i·k_j's sum gives), so q_i · dq_i / sharpen_i is the derivative by sharpen_i.
            products = (q.float() * dq.float()).sum((1, 3))
            d_sharpen = (products.sum(0, keepdim=True) if sharpen.shape[0] == 1 else products) / sharpen
        found = (dq, dk, dv, *learned, d_sharpen, *(None,) * 12, d_by_row, d_by_key, d_numbers, None)
        return tuple([each if asked else None for each, asked in zip(found, needs, strict=True)])


def close(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors whose channels lie side by side."""
    return tuple([each if each.stride(-1) == 1 else each.contiguous() for each in tensors])


def _like(x: Tensor, width: int) -> Tensor:
    """Return an empty tensor of x's shape but for its width, heads and tokens in memory in the order of x's."""
    b, h, t, _ = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(b, t, h, width).transpose(1, 2)
    return x.new_empty(b, h, t, width)


def empty_answer(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Return an empty output and log-sum-exp, which is twice as precise as the rows are.

    Weights are made from it once more for gradients, and its rounding is that of a whole row of them.
    """
    twice = torch.float64 if q.dtype == torch.float32 else torch.float32
    return _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=twice)


def _flash(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Launch the forward kernel."""
    out, lse = empty_answer(q, k, v)
    if 0 in out.shape:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    with device_of(q):
        launch_forward(Call(q, k, v, Facets(*how)), out, lse)
    return out, lse


def _flash_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    slopes_too: bool, table_too: bool, *how: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Launch the backward kernels: dq, dk, dv, and the gradients of slopes behind, ahead and table where asked.

    Then those of by_row, by_key and numbers, which are empty where there are none.
    """
    if 0 in (*q.shape[:3], k.shape[2]):
        empty = _empty_gradients(grad, grad_lse, q, k, v, out, lse, slopes_too, table_too, *how)
        return tuple([each.zero_() for each in empty])
    dq, dk, dv = (_like(each, each.shape[3]) for each in (q, k, v))
    if grad.stride(-1) != 1 or 0 in grad.stride():
        grad = grad.contiguous()
    call = Call(q, k, v, Facets(*how))
    with device_of(q):
        lse2, delta = launch_prepare(grad, grad_lse, out, lse)
        d_by_row, d_by_key = call.gradients_of_products(delta)
        launch_keys(call, grad, lse2, delta, dk, dv, d_by_key)
        sums = launch_rows(call, grad, lse2, delta, dq, slopes_too, table_too, d_by_row)
        learned = launch_learned(call, grad, lse2, delta, sums, slopes_too, table_too)
        d_numbers = launch_numbers(call, sums)
    return dq, dk, dv, *learned, d_by_row, d_by_key, d_numbers


def _empty_gradients(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    slopes_too: bool, table_too: bool, *given: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return empty tensors, as `_flash_backward` returns them."""
    how = Facets(*given)
    asked = zip((*how[:3], how.numbers), (slopes_too, slopes_too, table_too, True), strict=True)
    small = [
        q.new_empty(each.shape if each is not None and wanted else 0, dtype=torch.float32) for each, wanted in asked
    ]
    products = [
        q.new_empty(0, dtype=torch.float32) if each is None else torch.empty_like(each) for each in how.products
    ]
    return *(_like(each, each.shape[3]) for each in (q, k, v)), *small[:3], *products, small[3]


def packed(product: Tensor | None) -> Tensor | None:
    """by_row or by_key with nothing between its numbers, so that a tensor like it lies in memory as it does."""
    if product is None or product.is_contiguous():
        return product
    if torch.compiler.is_compiling():
        # A graph serves many lengths, and steps are no constants to it.
        return product.contiguous()
    order = sorted(range(product.dim()), key=lambda axis: -product.stride(axis))
    fits = order[-1] == product.dim() - 1 and product.permute(order).is_contiguous()
    return product if fits else product.contiguous()


def _between_zeros(like: Tensor, first: int, end: int) -> Tensor:
    """Return a tensor like this one, [b h t n] or [b h 1 t n], empty from `first` up to `end` and 0 elsewhere."""
    made = torch.empty_like(like)
    first = min(max(first, 0), like.shape[-2])
    made[..., :first, :].zero_()
    made[..., max(end, first) :, :].zero_()
    return made


class Far(NamedTuple):
    """What far keys answered: out [b h n dv] and lse [b h n] of the rows from `row` on, last strides 1.

    strength: [b|1 t], where their scores are set off against the near keys' log-sum-exp, which goes to near_lse.
    """

    out: Tensor
    lse: Tensor
    row: int
    strength: Tensor | None = None
    near_lse: Tensor | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return as the forward kernel takes them."""
        given = (self.out, self.lse, self.strength, self.near_lse)
        return (*given, *steps(self.out), *steps(self.lse, axes=2), batch_step(self.strength), self.row)


NO_FAR = (None,) * 4 + (0,) * 7


def launch_forward(call: Call, out: Tensor, lse: Tensor, far: Far | None = None) -> None:
    """Write out and lse, joined with what far keys answered where that is given."""
    q, k, v = call.qkv
    config = call.config("forward")
    tma = config.tma and _fits_tma(q, k, v)
    limits = call.bounds(config, by_rows=True)
    launch(
        forward.forward, (blocks_of(q.shape[2], config.rows), q.shape[1], q.shape[0]),
        *call.described(config, tma), out, lse, *call.tensors, *call.tokens, limits[0],
        *(NO_FAR if far is None else far.arguments),
        *steps(q, k, v, out), *lse.stride()[:2], *call.steps, *call.tokens.steps, limits[1], *call.related, call.away,
        *call.counts, call.scale, call.cap,
        **call.constants_of_parts(config, tma), FAR=0 if far is None else 1 if far.strength is None else 2,
    )  # fmt: skip


def launch_prepare(grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp as the backward kernels read it, and delta: [b h t], t rounded up to whole squares."""
    b, h, t, dv = out.shape
    whole = blocks_of(t, 128) * 128
    lse2 = lse.new_empty(b, h, whole)
    delta = torch.empty_like(lse2, dtype=torch.float32)
    launch(
        backward.prepare, (whole // 64, h, b),
        out, grad, lse, grad_lse, delta, lse2, *steps(out, grad), *lse.stride()[:2], *steps(grad_lse),
        *lse2.stride()[:2], t,
        BM=64, VWIDTH=_width(dv), DV=dv, GRAD_LSE=grad_lse is not None, num_warps=4,
    )  # fmt: skip
    return lse2, delta


def launch_keys(
    call: Call, grad: Tensor, lse2: Tensor, delta: Tensor, dk: Tensor, dv: Tensor, d_by_key: Tensor | None = None,
    more: Pair = (None, None),
) -> None:  # fmt: skip
    """Write dk, dv and the gradient of by_key. more: what the first keys have already of dk and dv, to be added."""
    config = call.config("keys")
    rows, keys, _, _, behind, _, sinks, *_ = call.counts
    blocks, sink_blocks = blocks_of(keys, config.keys), 0
    # Every row sees the sinks, a window of rows any other key: the sinks' rows are shared out by windows.
    part = blocks_of(max(behind + config.keys, 1024), 128) * 128
    parts = blocks_of(rows, part)
    if behind < UNLIMITED and sinks > 0 and parts > 2 and not call.tokens.any and not call.ends:
        sink_blocks = blocks_of(min(sinks, keys), config.keys)
        length = sink_blocks * config.keys
        b, g = dk.shape[:2]
        some_dk, some_dv = (delta.new_empty(parts, b, g, length, each.shape[3]) for each in (dk, dv))
        launched = (parts * sink_blocks, sink_blocks, part)
        _launch_keys(call, config, grad, lse2, delta, some_dk[0], some_dv[0], d_by_key, *launched)
        dk[:, :, :length] = some_dk.sum(0)[:, :, :keys]
        dv[:, :, :length] = some_dv.sum(0)[:, :, :keys]
    if blocks > sink_blocks:
        launched = (blocks - sink_blocks, sink_blocks, 0)
        _launch_keys(call, config, grad, lse2, delta, dk, dv, d_by_key, *launched, more)


def _launch_keys(
    call: Call, config: Config, grad: Tensor, lse2: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    d_by_key: Tensor | None, programs: int, apart: int, part: int, more: Pair = (None, None),
) -> None:  # fmt: skip
    q, k, v = call.qkv
    tma = config.tma and _fits_tma(q, k, v, grad)
    limits = call.bounds(config, by_rows=False)
    launch(
        backward.backward_keys, (programs, k.shape[1], k.shape[0]),
        *call.described(config, tma, grad), lse2, delta, dk, dv, *call.tensors,
        *call.tokens, limits[0], *steps(q, k, v, grad, dk, dv), *lse2.stride()[:2], *call.steps, *call.tokens.steps,
        limits[1], *call.related, d_by_key, call.away, *more, *steps(*more), 0 if more[1] is None else more[1].shape[2],
        *call.counts, call.scale, call.cap, apart, part, dk.numel(), dv.numel(),
        **call.constants_of_parts(config, tma), SINGLE=q.shape[1] == k.shape[1], PARTS=part > 0, ENDS=call.ends,
        MORE=sum(each is not None for each in more), SHORT=call.short,
    )  # fmt: skip


def launch_rows(
    call: Call, grad: Tensor, lse2: Tensor, delta: Tensor, dq: Tensor, slopes_too: bool, table_too: bool,
    d_by_row: Tensor | None = None, more: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Write dq and the gradient of by_row. more: what the last rows have already of dq, to be added.

    Returned: what each block of rows has for the slopes, or numbers, and the table's ends, [b h blocks 4].
    """
    q, k, v = call.qkv
    b, h, t, _ = q.shape
    config = call.config("rows")
    tma = config.tma and _fits_tma(q, k, v, grad)
    blocks = blocks_of(t, config.rows)
    numbers, derivative = call.numbers
    summed = 1 if slopes_too else 0 if numbers is None else 2
    sums = delta.new_empty((b, h, blocks, 4) if summed or table_too else (0, 0, 0, 0))
    limits = call.bounds(config, by_rows=True)
    launch(
        backward.backward_rows, (blocks, h, b),
        *call.described(config, tma, grad), lse2, delta, dq, sums, *call.tensors,
        *call.tokens, limits[0], numbers, derivative, *steps(q, k, v, grad, dq), *lse2.stride()[:2], *call.steps,
        *call.tokens.steps, limits[1], h * blocks * 4, blocks * 4, *call.related, d_by_row, call.away, more,
        *steps(more), 0 if more is None else t - more.shape[2], *call.counts, call.scale, call.cap,
        **call.constants_of_parts(config, tma), SUM_BIAS=summed, SUM_FAR=table_too, ENDS=call.ends,
        MORE=more is not None,
    )  # fmt: skip
    return sums


def launch_learned(
    call: Call, grad: Tensor, lse2: Tensor, delta: Tensor, sums: Tensor, slopes_too: bool, table_too: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of slopes, of slopes ahead if there are any, and of the table; empty if not asked for."""
    b, h = call.q.shape[:2]
    first, last = call.counts[-2:]
    sides = slopes_too and call.two_slopes
    d_slopes, d_ahead = (delta.new_empty(h if asked else 0) for asked in (slopes_too, sides))
    if not (slopes_too or table_too):
        return d_slopes, d_ahead, delta.new_empty(0)
    squares, start = launch_walk(call, grad, lse2, delta) if table_too else (delta.new_empty(h, 0, 0), 0)
    count, parts = squares.shape[1:3]
    by_distance = delta.new_empty(h, parts, (count + 1) * 128 if count else 0)
    # Both ends are always written, and between them the distances that were walked.
    walked = start <= first + 1 and start + by_distance.shape[2] >= last
    d_table = (delta.new_empty if walked else delta.new_zeros)((h, last - first + 1) if table_too else 0)
    if count:
        launch(tables.fold, (count + 1, h, parts), squares, by_distance, parts, count, BM=32, num_warps=4)
    launch(
        tables.totals, (h,),
        sums, by_distance, d_slopes, d_ahead, d_table, d_table.stride(0), b, h, sums.shape[2], by_distance.shape[2],
        parts, start, first, last, BLOCK=1024, SLOPES=slopes_too, SIDES=sides, TABLE=table_too,
        WALKED=not call.tokens.any, num_warps=4,
    )  # fmt: skip
    return d_slopes, d_ahead, d_table


def launch_numbers(call: Call, sums: Tensor) -> Tensor:
    """Return the gradients of the numbers that a table follows from, [2 h]; empty where there are none."""
    b, h, blocks, _ = sums.shape
    if call.numbers[0] is None:
        return sums.new_empty(0)
    made = sums.new_empty(2, h)
    launch(
        tables.totals, (h,), sums, None, made[0], made[1], None, 0, b, h, blocks, 0, 0, 0, 0, 0,
        BLOCK=1024, SLOPES=True, SIDES=True, TABLE=False, WALKED=False, num_warps=4,
    )  # fmt: skip
    return made


def launch_walk(call: Call, grad: Tensor, lse2: Tensor, delta: Tensor) -> tuple[Tensor, int]:
    """Return sums of dS by squares [h diagonals parts 128 128], and the least distance in them.

    Only squares that are not wholly past the table's ends; the pass over rows has the others.
    """
    q, k, v = call.qkv
    b, h, t, _ = q.shape
    s = k.shape[2]
    offset, behind, ahead, sinks, first, last = call.counts[3:]
    side = 128
    # Squares on diagonal D have distances offset + 128 D ± 127.
    lowest = -(blocks_of(s, side) - 1)
    highest = blocks_of(t, side) - 1
    if ahead < UNLIMITED:
        lowest = max(lowest, -((ahead + offset + side - 1) // side))
    if ahead > 0:
        lowest = max(lowest, (first - offset - side + 1) // side + 1)
    if behind < UNLIMITED and sinks == 0:
        highest = min(highest, (behind - 1 - offset + side - 1) // side)
    highest = min(highest, (last - 1 - offset + side - 1) // side)
    count = max(0, highest - lowest + 1)
    config = call.config("walk")
    corners = side // config.rows * (side // config.keys)
    # Enough programs to fill the chip about eight times, as far as there are tiles to walk.
    parts = max(1, min(blocks_of(1056, max(1, count * h * corners)), b * blocks_of(min(t, s), side)))
    squares = delta.new_empty(h, count, parts, side, side)
    if count:
        tma = config.tma and _fits_tma(q, k, v, grad) and not call.tokens.any
        order = call.order()
        launch(
            tables.walk, (count * parts * corners, h),
            *call.described(config, tma, grad), lse2, delta, squares, *call.tensors,
            *call.tokens, order, call.longest(), *steps(q, k, v, grad), *lse2.stride()[:2], *call.steps,
            *call.tokens.steps, batch_step(order), *call.counts, call.scale, call.cap, lowest, parts, b,
            **call.constants(config, tma),
        )  # fmt: skip
    return squares, offset + side * lowest - (side - 1)


class Call:
    """What every kernel of one call is given, in the order it is given."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, how: Facets) -> None:
        if not (q.is_cuda or INTERPRETED):
            raise RuntimeError(f"the kernels run on CUDA devices; the tensors are on {q.device}")
        self.qkv = (q, k, v)
        self.q, self.v = q, v
        slopes, slopes_ahead, table, sharpen, scale, offset, behind, ahead, sinks, first, cap, cap_first, *_ = how
        self.scale, self.cap = scale, cap
        slopes, slopes_ahead = (None if each is None else each.contiguous() for each in (slopes, slopes_ahead))
        table, sharpen = (
            each if each is None or each.stride(-1) == 1 else each.contiguous() for each in (table, sharpen)
        )
        self.numbers = tuple(None if each is None else each.contiguous() for each in how[18:])
        if self.numbers[0] is not None and table is not None:
            # Its heads are as far apart as those of its derivative.
            table = table.contiguous()
        self.tensors = (slopes, slopes if slopes_ahead is None else slopes_ahead, table, sharpen)
        self.steps = (0 if table is None else table.stride(0), batch_step(sharpen))
        self.tokens = ready(how.tokens)
        self.products = by_row, by_key = how.products
        self.relates = (1 if by_row is not None else 0) + (2 if by_key is not None else 0)
        last = first if table is None else first + table.shape[1] - 1
        some = by_key if by_row is None else by_row
        many = 0 if some is None else some.shape[-1]
        # 1: all tokens are laid out alike, 2: each square of them for itself.
        self.diagonal = 0 if some is None or some.dim() == 4 else 1 if some.shape[2] == 1 else 2
        self.places = (first, first, many)
        if self.relates:
            many -= AROUND if self.diagonal else 0
            # Squares have all distances that occur.
            last = first + (UNLIMITED // 4 if self.diagonal == 2 else many)
        if self.diagonal:
            beside = (first + many - offset, -first) if self.diagonal == 1 else (SQUARE, SQUARE)
            self.places = (*beside, many + AROUND)
        self.counts = (q.shape[2], k.shape[2], q.shape[1] // k.shape[1], offset, behind, ahead, sinks, first, last)
        self.two_slopes = slopes_ahead is not None
        self.capped = (1 if cap_first else 2) if cap else 0
        # Whether a key can be seen that is further ahead than the first distance of by_row and by_key.
        nearest = -UNLIMITED if self.tokens.index is not None else offset - k.shape[2] + 1
        self.ends = self.relates > 0 and max(nearest, -ahead) < first

    @property
    def related(self) -> tuple[Any, ...]:
        """by_row and by_key, how far apart their batches, heads and tokens lie, and which distances they have."""
        lies = [(0, 0, 0) if each is None else (*each.stride()[:2], each.stride(-2)) for each in self.products]
        return (*self.products, *lies[0], *lies[1], *self.places)

    def gradients_of_products(self, some: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the gradients of by_row and by_key go: 0 where the kernels write nothing.

        Of tokens that count up by one, they write all of a row's numbers whose keys are all there, and of a key's.
        """
        rows, keys, _, offset, behind, ahead, _, first, _ = self.counts
        by_row, by_key = self.products
        many = self.places[2] - (AROUND if self.diagonal else 0)
        if not self.relates or self.tokens.any or first < -ahead or first + many > behind:
            made = [some.new_empty(0) if each is None else torch.zeros_like(each) for each in self.products]
            return made[0], made[1]
        if self.diagonal == 2:
            # Whoever reads them knows which pairs there are.
            made = [some.new_empty(0) if each is None else torch.empty_like(each) for each in (by_row, by_key)]
            return made[0], made[1]
        # Row i meets the keys offset + i − first and before, key j the rows j + first − offset and after.
        whole = (first + many - 1 - offset, keys + first - offset), (offset - first, rows + offset - first - many + 1)
        made = [
            some.new_empty(0) if each is None else _between_zeros(each, *ends)
            for each, ends in zip((by_row, by_key), whole, strict=True)
        ]
        return made[0], made[1]

    @property
    def short(self) -> bool:
        """True if so few rows see a block of keys that one masked loop goes over them all."""
        behind, ahead, table = self.counts[4], self.counts[5], self.tensors[2]
        return table is None and not self.relates and not self.tokens.any and ahead < UNLIMITED and behind <= SHORT

    @property
    def reach(self) -> bool:
        """True if keys that a slope leaves no weight are skipped."""
        rows, keys, _, offset, behind, ahead, *_ = self.counts
        slopes, _, table, sharpen = self.tensors
        # The slope comes last: a cap after it bounds the score of a key however far back.
        alone = table is None and sharpen is None and self.capped != 2 and not self.relates and not self.tokens.any
        # Every query has its own key among them.
        causal = behind == UNLIMITED and ahead == 0 and offset + rows <= keys
        return slopes is not None and alone and causal and keys >= REACH_FROM

    @cached_property
    def away(self) -> Tensor | None:
        """Return how far back keys can weigh anything, where that is asked for."""
        slopes = self.tensors[0]
        if slopes is None or not self.reach:
            return None
        return launch_reaches(*self.qkv, slopes, self.scale, (_width(self.q.shape[3]), _width(self.v.shape[3])))

    def bounds(self, config: Config, by_rows: bool) -> tuple[Tensor | None, int]:
        """Return which blocks each block of rows, or of keys, has to do with, where documents or indices were given."""
        if not self.tokens.any:
            return None, 0
        own, other = (config.rows, config.keys) if by_rows else (config.keys, config.rows)
        sides = {"BEHIND": self.counts[4] < UNLIMITED, "AHEAD": self.counts[5] < UNLIMITED}
        return bounds(self.tokens, self.counts, own, other, by_rows, sides)

    def order(self) -> Tensor | None:
        """Return tokens by document, [b|1 t], where they have indices that count up in each."""
        documents, _, index, _ = self.tokens
        return None if documents is None or index is None else documents.argsort(stable=True, dim=-1)

    def longest(self) -> Tensor | None:
        """Return how far apart any two indices are at most."""
        _, _, index, key_index = self.tokens
        if index is None or key_index is None:
            return None
        if index is key_index:
            least, most = index.aminmax()
            return most - least
        return torch.maximum(index.amax() - key_index.amin(), key_index.amax() - index.amin())

    def config(self, kernel: str, narrow: bool = False) -> Config:
        width = max(_width(self.q.shape[3]), _width(self.v.shape[3]))
        looked_up, packed = self.tensors[2] is not None, self.tokens.any
        few = narrow or self.counts[4] <= NARROW or (kernel == "forward" and self.counts[1] <= NARROW // 2)
        bent = self.tensors[0] is not None or self.capped > 0
        return configs.choose(
            kernel, width, self.q.itemsize, looked_up, packed, self.relates, few, bent, self.diagonal > 0,
            self.numbers[0] is not None, configs.has_little(self.q.device),
        )  # fmt: skip

    def described(self, config: Config, tma: bool, grad: Tensor | None = None) -> tuple[Any, ...]:
        """Return q, k, v and grad, if there is one, as tensors or as descriptors of their tiles."""
        q, k, v = self.qkv
        found = (
            _described(q, config.rows, tma), _described(k, config.keys, tma),
            _described(v, config.keys, tma, self.value_width),
        )  # fmt: skip
        return found if grad is None else (*found, _described(grad, config.rows, tma, self.value_width))

    @property
    def value_width(self) -> int:
        """Return channels of a tile of values.

        Triton 3.6 makes wrong code of some kernels whose values are narrower than 64 and whose keys are not (with
        documents and a bias by distance: other numbers, or an illegal access). There tiles are filled up with zeros.
        """
        widest = min(64, _width(self.q.shape[3])) if self.q.itemsize == 2 else 0
        return max(_width(self.v.shape[3]), widest)

    def constants_of_parts(self, config: Config, tma: bool) -> dict[str, Any]:
        """Return the same for kernels that go over keys or rows in parts."""
        return self.constants(config, tma) | {
            "TABLE": self.tensors[2] is not None, "TWO_SIDED": self.counts[5] > 0, "RELATE": self.relates,
            "DIAGONAL": self.diagonal, "REACH": self.reach, "MASK_STAGES": min(config.stages, 2),
        }  # fmt: skip

    def constants(self, config: Config, tma: bool) -> dict[str, Any]:
        """Return what the kernels are compiled for."""
        d, dv = self.q.shape[3], self.v.shape[3]
        return {
            "BM": config.rows, "BN": config.keys, "WIDTH": _width(d), "VWIDTH": self.value_width, "D": d, "DV": dv,
            "BEHIND": self.counts[4] < UNLIMITED, "AHEAD": self.counts[5] < UNLIMITED,
            "SLOPES": self.tensors[0] is not None, "CAP": self.capped, "SHARPEN": self.tensors[3] is not None,
            "FAST": self.q.itemsize == 2 and not INTERPRETED, "TMA": tma, "PRECISION": "ieee", **self.tokens.flags,
            "num_warps": config.warps, "num_stages": config.stages,
            **({"maxnreg": config.registers} if config.registers else {}),
        }  # fmt: skip


def _width(d: int) -> int:
    return max(16, power_of_two(d))


def _fits_tma(*tensors: Tensor) -> bool:
    """True if the copy engine takes them: 16-byte steps and starts, nothing expanded."""
    return all(
        each.data_ptr() % 16 == 0
        and all(
            step > 0 and step * each.itemsize % 16 == 0
            for step, n in zip(each.stride()[:3], each.shape[:3], strict=True)
            if n > 1
        )
        for each in tensors
    )


def _described(x: Tensor, rows: int, tma: bool, width: int = 0) -> Any:
    if not tma:
        return x
    # A step along an axis of length 1 is never taken; any that the copy engine accepts will do.
    steps = [step if n > 1 else 256 for step, n in zip(x.stride()[:3], x.shape[:3], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*steps, 1], [1, 1, rows, width or _width(x.shape[3])])


GIVEN = "Tensor q, Tensor k, Tensor v"
define("flash", f"({GIVEN}, {arguments(Facets, most=18)}) -> (Tensor, Tensor)", _flash, empty_answer)
define(
    "flash_backward",
    f"(Tensor grad, Tensor? grad_lse, {GIVEN}, Tensor out, Tensor lse, bool slopes_too, bool table_too, "
    f"{arguments(Facets)}) -> ({', '.join(['Tensor'] * 9)})",
    _flash_backward,
    _empty_gradients,
)
