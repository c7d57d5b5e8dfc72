"""`attend(backend="triton")` under torch.compile: traced whole, with gradients, the same as without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from tests.backends.triton.dense import DEVICE, drawn

pytest.importorskip("triton")

BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
D = 16
SCHEMES: dict[str, Callable[[], mp.Scheme]] = {
    "Rope": lambda: mp.Scheme(mp.Rope(D), causal),
    "Alibi": lambda: mp.Scheme(mp.Alibi(2), causal),
    "T5Bias": lambda: mp.Scheme(mp.T5Bias(2, buckets=8, reach=20), causal),
    "Rerope": lambda: mp.Scheme(mp.Rope(D), mp.Rerope(7), causal),
    "Deberta": lambda: mp.Scheme(mp.Deberta(12, 2, D, reach=20), causal),
}


@pytest.fixture(autouse=True)
def _counted_anew():
    """Graphs of one test are not counted against the next."""
    torch._dynamo.reset()


def inputs(t: int, s: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(each.requires_grad_() for each in drawn(1, 2, 1, t, s, D, D))


def graphs_of(scheme: mp.Scheme) -> tuple[Callable[..., Tensor], list[object]]:
    """attend, compiled whole, and a list that gets an entry for every graph."""
    from torch._dynamo.backends.registry import lookup_backend

    made: list[object] = []

    def counting(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., object]:
        made.append(graph)
        return lookup_backend(BACKEND)(graph, examples)

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
        return mp.attend(q, k, v, scheme, backend="triton", documents=documents)

    return torch.compile(attend, fullgraph=True, backend=counting), made


def agree(
    scheme: mp.Scheme, compiled: Callable[..., Tensor], qkv: tuple[Tensor, ...], documents: Tensor | None = None
) -> None:
    q, k, v = qkv
    leaves = [q, k, v, *scheme.parameters()]
    eager = mp.attend(q, k, v, scheme, backend="triton", documents=documents)
    traced = compiled(q, k, v, documents)
    torch.testing.assert_close(traced, eager, rtol=0, atol=2e-5)
    if not eager.requires_grad:
        return
    weights = torch.linspace(-1, 1, eager.numel(), device=DEVICE).view_as(eager)
    for ours, theirs in zip(
        torch.autograd.grad(traced, leaves, weights), torch.autograd.grad(eager, leaves, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * max(1.0, float(theirs.abs().max())))


# What Inductor says of TF32 has nothing to do with us.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("name", SCHEMES if DEVICE == "cuda" else ["T5Bias"])
def test_it_traces_whole_and_two_lengths_cost_two_graphs(name: str):
    scheme = SCHEMES[name]().to(DEVICE)
    compiled, graphs = graphs_of(scheme)
    for t in (24, 37):
        agree(scheme, compiled, inputs(t, t))
    assert len(graphs) <= 2


def test_documents_trace_whole():
    scheme = mp.Scheme(mp.Rope(D), mp.Alibi(2), causal)
    compiled, graphs = graphs_of(scheme)
    with torch.no_grad():
        for t in (20, 26):
            agree(scheme, compiled, inputs(t, t))
    # Now the lengths of the queries are no constants to the tracer, and that of the documents is one.
    documents = torch.tensor([[0] * 9 + [1] * 11], device=DEVICE)
    agree(scheme, compiled, inputs(20, 20), documents)
    assert len(graphs) <= 3


def test_decoding_traces_whole():
    scheme = SCHEMES["Rope"]()
    compiled, _ = graphs_of(scheme)
    q, k, v = (each.detach() for each in inputs(2, 24))
    agree(scheme, compiled, (q, k, v))
