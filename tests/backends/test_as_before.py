"""Blocks that a backward pass makes again: from the tensors of the forward pass, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import milepost as mp
from tests.agreement import small_blocks
from tests.oracles import assert_same, inputs
from tests.refusals import refused


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_blocks():
        yield


def scheme() -> mp.Scheme:
    return mp.Scheme(mp.Kerple(4), mp.SinkLogit(4), mp.causal).double()


@pytest.mark.parametrize("changed", ["weights", "keys", "position"])
def test_a_tensor_changed_in_place_before_the_backward_pass_is_refused_by_name(changed: str):
    own, (q, k, v), at = scheme(), inputs(t=12), torch.arange(12)
    q, k = q.requires_grad_(), k.requires_grad_() * 1
    out = mp.attend(q, k, v, own, backend="chunked", position=at, key_position=torch.arange(12))
    name, tensor = {
        "weights": ("the scheme's 1.logit", own.get_parameter("1.logit")),
        "keys": ("k", k),
        "position": ("position", at),
    }[changed]
    with torch.no_grad():
        tensor.mul_(3)
    text = f"attend: {name} has been modified by an in-place operation since the forward pass"
    refused(RuntimeError, text, lambda: torch.autograd.grad(out.sum(), q))


def test_a_step_after_the_backward_pass_is_a_step_as_ever():
    own, (q, k, v) = scheme(), inputs(t=12)
    for _ in range(2):
        mp.attend(q, k, v, own, backend="chunked").square().sum().backward()
        with torch.no_grad():
            for weight in own.parameters():
                assert weight.grad is not None
                weight.sub_(weight.grad)


def test_what_inference_mode_made_has_no_count_of_changes():
    q, k, v = inputs(t=12)
    with torch.inference_mode():
        at = torch.arange(12)
    out = mp.attend(q.requires_grad_(), k, v, scheme(), backend="chunked", position=at, key_position=at)
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


class Attends(nn.Module):
    backend = ""

    def __init__(self) -> None:
        super().__init__()
        self.scheme = scheme()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return mp.attend(q, k, v, self.scheme, backend=self.backend)


def test_weights_of_a_functional_call_are_those_of_its_backward_pass():
    found: list[list[Tensor]] = []
    model, (q, k, v) = Attends(), inputs(t=12)
    for model.backend in ("chunked", "reference"):
        weights = {name: (each.detach() * 3 + 1).requires_grad_() for name, each in model.named_parameters()}
        before = dict(model.named_parameters())
        out = functional_call(model, weights, (q.requires_grad_(), k, v))
        once = torch.autograd.grad(out.square().sum(), (q, *weights.values()), create_graph=True)
        twice = torch.autograd.grad(torch.stack([each.square().sum() for each in once]).sum(), (q, *weights.values()))
        found.append([*once, *twice])
        assert all(each is before[name] for name, each in model.named_parameters())
    for one, other in zip(*found, strict=True):
        assert_same(one, other, within=1e-10)
