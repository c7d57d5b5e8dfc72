"""The rotation alone, beside peers: who writes over what he is given is compared like anybody else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost import rotate
from milepost.bench.harness.settings import Settings
from milepost.bench.suites import rotary


class _InPlace(torch.autograd.Function):
    """Turns queries, keys and their gradients where they lie, as Liger does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.mark_dirty(q, k)
        ctx.save_for_backward(cos, sin)
        return q.copy_(rotate(q, cos, sin)), k.copy_(rotate(k, cos, sin))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        cos, sin = ctx.saved_tensors
        return *(each.copy_(rotate(each, cos, -sin)) for each in grads), None, None


def test_a_turn_in_place_agrees_with_float64():
    given = rotary._Given(Settings(device="cpu", dtype=torch.float32), (1, 2, 1, 5, 8))
    before = [each.clone() for each in given.grads]
    found = given.agreement(lambda q, k: _InPlace.apply(q, k, *given.waves))  # pyright: ignore
    assert found.agrees
    assert all(torch.equal(one, other) for one, other in zip(before, given.grads, strict=True))


def test_a_turn_the_wrong_way_does_not():
    given = rotary._Given(Settings(device="cpu", dtype=torch.float32), (1, 2, 1, 5, 8))
    cos, sin = given.waves
    assert not given.agreement(lambda q, k: (rotate(q, cos, -sin), rotate(k, cos, -sin))).agrees
