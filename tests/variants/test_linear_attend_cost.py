"""Linear attention: gradients, memory and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import milepost as mp
from milepost import LearnedRope, Rope, Scheme, causal, linear_attend
from tests.oracles import assert_same, inputs
from tests.variants.test_linear_attend import ROPE, dense, future

# Gradients


@pytest.mark.parametrize(("t", "s"), [(9, 9), (5, 9), (150, 150), (130, 300)])
@pytest.mark.parametrize("looking_back", [True, False])
def test_gradients_are_those_of_the_dense_formula(t, s, looking_back):
    ours = [x.requires_grad_() for x in inputs(b=1, t=t, s=s, dv=3)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    weight = torch.randn(1, 4, t, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    scheme = ROPE if looking_back else Scheme(Rope(8))
    (linear_attend(*ours, scheme) * weight).sum().backward()
    (dense(*theirs, future(t, s) if looking_back else None) * weight).sum().backward()
    for one, two in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert_same(one.grad, two.grad)


def test_rows_that_see_nothing_give_no_gradient():
    q, k, v = (x.requires_grad_() for x in inputs(b=1, t=6))
    documents = torch.tensor([-1, -1, 0, 0, 0, 0])
    linear_attend(q, k, v, ROPE, documents=documents).square().sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert torch.equal(x.grad[:, :, :2], torch.zeros_like(x.grad[:, :, :2]))
        assert bool(x.grad.isfinite().all())
        assert float(x.grad[:, :, 2:].abs().max()) > 0


def test_learned_frequencies_are_trained_through_it():
    q, k, v = inputs(b=1, h=2, g=1, t=5, d=4)
    method = LearnedRope(4, theta=20.0).double()

    def ask(offset: Tensor) -> Tensor:
        return torch.func.functional_call(Wrapped(method), {"method.offset": offset}, (q, k, v))

    assert torch.autograd.gradcheck(ask, (torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True),))


class Wrapped(torch.nn.Module):
    """A layer around a method, so that its weight can be given from outside."""

    def __init__(self, method: LearnedRope) -> None:
        super().__init__()
        self.method = method

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attend(q, k, v, Scheme(self.method, causal))


# Memory


class Largest(TorchDispatchMode):
    """Note the number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return out


def test_the_largest_tensor_is_noted():
    with Largest() as largest:
        a = torch.ones(40, 1) @ torch.ones(1, 50)
        a.sum()
    assert largest.elements == 2000


@pytest.mark.parametrize("scheme", [ROPE, Scheme(Rope(8))], ids=repr)
@pytest.mark.parametrize("gradient", [False, True])
def test_no_tensor_grows_with_the_square_of_the_length(scheme, gradient):
    t = 4096
    q, k, v = (x.requires_grad_(gradient) for x in inputs(b=1, h=1, g=1, t=t))
    with Largest() as largest:
        out = linear_attend(q, k, v, scheme)
        if gradient:
            out.sum().backward()
    # Nothing is larger than the queries and their halves side by side.
    assert largest.elements <= 2 * t * 8


# What cannot be


@pytest.mark.parametrize(
    ("part", "verb"),
    [
        (mp.Alibi(4), "bend"),
        (mp.LogN(16), "sharpen"),
        (mp.Rerope(4), "place"),
        (mp.Shaw(8), "relate"),
        (mp.Scale(1.0), "scale"),
        (mp.Cope(8, 4), "bend_rows"),
        (mp.SinkLogit(4), "rest"),
        (mp.SoftCap(5.0), "bend"),
    ],
    ids=repr,
)
def test_what_acts_on_a_score_is_refused_by_name(part, verb):
    q, k, v = inputs(t=4)
    text = rf"linear_attend: {type(part).__name__}\(.*\) answers {verb}, which acts on a score or its softmax"
    with pytest.raises(ValueError, match=text):
        linear_attend(q, k, v, Scheme(part, causal))


def test_more_queries_than_keys_need_indices():
    q, k, v = inputs(t=5, s=3)
    with pytest.raises(ValueError, match="5 queries but 3 keys"):
        linear_attend(q, k, v, ROPE)


def test_a_method_is_no_scheme():
    q, k, v = inputs(t=4)
    with pytest.raises(TypeError, match=r"the fourth argument is a Scheme, given Rope; wrap it: Scheme\(…\)"):
        linear_attend(q, k, v, Rope(8))  # pyright: ignore


def test_a_width_that_the_scheme_does_not_turn_is_refused():
    q, k, v = inputs(t=4, d=12)
    with pytest.raises(ValueError, match=r"Rope\(head_dim=8\): given a tensor of 12 channels"):
        linear_attend(q, k, v, ROPE)


@pytest.mark.parametrize("scheme", [ROPE, Scheme(Rope(8))], ids=repr)
def test_no_queries_give_nothing(scheme):
    q, k, v = inputs(t=4, dv=5)
    assert linear_attend(q[:, :, :0], k, v, scheme).shape == (2, 4, 0, 5)
    assert linear_attend(q[:, :, :0], k[:, :, :0], v[:, :, :0], scheme).shape == (2, 4, 0, 5)
