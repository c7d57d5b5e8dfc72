"""Blocks of rows with the keys that they may see: nothing is lost by leaving the others out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, chunks, sinks, window
from milepost.backends import blocks
from milepost.call.resolve import resolve
from tests.agreement import small_blocks
from tests.oracles import assert_same, dots, inputs, plain

T = 26
VISIBLE: dict[str, tuple[Any, Any]] = {
    "window": (window(4), lambda i, j: 0 <= i - j < 4),
    "window and sinks": (causal & (window(4) | sinks(3)), lambda i, j: 0 <= i - j < 4 or (j < 3 and j <= i)),
    "chunks": (causal & chunks(5), lambda i, j: j <= i and i // 5 == j // 5),
    "chunks both ways": (chunks(3), lambda i, j: i // 3 == j // 3),
    "a window ahead": (window(3, ahead=2), lambda i, j: -2 <= i - j < 3),
    "a window that lags": (window(9) & ~window(4), lambda i, j: 4 <= i - j < 9),
    "the first keys alone": (causal & sinks(4), lambda i, j: j <= i and j < 4),
}


@pytest.fixture
def small() -> Iterator[None]:
    with small_blocks():
        yield


def cut(q: Tensor, k: Tensor, v: Tensor, scheme: mp.Scheme, options: Any) -> int:
    """How many blocks a call falls into."""
    made = blocks.blocks(resolve(q, k, v, scheme, options))
    return 0 if made is None else len(made)


def hidden_unless(q: Tensor, k: Tensor, sees: Any, first: int = 0, key_first: int = 0) -> Any:
    """Scaled products of the tokens that see each other, by their indices."""
    product = dots(q, k)
    return lambda b, h, i, j: product(b, h, i, j) if sees(i + first, j + key_first) else -math.inf


@pytest.mark.sample(18)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", VISIBLE)
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (T, {}),
        (9, {}),
        (9, {"index": range(10, 19), "key_index": range(2, 2 + T)}),
        (9, {"index": range(40, 49), "key_index": range(20, 20 + T)}),
        (9, {"index": range(9), "key_index": range(3, 3 + T)}),
    ],
    ids=["square", "the last rows", "rows in the middle", "rows past the end", "rows before the first key"],
)
def test_blocks_are_the_formula_with_its_gradient(name: str, rows: int, options: dict[str, Any]):
    part, sees = VISIBLE[name]
    q, k, v = inputs(b=1, h=2, g=1, t=rows, s=T, d=4)
    q, k, v = (each.requires_grad_() for each in (q, k, v))
    scheme = mp.Scheme(part)
    past = name == "the first keys alone" and options.get("key_index", [0])[0] >= 4
    assert cut(q, k, v, scheme, options) >= (0 if past else 2)
    out = mp.attend(q, k, v, scheme, backend="sdpa", **options)
    first, key_first = options["index"][0] if options else T - rows, options["key_index"][0] if options else 0
    want = plain(q, k, v, hidden_unless(q, k, sees, first, key_first))
    assert_same(out, want)
    ours = torch.autograd.grad(out.square().sum(), (q, k, v))
    theirs = [None] * 3 if past else torch.autograd.grad(want.square().sum(), (q, k, v), allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        assert one.isfinite().all()
        assert_same(one, torch.zeros_like(one) if other is None else other, within=1e-11)


DOCUMENTS: dict[str, list[list[int]]] = {
    "sorted": [[0] * 7 + [1] * 5 + [2] * 8 + [3] * 6],
    "unsorted": [[3] * 7 + [0] * 5 + [8] * 8 + [1] * 6],
    "padded": [[-1] * 3 + [0] * 9 + [-1] * 5 + [1] * 6 + [-1] * 3],
    "rows that differ": [[0] * 7 + [1] * 5 + [2] * 8 + [3] * 6, [0] * 6 + [1] * 5 + [-1] * 5 + [2] * 10],
    "padding for a whole block": [[-1] * 10 + [0] * 8 + [1] * 8],
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", DOCUMENTS)
def test_packed_documents_are_the_formula(name: str):
    names = DOCUMENTS[name]
    q, k, v = inputs(b=len(names), h=2, g=1, t=T, d=4)
    documents = torch.tensor(names)
    assert cut(q, k, v, mp.Scheme(causal), {"documents": documents}) >= 2
    out = mp.attend(q, k, v, mp.Scheme(causal), documents=documents, backend="sdpa")
    product = dots(q, k)

    def score(b: int, h: int, i: int, j: int) -> Any:
        return product(b, h, i, j) if j <= i and names[b][i] == names[b][j] >= 0 else -math.inf

    assert_same(out, plain(q, k, v, score))
    assert (out[documents[:, None, :].expand(-1, 2, -1) < 0] == 0).all()


@pytest.mark.parametrize("part", [window(40), causal & (window(40) | sinks(3)), chunks(48), causal & sinks(4)])
def test_blocks_of_their_usual_size(part: Any):
    q, k, v = inputs(b=1, h=2, g=1, t=300)
    scheme = mp.Scheme(mp.Rope(8), part)
    assert cut(q, k, v, scheme, {}) >= 2
    want = mp.attend(q, k, v, scheme, backend="reference")
    assert_same(mp.attend(q, k, v, scheme, backend="sdpa", dropout=0.0), want)
    assert_same(mp.attend(q, k, v, scheme), want)


def test_packed_documents_in_blocks_of_their_usual_size():
    q, k, v = inputs(b=1, h=2, g=1, t=1200)
    documents = torch.arange(12).repeat_interleave(100)
    scheme = mp.Scheme(mp.Rope(8), causal)
    assert cut(q, k, v, scheme, {"documents": documents}) >= 2
    want = mp.attend(q, k, v, scheme, documents=documents, backend="reference")
    assert_same(mp.attend(q, k, v, scheme, documents=documents), want)


def test_blocks_remembered_in_inference_mode_serve_a_gradient_later():
    q, k, v = inputs(b=1, h=2, g=1, t=210)
    scheme = mp.Scheme(mp.Rope(8), window(20))
    with torch.inference_mode():
        mp.attend(q, k, v, scheme, backend="sdpa")
    q.requires_grad_()
    out = mp.attend(q, k, v, scheme, backend="sdpa")
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert gradient.isfinite().all()


def test_every_query_may_be_missing():
    q, k, v = inputs(t=210)
    assert mp.attend(q[:, :, :0], k, v, mp.Scheme(window(20))).shape == (2, 4, 0, 8)


@pytest.mark.slow
def test_a_window_traces_whole_for_any_length():
    torch._dynamo.reset()
    scheme = mp.Scheme(mp.Rope(8), window(20))
    compiled = torch.compile(lambda q, k, v: mp.attend(q, k, v, scheme), backend="eager", fullgraph=True, dynamic=True)
    for t in (200, 211):
        q, k, v = inputs(b=1, t=t)
        assert_same(compiled(q, k, v), mp.attend(q, k, v, scheme, backend="reference"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Fire", "Nope"])
def test_gradients_of_many_blocks_of_rows_trace_whole(name: str, small: None):
    torch._dynamo.reset()
    torch.manual_seed(0)
    part: Any = mp.Nope() if name == "Nope" else getattr(mp, name)(4)
    scheme, (q, k, v) = mp.Scheme(part, causal), inputs(t=12)
    compiled = torch.compile(lambda q: mp.attend(q, k, v, scheme, backend="chunked"), backend="eager", fullgraph=True)
    found: list[Tensor] = []
    for attend in (compiled, lambda q: mp.attend(q, k, v, scheme, backend="reference")):
        given = q.clone().requires_grad_()
        attend(given).square().sum().backward()
        assert given.grad is not None
        found.append(given.grad)
    assert_same(*found)
