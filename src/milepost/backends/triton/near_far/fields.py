# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
"""Near and far keys of one softmax, which read q and k turned in different ways, or have a bias only when near.

All keys at least w behind are plain causal attention between the queries from w on and the keys up to t − w: torch's
own kernel (cuDNN's) does that part where it can, and ours joins it as it writes what near keys give. Each part's
backward pass is given the joined output and log-sum-exp, and answers its own share of the gradients. Or one kernel of
ours goes over both (`both`).

Far scores may be set off against L, the log-sum-exp of the near ones, by a strength λ_i of each row:

    near:  e^(s − M),    far:  e^((1 + λ)·s − λ·L − M),    M  =  ln( e^L + e^(F − λL) ),   F = ln Σ_far e^((1 + λ)·s)

The 1 + λ is in the queries already. What M says of the near scores through L is a number a row (`contrasted`, below).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from milepost.backends.triton.attention.flash import (
    SHORT,
    UNLIMITED,
    Call,
    Facets,
    Far,
    _fits_tma,
    _like,
    _width,
    close,
    launch_forward,
    launch_keys,
    launch_learned,
    launch_prepare,
    launch_rows,
    packed,
)
from milepost.backends.triton.attention.score import LOG2E, tile
from milepost.backends.triton.near_far import one_pass as both
from milepost.backends.triton.runtime import vendor
from milepost.backends.triton.runtime.configs import Config, blocks_of
from milepost.backends.triton.runtime.launch import batch_step, device_of, launch, steps
from milepost.backends.triton.runtime.played import demand_first_gradients, gradients
from milepost.backends.triton.runtime.vendor import Dice

CONSTANTS = ("BM", "BN", "WIDTH", "VWIDTH", "D", "DV", "TMA", "PRECISION", "num_warps", "num_stages")
IN_ONE = 64
"""Heads up to this width go over near and far keys in one kernel: there ours is about as quick as torch's."""


class Fields(NamedTuple):
    """What two fields of one call are made of, besides tensors with gradients."""

    near: int
    """Keys less than so far behind are near."""
    scale: float
    ahead: int = 0
    """How far ahead near keys may be."""
    behind: int = UNLIMITED
    """How far behind far keys may be."""
    offset: int = 0
    strength: Tensor | None = None
    """[b|1 t], how strongly far scores are set off against near ones."""
    gain: Tensor | None = None
    """[b|1 t], what is then added to a row's far scores."""


class Answer(NamedTuple):
    """What the forward pass returns, and what only the backward pass reads."""

    out: Tensor
    lse: Tensor
    kept: tuple[Tensor | None, ...] = (None,) * 3
    """Where far scores are set off: the output of far keys and its log-sum-exp, or, where one kernel goes over all,
    that of near keys and None; then the log-sum-exp of near keys."""
    dice: Dice = ()


