"""Tables that are walked step by step, hidden from the compiler.

A recurrence over a thousand positions would be a thousand nodes of a traced graph, and another graph at every length.
Wrapped here it is one node, whatever the positions are; the backward pass walks again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

Walk = Callable[[Tensor, Sequence[Tensor], str], Tensor]
"""Positions [...], weights, and settings, to rows [..., *shape of the first weight]."""


@contextlib.contextmanager
def _autograd() -> Generator[None]:
    """Autograd, which torch takes away inside an operator."""
    inside = torch._C  # pyright: ignore[reportPrivateUsage]
    keys: Any = inside._dispatch_tls_local_exclude_set()  # pyright: ignore[reportPrivateUsage]
    for name in ("AutogradFunctionality", "ADInplaceOrView"):
        keys = keys.remove(getattr(inside.DispatchKey, name))
    included = inside._dispatch_tls_local_include_set()  # pyright: ignore[reportPrivateUsage]
    guard = inside._ForceDispatchKeyGuard(included, keys)  # pyright: ignore[reportPrivateUsage]
    with guard, torch.enable_grad():
        yield


def opaque(name: str, walk: Walk) -> Walk:
    """The same function as one node of a graph, with its gradient for the weights."""

    def forward(at: Tensor, weights: list[Tensor], settings: str) -> Tensor:
        # An operator may not return what it was given.
        return walk(at, weights, settings).clone(memory_format=torch.contiguous_format)

    def backward(grad: Tensor, at: Tensor, weights: list[Tensor], settings: str) -> list[Tensor]:
        with _autograd():
            leaves = [weight.detach().requires_grad_() for weight in weights]
            grads = torch.autograd.grad(walk(at, leaves, settings), leaves, grad, materialize_grads=True)
        return [each.clone() for each in grads]

    one = torch.library.custom_op(
        f"milepost::{name}", forward, mutates_args=(), schema="(Tensor at, Tensor[] weights, str settings) -> Tensor"
    )
    back = torch.library.custom_op(
        f"milepost::{name}_backward",
        backward,
        mutates_args=(),
        schema="(Tensor grad, Tensor at, Tensor[] weights, str settings) -> Tensor[]",
    )

    @one.register_fake
    def _(at: Tensor, weights: list[Tensor], settings: str) -> Tensor:
        return weights[0].new_empty(*at.shape, *weights[0].shape)

    @back.register_fake
    def _(grad: Tensor, at: Tensor, weights: list[Tensor], settings: str) -> list[Tensor]:
        return [torch.empty_like(weight) for weight in weights]

    def remember(ctx: Any, inputs: tuple[Tensor, list[Tensor], str], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], *inputs[1])
        ctx.settings = inputs[2]

    def differentiate(ctx: Any, grad: Tensor) -> tuple[None, list[Tensor], None]:
        at, *weights = ctx.saved_tensors
        return None, back(grad, at, weights, ctx.settings), None

    one.register_autograd(differentiate, setup_context=remember)
    return one
