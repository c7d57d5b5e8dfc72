# pyright: reportIncompatibleMethodOverride=false
"""What is large and quickly made is not kept for a backward pass, but made again in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from milepost.backends.triton.runtime.played import demand_first_gradients

Run = Callable[..., tuple[Tensor, Tensor]]


def remade(run: Run, *given: Tensor) -> tuple[Tensor, Tensor]:
    """`run(*given)`, of which nothing but what was given is kept; run gives the same every time."""
    return _Remade.apply(run, *given)  # pyright: ignore


class _Remade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *given: Tensor) -> tuple[Tensor, Tensor]:
        ctx.run = run
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        return run(*given)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None and grad_lse is None:
            return (None,) * (1 + len(ctx.saved_tensors))
        demand_first_gradients("attend")
        needs = ctx.needs_input_grad[1:]
        given = [each.detach().requires_grad_(need) for each, need in zip(ctx.saved_tensors, needs, strict=True)]
        with torch.enable_grad():
            found = ctx.run(*given)
        asked = [(each, own) for each, own in zip(found, (grad, grad_lse), strict=True) if own is not None]
        leaves = [each for each in given if each.requires_grad]
        grads = iter(
            torch.autograd.grad([each for each, _ in asked], leaves, [own for _, own in asked], allow_unused=True)
        )
        return None, *(next(grads) if each.requires_grad else None for each in given)
