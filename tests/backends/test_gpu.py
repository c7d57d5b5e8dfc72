"""On a GPU every backend that takes a scheme agrees with the reference in float64, gradients included.

Skipped where there is none. FlexAttention is compiled here, and its gradient with it.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.backends import BACKENDS
from tests.cases import CASES
from tests.layers import DV, T, fresh, project, tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

Answers = tuple[Tensor, list[Tensor]]


def answers(scheme: mp.Scheme, backend: str, dtype: torch.dtype, options: dict[str, Tensor]) -> Answers:
    """Output and gradients of q, k, v and every weight, as float64 on the CPU."""
    scheme = copy.deepcopy(scheme).to("cuda", torch.float64 if dtype == torch.float64 else torch.float32)
    q, k, v = (each.detach().to("cuda", dtype).requires_grad_() for each in project(tokens()))
    leaves = [q, k, v, *(weight for weight in scheme.parameters() if weight.requires_grad)]
    out = mp.attend(q, k, v, scheme.attention, backend=backend, **{name: each.cuda() for name, each in options.items()})
    assert out.shape[-1] == DV
    grads = torch.autograd.grad(out.float().square().sum(), leaves, allow_unused=True)
    return out.detach().double().cpu(), [each.double().cpu() for each in grads if each is not None]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "reference"])
def test_backends_agree_on_the_gpu(name: str, backend: str):
    documents = torch.tensor([[0] * 5 + [1] * 6 + [-1] * 2, [-1] * 3 + [4] * 10])
    for options in ({}, {"documents": documents}, {"key_index": torch.stack([torch.arange(T), torch.arange(T) * 2])}):
        scheme = fresh(CASES[name])
        exact, exact_grads = answers(scheme, "reference", torch.float64, options)
        try:
            out, grads = answers(scheme, backend, torch.float32, options)
        except mp.CannotRun as refusal:
            if not options:
                pytest.skip(str(refusal))
            continue
        assert apart(out, exact) < 1e-5
        assert max(apart(ours, theirs) for ours, theirs in zip(grads, exact_grads, strict=True)) < 1e-4


@pytest.mark.parametrize("name", ["Rope", "Alibi", "Rerope", "T5Bias"])
def test_dropout_drops_the_same_weights_on_the_gpu(name: str):
    scheme = fresh(CASES[name]).float().cuda()
    q, k, v = (each.float().cuda() for each in project(tokens()))
    outs: list[Tensor] = []
    for backend in ("reference", "chunked", "flex"):
        torch.manual_seed(5)
        outs.append(mp.attend(q, k, v, scheme, dropout=0.3, backend=backend).detach().double().cpu())
    assert apart(outs[1], outs[0]) < 1e-5
    assert apart(outs[2], outs[0]) < 1e-5


def apart(ours: Tensor, exact: Tensor) -> float:
    """The largest error, as a share of the largest value."""
    return float((ours - exact).abs().max()) / max(1.0, float(exact.abs().max()))
