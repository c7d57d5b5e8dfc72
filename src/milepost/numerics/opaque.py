"""Tables that are walked step by step, hidden from the compiler.

A recurrence over a thousand positions would be a thousand nodes of a traced graph, and another graph at every length.
Wrapped here it is one node, whatever the positions are; the backward pass walks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from milepost.memory.internals import forward_mode
from milepost.memory.surroundings import without_autocast

Walk = Callable[[Tensor, Sequence[Tensor], str], Tensor]
"""Positions [...], weights, and settings, to rows [..., *shape of the first weight]."""


def opaque(name: str, walk: Walk) -> Walk:
    """Return the same function as one node of a graph, with its gradient for the weights."""

    def exact(at: Tensor, weights: Sequence[Tensor], settings: str) -> Tensor:
        # In half precision each of a thousand steps would err, and pass its error on.
        with without_autocast(at.device):
            return walk(at, weights, settings)

    def forward(at: Tensor, weights: list[Tensor], settings: str) -> Tensor:
        # An operator may not return what it was given.
        return exact(at, weights, settings).clone(memory_format=torch.contiguous_format)

    def backward(grad: Tensor, at: Tensor, weights: list[Tensor], settings: str) -> list[Tensor]:
        # Torch takes autograd away inside an operator; a transform of torch.func brings its own.
        with without_autocast(at.device):
            _, pulled, *_ = torch.func.vjp(lambda *weights: walk(at, weights, settings), *weights)
            return [each.clone() for each in pulled(grad)]

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

    def run(at: Tensor, weights: Sequence[Tensor], settings: str) -> Tensor:
        # An operator drops the tangents of dual numbers without a word; step by step they come along.
        return (exact if forward_mode() else one)(at, weights, settings)

    return run