def fields(
    q: Tensor, k: Tensor, v: Tensor, how: Fields, far_q: Tensor | None = None, far_k: Tensor | None = None,
    table: Tensor | None = None, by_row: Tensor | None = None, by_key: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return attention to near keys by q·k and to far ones by far_q·far_k, and its log-sum-exp, with gradients.

    q, far_q: [b h t d], k, far_k: [b g s d], v: [b g s dv]. Far keys are read by q and k themselves where no others are
    given. Near scores gain by distance from 0 on: table: [h n] in float32, or by_row: [b h t n] and by_key: [b h s n],
    before the scale, in q's dtype.
    """
    apart = (None, None) if far_q is None or far_k is None else close(far_q, far_k)
    given = (*close(q, k, v), *apart, table, packed(by_row), packed(by_key))
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in given):
        return _Fields.apply(*given, how)  # pyright: ignore
    return forward(given, how)[:2]


class _Fields(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *tensors, how = given
        found = forward(tensors, how, keep=True)
        ctx.save_for_backward(*tensors, found.out, found.lse, *found.kept)
        ctx.rest = how, found.dice
        ctx.set_materialize_grads(False)
        return found.out, found.lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        if grad is None and grad_lse is None:
            return (None,) * 9
        *tensors, out, lse, one, two, three = ctx.saved_tensors
        how, dice = ctx.rest
        (*found, far_dq, far_dk), first = backward(
            tensors, how, grad, grad_lse, Answer(out, lse, (one, two, three), dice)
        )
        if far_dq is not None and first:
            far_dq, far_dk = pad(far_dq, (0, 0, first, 0)), pad(far_dk, (0, 0, 0, first))
        return *found[:3], far_dq, far_dk, *found[3:], None


def _in_one_pass(tensors: Sequence[Any]) -> bool:
    """True if one kernel goes over near and far keys."""
    q, _, v, far_q, _, *gains = tensors
    return far_q is not None and all(each is None for each in gains) and in_one_pass(q, v)


def forward(tensors: Sequence[Any], how: Fields, keep: bool = False) -> Answer:
    """Attend without gradients. tensors: q, k, v, far_q, far_k, table, by_row and by_key; keep: for `backward`."""
    if _in_one_pass(tensors):
        return _forward_in_one(tensors[:5], how, keep)
    q, k, v, far_q, far_k, *more = tensors
    with device_of(q):
        far, dice = _far(q if far_q is None else far_q, k if far_k is None else far_k, v, how)
        out, lse, far = _near(q, k, v, more, how, far)
    # Without a contrast, the joined answer says all that the backward pass needs.
    return Answer(out, lse, (None,) * 3 if how.strength is None else (far.out, far.lse, far.near_lse), dice)


def backward(
    tensors: Sequence[Any], how: Fields, grad: Tensor | None, grad_lse: Tensor | None, found: Answer
) -> tuple[tuple[Any, ...], int]:
    """Return the gradients of q, k, v, table, by_row, by_key, far_q and far_k, and the first query that far_q's has.

    As many keys are missing at the end of far_k's.
    """
    demand_first_gradients("attend")
    out = found.out
    grad, grad_lse = gradients(grad, grad_lse, out)
    in_one = _in_one_pass(tensors)
    if in_one:
        grad = grad.contiguous() if grad.stride(-1) != 1 or 0 in grad.stride() else grad
    elif grad.stride() != out.stride():
        # As torch's kernel wants it: laid out as the output is.
        grad = torch.empty_like(out).copy_(grad)
    with device_of(out):
        part, far_lse, near_lse = found.kept
        if how.strength is None or part is None or near_lse is None:
            lse2, delta, far_lse2, far_delta = launch_prepare(grad, grad_lse, out, found.lse) * 2
        else:
            lse2, delta, far_lse2, far_delta = _contrast(
                grad, grad_lse, out, found.lse, how.strength, near_lse, part, far_lse
            )
        said = lse2, delta, _far_lse2(far_lse2, how), far_delta
        if in_one:
            dq, dk, dv, far_dq, far_dk = _backward_in_one(tensors[:5], how, grad, said)
            return (dq, dk, dv, None, None, None, far_dq, far_dk), 0
        return _backward_apart(tensors, how, grad, grad_lse is not None, found, said)


Gains = tuple[Tensor | None, Tensor | None, Tensor | None]
"""What near scores gain by distance: table, by_row, by_key."""
NOTHING: Gains = (None, None, None)
Turned = Callable[[], tuple[Tensor, Tensor] | None]
"""Makes queries and keys turned in one way, when they are wanted."""


def fields_in_turn(near: Turned, far: Turned, v: Tensor, how: Fields) -> tuple[Tensor, Tensor] | None:
    """Return the same without gradients: far queries and keys are freed before near ones are made; None if they are."""
    apart = far()
    if apart is None:
        return None
    (v,) = close(v)
    if in_one_pass(apart[0], v):
        beside = near()
        return None if beside is None else forward((*close(*beside), v, *close(*apart), *NOTHING), how)[:2]
    with device_of(v):
        answered, _ = _far(*close(*apart), v, how)
        del apart
        beside = near()
        return None if beside is None else _near(*close(*beside), v, NOTHING, how, answered)[:2]


def _far(q: Tensor, k: Tensor, v: Tensor, how: Fields) -> tuple[Far, Dice]:
    """Return what far keys answer, and the state of the dice."""
    b, h, t, _ = q.shape
    if by_vendor(q, k, v, how):
        w = how.near
        out, lse, dice = vendor.forward(q[:, :, w:], k[:, :, : t - w], v[:, :, : t - w], True, how.scale)
        return Far(out, _gained(lse, how, w), w, how.strength), dice
    far = Far(_like(q, v.shape[3]), q.new_empty(b, h, t, dtype=torch.float32), 0, how.strength)
    launch_forward(_far_call(q, k, v, how), far.out, far.lse)
    return far._replace(lse=_gained(far.lse, how)), ()


def _gained(lse: Tensor, how: Fields, first: int = 0) -> Tensor:
    """Return far keys' log-sum-exp, of the rows from the first on, with what each of their scores gains."""
    return lse if how.gain is None else lse + how.gain[:, None, first:]


def _near(q: Tensor, k: Tensor, v: Tensor, more: Gains, how: Fields, far: Far) -> tuple[Tensor, Tensor, Far]:
    """Return near keys' output joined with that of far ones, its log-sum-exp, and far with near keys' log-sum-exp."""
    out, lse = _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
    if how.strength is not None:
        far = far._replace(near_lse=torch.empty_like(lse))
    launch_forward(_near_call(q, k, v, more, how), out, lse, far)
    return out, lse, far


def _near_call(q: Tensor, k: Tensor, v: Tensor, more: Gains, how: Fields) -> Call:
    table, by_row, by_key = more
    return Call(q, k, v, Facets(
        table=table, scale=how.scale, offset=how.offset, behind=min(how.near, how.behind), ahead=how.ahead,
        by_row=by_row, by_key=by_key,
    ))  # fmt: skip


def _far_call(q: Tensor, k: Tensor, v: Tensor, how: Fields) -> Call:
    return Call(q, k, v, Facets(scale=how.scale, offset=how.offset, behind=how.behind, ahead=-how.near))


def worth_it(q: Tensor, k: Tensor, v: Tensor, how: Fields) -> bool:
    """True if two fields that read the same queries and keys cost less than one pass over all: on torch's kernel."""
    return by_vendor(q, k, v, how)


def in_one_pass(q: Tensor, v: Tensor) -> bool:
    """True if one kernel goes over near and far keys."""
    return max(q.shape[3], v.shape[3]) <= IN_ONE


def by_vendor(q: Tensor, k: Tensor, v: Tensor, how: Fields) -> bool:
    """True if torch's own kernel does the far keys."""
    t = q.shape[2]
    laid_out = t == k.shape[2] and t >= 2 * how.near and (how.offset, how.behind) == (0, UNLIMITED)
    return laid_out and vendor.takes(q, k, v)


def _backward_apart(
    tensors: Sequence[Any], how: Fields, grad: Tensor, of_lse: bool, found: Answer, said: Sequence[Tensor]
) -> tuple[tuple[Any, ...], int]:
    """Return the gradients of far keys and near ones, added as they are written. of_lse: the log-sum-exp has one."""
    q, k, v, far_q, far_k, table, *products = tensors
    lse2, delta, far_lse2, far_delta = said
    read = (q, k, v) if far_q is None else (far_q, far_k, v)
    # Asked for the same bits only now, or given a gradient of the log-sum-exp: ours does it.
    if found.dice and not of_lse and not torch.are_deterministic_algorithms_enabled():
        first, (far_dq, far_dk, far_dv) = how.near, _vendor_backward(*read, how, grad, found)
    else:
        call = _far_call(*read, how)
        first, (far_dq, far_dk, far_dv) = 0, (_like(each, each.shape[3]) for each in read)
        launch_keys(call, grad, far_lse2, far_delta, far_dk, far_dv)
        launch_rows(call, grad, far_lse2, far_delta, far_dq, False, False)
    # Near keys' share is added as it is written.
    beside_q, beside_k = (far_dq, far_dk) if far_q is None else (None, None)
    dq, dk, dv = (_like(each, each.shape[3]) for each in (q, k, v))
    call = _near_call(q, k, v, (table, *products), how)
    made = call.gradients_of_products(delta)
    launch_keys(call, grad, lse2, delta, dk, dv, made[1], (beside_k, far_dv))
    sums = launch_rows(call, grad, lse2, delta, dq, False, table is not None, made[0], beside_q)
    gains = [None if each is None else its for each, its in zip(products, made, strict=True)]
    d_table = None if table is None else launch_learned(call, grad, lse2, delta, sums, False, True)[2]
    return (dq, dk, dv, d_table, *gains, *((None, None) if far_q is None else (far_dq, far_dk))), first


def _vendor_backward(
    q: Tensor, k: Tensor, v: Tensor, how: Fields, grad: Tensor, found: Answer
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what far keys give to dq of the rows that see any, and to dk and dv of those that are seen."""
    (out, lse, (_, _, near_lse), dice), w, t = found, how.near, q.shape[2]
    if how.strength is not None and near_lse is not None:
        lse = torch.addcmul(lse, how.strength[:, None], near_lse)
    lse = lse if how.gain is None else lse - how.gain[:, None]
    early = k[:, :, : t - w], v[:, :, : t - w]
    return vendor.backward(grad[:, :, w:], q[:, :, w:], *early, out[:, :, w:], lse[:, :, w:], dice, True, how.scale)


# One kernel for both


def _forward_in_one(given: Sequence[Tensor], how: Fields, keep: bool) -> Answer:
    """out and lse, and those of near keys alone where a backward pass with a contrast wants them."""
    q, _, v, _, _ = given
    out, lse = _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
    keep = keep and how.strength is not None
    near_out, near_lse = (torch.empty_like(out), torch.empty_like(lse)) if keep else (None, None)
    strength = how.strength
    with device_of(q):
        config, tensors, read, numbers, constants = _launch_arguments("forward", given, how)
        launch(
            both.forward, (blocks_of(q.shape[2], config.rows), q.shape[1], q.shape[0]),
            *tensors, out, lse, strength, how.gain, near_out, near_lse, *read, *steps(out), *lse.stride()[:2],
            batch_step(strength), batch_step(how.gain), *numbers,
            **constants, CONTRAST=strength is not None, GAINS=how.gain is not None, KEEP=keep,
        )  # fmt: skip
    return Answer(out, lse, (near_out, None, near_lse))


def _backward_in_one(given: Sequence[Tensor], how: Fields, grad: Tensor, said: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v, far_q and far_k; said: lse2 and delta, of near keys and of far ones."""
    q, k, _, _, _ = given
    dq, dk, dv, far_dq, far_dk = (_like(each, each.shape[3]) for each in given)
    some = said[0].stride()[:2]
    config, tensors, read, numbers, constants = _launch_arguments("keys", given, how, grad)
    launch(
        both.backward_keys, (blocks_of(k.shape[2], config.keys), *k.shape[1::-1]),
        *tensors, *said, dk, far_dk, dv, *read, *steps(dk, far_dk, dv), *some, *numbers, **constants,
        SINGLE=q.shape[1] == k.shape[1], SHORT=how.near <= SHORT,
    )  # fmt: skip
    config, tensors, read, numbers, constants = _launch_arguments("rows", given, how, grad)
    launch(
        both.backward_rows, (blocks_of(q.shape[2], config.rows), *q.shape[1::-1]),
        *tensors, *said, dq, far_dq, *read, *steps(dq, far_dq), *some, *numbers, **constants,
    )  # fmt: skip
    return dq, dk, dv, far_dq, far_dk


def _launch_arguments(
    kernel: str, given: Sequence[Tensor], how: Fields, grad: Tensor | None = None
) -> tuple[Config, tuple[Any, ...], tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
    """Return the tile settings of a kernel over both fields, its tensors, their strides, numbers and constants."""
    q, k, v, far_q, far_k = given
    near, far = _near_call(q, k, v, NOTHING, how), _far_call(far_q, far_k, v, how)
    # Two fields are two short walks, whatever the window.
    config = near.config(kernel, narrow=True)
    read = [q, k, far_q, far_k, v, *([] if grad is None else [grad])]
    tma = config.tma and _fits_tma(*read)
    own_q, own_k, *others = near.described(config, tma, grad)
    tensors = (own_q, own_k, *far.described(config, tma)[:2], *others)
    constants = near.constants(config, tma)
    fixed = {name: constants[name] for name in CONSTANTS} | {"ENDS": how.behind < UNLIMITED}
    numbers = (
        q.shape[2], k.shape[2], q.shape[1] // k.shape[1], how.offset, how.near, how.behind, how.ahead, how.scale
    )  # fmt: skip
    return config, tensors, steps(*read), numbers, fixed


def _far_lse2(lse2: Tensor, how: Fields) -> Tensor:
    """Return the log-sum-exp that far scores are weighed by, less what each of them gains."""
    if how.gain is None:
        return lse2
    found = lse2.clone()
    found[:, :, : how.gain.shape[1]] -= how.gain[:, None] * LOG2E.value
    return found


def _contrast(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, strength: Tensor, near_lse: Tensor, part: Tensor,
    far_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """lse2 and delta as the backward kernels read them, of near keys and of far ones.

    part: what near keys alone answered, or, with far_lse, what far ones did.
    """
    b, h, t, dv = out.shape
    whole = blocks_of(t, 128) * 128
    made = lse.new_empty(4, b, h, whole)
    launch(
        contrasted, (whole // 64, h, b),
        out, grad, lse, grad_lse, part, far_lse, near_lse, strength, *made, *steps(out, grad), *lse.stride()[:2],
        *steps(grad_lse, part), *steps(far_lse, axes=2), batch_step(strength), *made.stride()[1:3], t,
        t - part.shape[2], BM=64, VWIDTH=_width(dv), DV=dv, GRAD_LSE=grad_lse is not None, NEAR=far_lse is None,
        num_warps=4,
    )  # fmt: skip
    lse2, delta, far_lse2, far_delta = made
    return lse2, delta, far_lse2, far_delta


@triton.jit(do_not_specialize=["rows", "far_row"])
def contrasted(
    Out, Grad, Lse, GradLse, Part, FarLse, NearLse, Strength, Lse2, Delta, FarLse2, FarDelta,
    o_b, o_h, o_t, do_b, do_h, do_t, lse_b, lse_h, gl_b, gl_h, gl_t, p_b, p_h, p_t, fl_b, fl_h, strength_b, l_b, l_h,
    rows, far_row, BM: tl.constexpr, VWIDTH: tl.constexpr, DV: tl.constexpr, GRAD_LSE: tl.constexpr,
    NEAR: tl.constexpr,
):  # fmt: skip
    """Prepare rows with a contrast: D = Σ grad·out, g = grad_lse, w = e^(L − M) of near keys, N their Σ grad·out:

        far:   dS  =  P·(dP − (D − g)),   P  =  e^((1 + λ)·s − (M + λL))
        near:  dS  =  P·(dP − delta),     delta  =  (1 + λ)·(D − g) − λ·N + λ·g/w

    The sum of all dS of a row is g, so that of the far ones, which L hears of, is told by the near ones'. Part is what
    far keys answered to the rows from far_row on, out of which N is found; NEAR: what near ones answered to all.
    """
    row = tl.program_id(0) * BM
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    at = row + tl.arange(0, BM)
    inside = at < rows
    out = tile(Out + b * o_b + h * o_h, 0, 0, row, rows, o_t, BM, VWIDTH, DV, False).to(tl.float32)
    grad = tile(Grad + b * do_b + h * do_h, 0, 0, row, rows, do_t, BM, VWIDTH, DV, False).to(tl.float32)
    channel = tl.arange(0, VWIDTH)
    late = inside & (at >= far_row)
    pointers = Part + b * p_b + h * p_h + (at - far_row).to(tl.int64)[:, None] * p_t + channel[None, :]
    part = tl.load(pointers, mask=late[:, None] & (channel < DV)[None, :], other=0.0).to(tl.float32)
    total = tl.load(Lse + b * lse_b + h * lse_h + at, mask=inside, other=float("-inf"))
    near = tl.load(NearLse + b * lse_b + h * lse_h + at, mask=inside, other=float("-inf"))
    strength = tl.load(Strength + b * strength_b + at, mask=inside, other=0.0)
    blind = total == float("-inf")
    shift = strength * tl.where(near == float("-inf"), 0.0, near)
    top = tl.where(blind, 0.0, total)
    near_share = tl.exp(near - top)
    delta = tl.sum(out * grad, 1)
    of_near = tl.sum(part * grad, 1)
    alone = near_share == 0
    share = tl.where(alone, 1.0, near_share)
    if not NEAR:
        far = tl.load(FarLse + b * fl_b + h * fl_h + at - far_row, mask=late, other=float("-inf"))
        of_near = (delta - tl.exp(far - shift - top) * of_near) / share
    of_near = tl.where(alone, delta, of_near)
    pull = tl.zeros([BM], tl.float32)
    if GRAD_LSE:
        grad_lse = tl.load(GradLse + b * gl_b + h * gl_h + at * gl_t, mask=inside, other=0.0)
        grad_lse = tl.where(blind, 0.0, grad_lse)
        delta -= grad_lse
        pull = tl.where(alone, 0.0, grad_lse / share)
    place = b * l_b + h * l_h + at
    tl.store(FarDelta + place, delta)
    tl.store(Delta + place, (1 + strength) * delta - strength * of_near + strength * pull)
    tl.store(Lse2 + place, tl.where(blind, float("inf"), total * LOG2E))
    tl.store(FarLse2 + place, tl.where(blind, float("inf"), (total + shift) * LOG2E))
