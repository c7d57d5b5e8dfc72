"""Blocks that a backward pass makes again: from the tensors of the forward pass, or not at all."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

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


@pytest.mark.parametrize("changed", ["keys", "position"])
def test_a_tensor_changed_in_place_before_the_backward_pass_is_refused_by_name(changed: str):
    own, (q, k, v), at = scheme(), inputs(t=12), torch.arange(12)
    q, k = q.requires_grad_(), k.requires_grad_() * 1
    out = mp.attend(q, k, v, own, backend="chunked", position=at, key_position=torch.arange(12))
    name, tensor = {
        "keys": ("k", k),
        "position": ("position", at),
    }[changed]
    with torch.no_grad():
        tensor.mul_(3)
    text = f"attend: {name} has been modified by an in-place operation since the forward pass"
    refused(RuntimeError, text, lambda: torch.autograd.grad(out.sum(), q))


CHANGES: dict[str, Callable[[mp.T5Bias, mp.Scheme], Any]] = {
    "other numbers": lambda part, own: setattr(part.table, "data", torch.zeros_like(part.table)),
    "numbers in place": lambda part, own: part.table.data.zero_(),
    "a step": lambda part, own: torch.no_grad()(part.table.mul_)(3),
    "loaded weights": lambda part, own: own.load_state_dict({"0.table": torch.zeros(8, 4)}),
    "another weight": lambda part, own: setattr(part, "table", nn.Parameter(torch.zeros(8, 4))),
    "another dtype": lambda part, own: own.half(),
    "an attribute": lambda part, own: setattr(part, "reach", 10),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_backward_pass_reads_the_scheme_of_its_forward_pass(change: str):
    found: list[list[Tensor]] = []
    for changed in (CHANGES[change], None):
        torch.manual_seed(0)
        part, (q, k, v) = mp.T5Bias(4, buckets=8, reach=6), inputs(t=12)
        nn.init.normal_(part.table)
        own, weight = mp.Scheme(part, mp.SoftCap(5.0), mp.causal).double(), part.table
        given = [each.requires_grad_() for each in (q, k, v)]
        out = mp.attend(*given, own, backend="chunked")
        if changed is not None:
            changed(part, own)
        assert part.reach == (10 if changed is not None and change == "an attribute" else 6)
        found.append(
            list(torch.autograd.grad(out.square().sum(), (*given, *([] if change == "another dtype" else [weight]))))
        )
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


class Holding:
    """Not a frozen class: its strength may change, and it cannot be pickled."""

    relative = additive = True

    def __init__(self) -> None:
        self.strength, self.lock = 1.0, threading.Lock()

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self.strength * (p - r).abs().to(score.dtype).sqrt() * score.tanh()


def test_a_class_of_a_user_is_read_as_it_was():
    found: list[Tensor] = []
    for strength in (1.0, 9.0):
        part, (q, k, v) = Holding(), inputs(t=12)
        out = mp.attend(q.requires_grad_(), k, v, mp.Scheme(part, mp.causal), backend="chunked")
        part.strength = strength
        found.extend(torch.autograd.grad(out.square().sum(), q))
        assert part.strength == strength
    assert_same(*found)


class Slotted:
    __slots__ = ("strength",)

    def __init__(self, strength: Tensor) -> None:
        self.strength = strength


class Pair(NamedTuple):
    strength: Tensor


class Row(list[Tensor]):
    pass


HOLDERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "an object": (lambda t: SimpleNamespace(inner=SimpleNamespace(t=t)), lambda held: held.inner.t),
    "slots": (Slotted, lambda held: held.strength),
    "a named tuple": (Pair, lambda held: held.strength),
    "a set": (lambda t: {t}, lambda held: next(iter(held))),
    "a list of its own class": (lambda t: Row([t]), lambda held: held[0]),
    "a dict of its own class": (lambda t: OrderedDict(t=t), lambda held: held["t"]),
}


@pytest.mark.parametrize("where", HOLDERS)
def test_what_a_class_of_a_user_holds_is_read_as_it_was(where: str):
    hold, strength_in = HOLDERS[where]

    class Held(Holding):
        def __init__(self, strength: Tensor) -> None:
            self.held, self.own, self.log = hold(strength), self, logging.getLogger("milepost")

        def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
            return score - strength_in(self.held) * (p - r).abs().to(score.dtype).sqrt() * score.tanh()

    found: list[Tensor] = []
    for factor in (1.0, 9.0):
        strength, (q, k, v) = torch.tensor(1.0), inputs(t=12)
        out = mp.attend(q.requires_grad_(), k, v, mp.Scheme(Held(strength), mp.causal), backend="chunked")
        strength.mul_(factor)
        found.extend(torch.autograd.grad(out.square().sum(), q))
    assert_same(*found)


def test_torch_func_differentiates_several_blocks():
    own, (q, k, v) = scheme(), inputs(t=12)
    ours = torch.func.grad(lambda q: mp.attend(q, k, v, own, backend="chunked").square().sum())(q)
    out = mp.attend(q.requires_grad_(), k, v, own, backend="reference")
    assert_same(ours, torch.autograd.grad(out.square().sum(), q)[0])


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
