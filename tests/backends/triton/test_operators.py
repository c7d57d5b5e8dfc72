"""The kernels as operators: traced whole, with fakes that tell the truth."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.dense import DEVICE, drawn

pytest.importorskip("triton")

from milepost.backends.triton.attention.flash import UNLIMITED, flash
from milepost.backends.triton.decoding.decode import decode
from milepost.backends.triton.rotary.rotate import rotate_qk

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def test_torch_checks_the_attention_operators():
    for turned in (False, True) if DEVICE == "cuda" else (True,):
        q, k, v = drawn(1, 2, 1, 20, 20, 16, 16, turned)
        facets = (None, None, torch.randn(2, 5, device=DEVICE), None, 0.25, 0, UNLIMITED, 0, 0, 0, 0.0, False)
        torch.library.opcheck(torch.ops.milepost.flash.default, (q, k, v, *facets), test_utils=CHECKS)
        out, lse = torch.ops.milepost.flash(q, k, v, *facets)
        inputs = (torch.randn_like(out), None, q, k, v, out, lse, False, True, *facets)
        torch.library.opcheck(torch.ops.milepost.flash_backward.default, inputs, test_utils=CHECKS)


def test_torch_checks_decoding():
    q, k, v = drawn(1, 2, 1, 1, 20, 16, 16)
    facets = (*(None,) * 5, False, None, None, None, None, 0.25, 19, UNLIMITED, 0, 0, 0, 0.0, False)
    torch.library.opcheck(torch.ops.milepost.decode.default, (q, k, v, *facets), test_utils=CHECKS)


def test_torch_checks_the_rotation():
    q, k, _ = drawn(1, 2, 1, 20, 20, 16, 16)
    cos, sin = torch.rand(1, 20, 8, device=DEVICE), torch.rand(1, 20, 8, device=DEVICE)
    torch.library.opcheck(
        torch.ops.milepost.rotate_qk.default, (q, k, cos, sin, None, None, None, False, False), test_utils=CHECKS
    )


def test_it_traces_whole_with_its_gradient():
    q, k, v = (x.requires_grad_() for x in drawn(1, 2, 1, 20, 20, 16, 16))
    table = torch.randn(2, 5, device=DEVICE, requires_grad=True)
    angle = torch.rand(1, 20, 8, device=DEVICE)
    cos, sin = angle.cos(), angle.sin()

    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = rotate_qk(q, k, cos, sin)
        return flash(q, k, v, ahead=0, table=table)[0]

    whole = torch.compile(both, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    grad = torch.randn(1, 2, 20, 16, device=DEVICE)
    eager = torch.autograd.grad(both(q, k, v), (q, k, v, table), grad)
    traced = torch.autograd.grad(whole(q, k, v), (q, k, v, table), grad)
    torch.testing.assert_close(whole(q, k, v), both(q, k, v))
    for ours, theirs in zip(traced, eager, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(DEVICE != "cuda", reason="CUDA graphs need a GPU")
def test_a_cuda_graph_records_it():
    q, k, v = (x.bfloat16() for x in drawn(1, 2, 1, 256, 256, 64, 64))
    table = torch.randn(2, 50, device=DEVICE)
    eager = flash(q, k, v, ahead=0, table=table)[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = flash(q, k, v, ahead=0, table=table)[0]
    recorded.zero_()
    graph.replay()
    assert torch.equal(recorded, eager)


@pytest.mark.skipif(DEVICE != "cuda", reason="CUDA graphs need a GPU")
def test_one_graph_decodes_every_length():
    q, k, v = (x.bfloat16() for x in drawn(2, 4, 2, 1, 700, 64, 64))
    lengths = torch.tensor([10, 700], device=DEVICE, dtype=torch.int32)
    decode(q, k, v, lengths=lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = decode(q, k, v, lengths=lengths)[0]
    for now in ([10, 700], [11, 3], [512, 65]):
        lengths.copy_(torch.tensor(now))
        graph.replay()
        torch.testing.assert_close(recorded, decode(q, k, v, lengths=lengths)[0])
