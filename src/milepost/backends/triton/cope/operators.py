# pyright: basic, reportMissingImports=false
"""Causal attention with numbers that are looked up by a count of open gates, on plain tensors, forward and backward.

    out, lse = gated(q, k, v, entries)

entries: [b h t n], what is added to the scores of a query whose count is 0, 1, … n − 1, and linearly between;
see `gates` for the count. A key's gate is as open as the sigmoid of its score is large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost.backends.triton.attention.flash import (
    UNLIMITED,
    Call,
    Facets,
    _fits_tma,
    _like,
    close,
    empty_answer,
    launch_prepare,
)
from milepost.backends.triton.cope import kernels as gates
from milepost.backends.triton.packed.block_ranges import Tokens
from milepost.backends.triton.runtime.configs import Config, blocks_of
from milepost.backends.triton.runtime.launch import device_of, launch, steps
from milepost.backends.triton.runtime.played import arguments, define, demand_first_gradients, gradients, operator

ROOM = 1 << 25
"""Bytes that the two passes backwards always have to leave things for one another; else, as much as two of q."""


def gated(
    q: Tensor, k: Tensor, v: Tensor, entries: Tensor, *, scale: float | None = None, offset: int = 0,
    documents: Tensor | None = None, key_documents: Tensor | None = None,
    index: Tensor | None = None, key_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return attention and each row's log-sum-exp, both with gradients; arguments as `flash` has them.

    Keys count in the order in which they lie.
    """
    if entries.shape[-1] < 2:
        raise ValueError(f"gated: entries is {list(entries.shape)}; counts are looked up between at least two numbers")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    q, k, v = close(q, k, v)
    entries, tokens = entries.contiguous(), Tokens(documents, key_documents, index, key_index)
    learned = (q, k, v, entries)
    if not (torch.is_grad_enabled() and any(each.requires_grad for each in learned)):
        out, lse = operator("gated", _gated, q)(*learned, scale, offset, *tokens)
        return out, lse.float()
    # The tracer wants every argument to be another tensor.
    v = v.view_as(v) if v is q or v is k else v
    k = k.view_as(k) if k is q else k
    return _Gated.apply(q, k, v, entries, scale, offset, *tokens.apart())  # pyright: ignore


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, entries: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        out, lse = operator("gated", _gated, q)(q, k, v, entries, *how)
        ctx.save_for_backward(q, k, v, entries, out, lse, *how[2:])
        ctx.numbers = how[:2]
        ctx.set_materialize_grads(False)
        return out, lse.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, entries, out, lse, *tokens = ctx.saved_tensors
        if grad is None and grad_lse is None:
            return (None,) * 10
        demand_first_gradients("attend")
        grad, grad_lse = gradients(grad, grad_lse, out)
        grads = operator("gated_backward", _gated_backward, grad)(
            grad, grad_lse, q, k, v, entries, out, lse, *ctx.numbers, *tokens
        )
        return (*grads, *(None,) * 6)


CONSTANTS = (
    "BM", "BN", "WIDTH", "VWIDTH", "D", "DV", "PRECISION", "DOCS", "INDEXED", "num_warps", "num_stages",
)  # fmt: skip


def _call(q: Tensor, k: Tensor, v: Tensor, scale: float, offset: int, tokens: tuple[Tensor | None, ...]) -> Call:
    return Call(q, k, v, Facets(None, None, None, None, scale, offset, UNLIMITED, 0, 0, 0, 0.0, False, *tokens))


def _constants(call: Call, config: Config) -> dict[str, Any]:
    """Return what the kernels are compiled for."""
    known = call.constants(config, False)
    return {name: known[name] for name in CONSTANTS}


