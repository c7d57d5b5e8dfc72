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

pytestmark = pytest.mark.gpu

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


KERNEL_SCHEMES = {
    "causal": lambda: mp.Scheme(mp.causal),
    "everything": lambda: mp.Scheme(mp.Rope(64)),
    "window with sinks": lambda: mp.Scheme(mp.Rope(64), mp.causal & (mp.window(100) | mp.sinks(4))),
    "slopes": lambda: mp.Scheme(mp.Alibi(8), mp.causal),
    "slopes of an encoder": lambda: mp.Scheme(mp.LearnedAlibi(8)),
    "slopes with a step": lambda: mp.Scheme(mp.OffsetAlibi(8)),
    "a table with an end": lambda: mp.Scheme(mp.T5Bias(8), mp.causal),
    "a table of both sides": lambda: mp.Scheme(mp.T5Bias(8, bidirectional=True)),
    "a table without an end": lambda: mp.Scheme(mp.Kerple(8, form="power"), mp.causal),
    "a fixed table": lambda: mp.Scheme(mp.Sandwich(8, 64), mp.causal),
    "two biases and a cap": lambda: mp.Scheme(mp.T5Bias(8), mp.Alibi(8), mp.SoftCap(20.0), mp.causal),
    "a cap before a bias": lambda: mp.Scheme(mp.SoftCap(20.0), mp.T5Bias(8), mp.causal),
    "sharpened, with rest": lambda: mp.Scheme(mp.Rope(64), mp.LogN(50), mp.SinkLogit(8), mp.causal),
}


@pytest.mark.parametrize("rows", [300, 77])
@pytest.mark.parametrize("name", KERNEL_SCHEMES)
def test_our_kernels_err_no_more_than_torch_does(name: str, rows: int):
    """In bfloat16, grouped queries, fewer queries than keys: at most twice the error of plain torch in bfloat16."""
    scheme = fresh(KERNEL_SCHEMES[name])
    made = torch.Generator().manual_seed(3)
    tensors = [torch.randn(2, n, t, 64, generator=made).bfloat16() for n, t in ((8, rows), (2, 300), (2, 300))]

    def run(backend: str, dtype: torch.dtype) -> list[Tensor]:
        own = copy.deepcopy(scheme).to("cuda", torch.float64 if dtype == torch.float64 else torch.float32)
        leaves = [each.to("cuda", dtype).requires_grad_() for each in tensors]
        out, lse = mp.attend(*leaves, own, backend=backend, return_lse=True)
        total = out.float().square().sum() + lse.float().sum() / 10
        grads = torch.autograd.grad(total, [*leaves, *own.parameters()])
        return [each.detach().double().cpu() for each in (out, lse, *grads)]

    exact, plain, ours = (
        run("reference", torch.float64),
        run("reference", torch.bfloat16),
        run("triton", torch.bfloat16),
    )
    for number, (want, torchs, got) in enumerate(zip(exact, plain, ours, strict=True)):
        assert got.isfinite().all()
        allowed = 2 * float((torchs - want).norm()) + 4e-3 * float(want.norm())
        assert float((got - want).norm()) <= allowed, f"answer {number}"


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
