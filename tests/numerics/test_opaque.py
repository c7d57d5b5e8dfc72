"""Recurrences hidden from the compiler: their derivatives, in both modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

import milepost as mp
from tests.oracles import inputs

METHODS: dict[str, Any] = {
    "Floater": lambda: mp.Floater(8),
    "FloaterLayer": lambda: mp.FloaterLayer(4, 8),
    "Recurrent": lambda: mp.Recurrent(8),
}


class Applied(nn.Module):
    """A method on queries, or on token embeddings."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.method = METHODS[name]().double()

    def forward(self, q: Tensor) -> Tensor:
        layer = isinstance(self.method, mp.FloaterLayer)
        return self.method.turn(q, torch.arange(q.shape[2])) if layer else self.method.embed(q[:, 0])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tangents_of_weights_are_those_that_the_gradients_give(name: str, compiled: bool):
    torch._dynamo.reset()
    model, q = Applied(name), inputs(t=5)[0]
    weights = {key: each.detach() for key, each in model.named_parameters()}
    moved = {key: torch.randn_like(each) for key, each in weights.items()}

    def tangent(weights: dict[str, Tensor]) -> Tensor:
        return jvp(lambda weights: functional_call(model, weights, (q,)), (weights,), (moved,))[1]

    found = (torch.compile(tangent, backend="eager") if compiled else tangent)(weights)
    out, along = model(q), torch.randn_like(found)
    gradients = torch.autograd.grad(out, list(model.parameters()), along)
    want = sum(float((one * other).sum()) for one, other in zip(gradients, moved.values(), strict=True))
    assert abs(want) > 1e-3
    assert abs(float((found * along).sum()) - want) <= 1e-9 * abs(want)


@pytest.mark.parametrize("name", METHODS)
def test_autocast_leaves_every_step_in_the_dtype_of_the_weights(name: str):
    model, q = Applied(name).float(), inputs(t=5)[0].float()
    found: list[list[Tensor]] = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = model(q)
            found.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    assert all(map(torch.equal, *found))
