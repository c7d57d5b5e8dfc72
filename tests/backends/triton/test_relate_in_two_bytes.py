"""Vectors looked up by distance where queries have two bytes a number: what is rounded, how much, and what is not."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost import causal, everything
from milepost.bench.harness.plain_torch import plain_attention
from tests.backends.triton.dense import DEVICE, GPU

pytest.importorskip("triton")

H, D, T, MODEL, REACH = 2, 16, 40, 48, 14
# Triton's interpreter does not know bfloat16.
SHORT = torch.bfloat16 if GPU else torch.float16
Make = Callable[[], object]
PARTS: dict[str, Make] = {
    "keys": lambda: mp.Shaw(D, reach=REACH, values=False),
    "keys and queries": lambda: mp.Deberta(MODEL, H, D, reach=REACH, bias="both"),
    "biased queries": lambda: mp.TransformerXL(MODEL, H, D, reach=REACH),
}


def made(make: Make, *parts: object) -> mp.Scheme:
    """A scheme whose weights are not where they begin, and are numbers that two bytes do not hold."""
    torch.manual_seed(4)
    scheme = mp.Scheme(make(), *parts).to(DEVICE)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return scheme


def inputs(b: int = 2, g: int = H, seed: int = 3) -> list[Tensor]:
    """q, k and v and a gradient."""
    torch.manual_seed(seed)
    return [torch.randn(b, heads, T, D, device=DEVICE).to(SHORT) for heads in (H, g, g, H)]


def answers(
    scheme: mp.Scheme, given: list[Tensor], dtype: torch.dtype, weights: torch.dtype, by: Callable[..., Tensor]
) -> list[Tensor]:
    """The output, and the gradients of q, k, v and of all that is learned."""
    scheme = copy.deepcopy(scheme).to(weights)
    *qkv, grad = (each.to(dtype) for each in given)
    leaves = [each.requires_grad_() for each in qkv]
    out = by(*leaves, scheme)
    return [out, *torch.autograd.grad(out, (*leaves, *scheme.parameters()), grad)]


def by_kernels(*given: Any) -> Tensor:
    return mp.attend(*given, backend="triton")


def exactly(*given: Any) -> Tensor:
    return mp.attend(*given, backend="reference")


def error(found: Tensor, exact: Tensor) -> float:
    """The root mean square of the differences."""
    return float((found.detach().double() - exact.detach()).square().mean().sqrt())


def errors(found: list[list[Tensor]], exact: list[list[Tensor]]) -> list[float]:
    """The same of each answer, over several calls."""
    calls = [[error(*pair) for pair in zip(*call, strict=True)] for call in zip(found, exact, strict=True)]
    return [math.hypot(*each) for each in zip(*calls, strict=True)]


@pytest.mark.parametrize(
    ("name", "seen"), [*((name, causal) for name in PARTS), ("keys and queries", everything)], ids=str
)
def test_it_errs_at_most_twice_as_much_as_a_model_in_that_dtype(name: str, seen: object):
    # The error of a handful of numbers, as two heads' biases are, is luck: there are more of them in several calls.
    scheme, calls = made(PARTS[name], seen), [inputs(seed=seed) for seed in range(3)]
    ours = [answers(scheme, given, SHORT, torch.float32, by_kernels) for given in calls]
    exact = [answers(scheme, given, torch.float64, torch.float64, exactly) for given in calls]
    for weights in (SHORT, torch.float32):
        plain = [answers(scheme, given, SHORT, weights, plain_attention) for given in calls]
        for mine, torchs in zip(errors(ours, exact), errors(plain, exact), strict=True):
            assert mine <= 2 * torchs
    assert {each.dtype for each in ours[0][:4]} == {SHORT}
    assert {each.dtype for each in ours[0][4:]} == {torch.float32}


@pytest.mark.parametrize("name", PARTS)
def test_gradients_of_weights_are_off_by_a_few_roundings(name: str):
    # Plain torch sums them pair by pair in two bytes, which says little.
    scheme, given = made(PARTS[name], causal), inputs()
    ours = answers(scheme, given, SHORT, torch.float32, by_kernels)
    exact = answers(scheme, given, torch.float64, torch.float64, exactly)
    for (weight, _), mine, true in zip(scheme.named_parameters(), ours[4:], exact[4:], strict=True):
        # A bias of keys adds one number to a whole row of scores: its gradient is 0, and a sum of what is not.
        size = 1.0 if weight.endswith("to_keys.bias") else float(true.square().mean().sqrt())
        assert error(mine, true) <= 4 * torch.finfo(SHORT).eps * size


def multiplied(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor) -> set[torch.dtype]:
    """The dtypes that a scheme's layers answered in."""
    found: set[torch.dtype] = set()
    layers = [each for each in scheme.modules() if isinstance(each, nn.Linear)]
    hooks = [each.register_forward_hook(lambda _, __, out: found.add(out.dtype)) for each in layers]
    by_kernels(q, k, v, scheme)
    for each in hooks:
        each.remove()
    return found


def test_tables_are_multiplied_in_the_dtype_of_queries_where_that_is_short():
    scheme, (q, k, v, _) = made(PARTS["keys and queries"], causal), inputs()
    assert multiplied(scheme, q, k, v) == {SHORT}
    assert multiplied(scheme, q.float(), k.float(), v.float()) == {torch.float32}


def test_weights_that_changed_are_read_anew():
    # Inside another autocast, which keeps what it cast until it ends.
    scheme, (q, k, v, _) = made(PARTS["keys and queries"], causal), inputs()
    with torch.autocast(DEVICE, SHORT):
        by_kernels(q, k, v, scheme)
        with torch.no_grad():
            for weight in scheme.parameters():
                weight.mul_(-1.5)
        again = by_kernels(q, k, v, scheme)
    assert torch.equal(again, by_kernels(q, k, v, scheme))


def test_keys_that_many_queries_share_are_the_same_repeated():
    scheme, given = made(PARTS["keys and queries"], causal), inputs(g=1)
    q, k, v, _ = given
    repeated = (each.repeat_interleave(H, 1) for each in (k, v))
    # On a GPU the repeated keys are far ones of torch's own kernel.
    torch.testing.assert_close(
        by_kernels(q, k, v, scheme), by_kernels(q, *repeated, scheme), rtol=0, atol=1e-2 if GPU else 0
    )


# What Inductor says of TF32 has nothing to do with us.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_it_traces_whole_with_its_gradient():
    scheme, given = made(PARTS["keys and queries"], causal), inputs()
    traced = torch.compile(by_kernels, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    mine, theirs = (answers(scheme, given, SHORT, torch.float32, each) for each in (traced, by_kernels))
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        assert error(one, other.double()) <= 4 * torch.finfo(SHORT).eps * max(1.0, float(other.detach().abs().max()))