def _gated(
    q: Tensor, k: Tensor, v: Tensor, entries: Tensor, scale: float, offset: int, *tokens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the forward kernel, launched."""
    out, lse = empty_answer(q, k, v)
    if 0 in out.shape:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    asked = _call(q, k, v, scale, offset, tokens)
    config = asked.config("gates")
    with device_of(q):
        limits = asked.bounds(config, by_rows=True)
        launch(
            gates.forward, (blocks_of(q.shape[2], config.rows), q.shape[1], q.shape[0]),
            q, k, v, entries, out, lse, *asked.tokens, limits[0], *steps(q, k, v, entries, out), *lse.stride()[:2],
            *asked.tokens.steps, limits[1], *asked.counts[:4], entries.shape[3] - 1, scale,
            **_constants(asked, config), FAR=config.far or config.keys,
        )  # fmt: skip
    return out, lse


def _gated_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, entries: Tensor, out: Tensor, lse: Tensor,
    scale: float, offset: int, *tokens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the backward kernels, launched, some rows after the others: dq, dk, dv and the gradient of entries."""
    (b, h, t, _), (g, s) = q.shape, k.shape[1:3]
    dq, dk, dv, d_entries = _empty_gradients(grad, grad_lse, q, k, v, entries)
    if 0 in (b, h, t, s):
        return dq.zero_(), dk.zero_(), dv.zero_(), d_entries.zero_()
    d_entries = torch.zeros_like(entries, dtype=torch.float32)
    if grad.stride(-1) != 1 or 0 in grad.stride():
        grad = grad.contiguous()
    asked = _call(q, k, v, scale, offset, tokens)
    config, near_keys, far_keys = (asked.config(kernel) for kernel in ("gates_rows", "gates_keys", "gates_far"))
    block = far_keys.keys
    tiles = blocks_of(s, block) * (block // config.keys)
    many = _rows_at_once(config, max(ROOM, 2 * q.numel() * q.itemsize) // (8 * b * h * tiles), t)
    right, left = (torch.empty(b, h, many, tiles, dtype=torch.float32, device=q.device) for _ in range(2))
    near = torch.empty(b, h, blocks_of(t, config.rows), dtype=torch.int32, device=q.device)
    near_dk, near_dv = (torch.zeros_like(each, dtype=torch.float32) for each in (dk, dv))
    with device_of(q):
        lse2, delta = launch_prepare(grad, grad_lse, out, lse)
        less_far = torch.empty_like(lse2)
        limits, near_limits, far_limits = (
            asked.bounds(each, by_rows=each is config) for each in (config, near_keys, far_keys)
        )
        read = (q, k, v, grad, entries, lse2, delta)
        counts = (*asked.counts[:4], entries.shape[3] - 1)
        near_steps = (*steps(q, k, v, grad, entries), *lse2.stride()[:2])
        tma = far_keys.tma and _fits_tma(q, k, v, grad)
        of_near = steps(near_dk, near_dv)
        room = (*steps(right), *near.stride()[:2], *asked.tokens.steps)
        # From the last rows on, because keys want to know of all later ones whether they are near to them.
        for first in reversed(range(0, t, many)):
            past = min(first + many, t)
            launch(
                gates.backward_rows, (blocks_of(past - first, config.rows), h, b),
                *read, dq, d_entries, right, left, near, less_far, *asked.tokens, limits[0],
                *near_steps, *steps(dq), *room, limits[1], *counts, first, scale,
                **_constants(asked, config), FAR=config.far or config.keys, BLOCK=block,
            )  # fmt: skip
            launch(
                gates.backward_keys, (blocks_of(s, near_keys.keys), g, b),
                *read, near_dk, near_dv, right, left, near, less_far, *asked.tokens, near_limits[0],
                *near_steps, *of_near, *room, near_limits[1], *counts, first, past, scale,
                **_constants(asked, near_keys), SIDE=config.rows, TILE=config.keys, BLOCK=block, SINGLE=g == h,
            )  # fmt: skip
        launch(
            gates.backward_far_keys, (blocks_of(s, block), g, b),
            *asked.described(far_keys, tma, grad), less_far, delta, near_dk, near_dv, dk, dv, near, *asked.tokens,
            far_limits[0], *steps(q, k, v, grad), *lse2.stride()[:2], *of_near, *steps(dk, dv), *near.stride()[:2],
            *asked.tokens.steps, far_limits[1], *asked.counts[:4], scale,
            **_constants(asked, far_keys), SIDE=config.rows, SINGLE=g == h, TMA=tma,
        )  # fmt: skip
    return dq, dk, dv, d_entries.to(entries.dtype)


def _empty_gradients(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, entries: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return empty tensors, as `_gated_backward` returns them: but for dq as dense as torch is told that they are."""
    dk, dv, d_entries = (torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (k, v, entries))
    return _like(q, q.shape[3]), dk, dv, d_entries


def _rows_at_once(config: Config, fit: int, rows: int) -> int:
    """Return whole blocks of rows, as many as fit and at least one."""
    return max(1, min(fit // config.rows, blocks_of(rows, config.rows))) * config.rows


GIVEN = "Tensor q, Tensor k, Tensor v, Tensor entries"
HOW = f"float scale, SymInt offset, {arguments(Tokens)}"
define("gated", f"({GIVEN}, {HOW}) -> (Tensor, Tensor)", _gated, empty_answer)
define(
    "gated_backward",
    f"(Tensor grad, Tensor? grad_lse, {GIVEN}, Tensor out, Tensor lse, {HOW}) -> (Tensor, Tensor, Tensor, Tensor)",
    _gated_backward,
    _empty_gradients,
)
