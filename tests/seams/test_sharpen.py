"""`sharpen` gives a factor for each query, and may give one for each head as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost import Scheme, attend, causal
from tests.agreement import small_blocks
from tests.laws import graphs_over
from tests.oracles import assert_same, inputs, plain

B, H, T = 2, 4, 9
BACKENDS = [None, "reference", "chunked", "sdpa", "flex", "diagonals"]


class Own:
    """A factor of any shape."""

    relative = True

    def __init__(self, factor: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.factor = factor

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        return self.factor(index.double(), length)


class HeadLogN(mp.Learner):
    """Scalable-Softmax (Nakanishi, 2025): s_h · ln n, with s_h learned for each head."""

    relative = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.by_head = nn.Parameter(torch.linspace(0.3, 0.9, heads))

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        return self.by_head[:, None] * torch.log(index + 2.0)[:, None]


HEADS, ROWS = torch.linspace(0.5, 2, H).double(), torch.tensor([0.7, 1.3]).double()
SHAPES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[int, int, int], float]]] = {
    "one for all": (lambda index, length: torch.tensor(1.5), lambda b, h, i: 1.5),
    "[t]": (lambda index, length: 1 + index[0] / 4, lambda b, h, i: 1 + i / 4),
    "[1 t]": (lambda index, length: 1 + index / 4, lambda b, h, i: 1 + i / 4),
    "[b t]": (lambda index, length: ROWS[:, None] * (1 + index / 4), lambda b, h, i: float(ROWS[b]) * (1 + i / 4)),
    "[1 h 1]": (lambda index, length: HEADS[None, :, None], lambda b, h, i: float(HEADS[h])),
    "[1 h t]": (lambda index, length: HEADS[:, None] * (1 + index)[:, None], lambda b, h, i: float(HEADS[h]) * (1 + i)),
    "[b h t]": (
        lambda index, length: ROWS[:, None, None] * HEADS[:, None] * (1 + index)[:, None],
        lambda b, h, i: float(ROWS[b]) * float(HEADS[h]) * (1 + i),
    ),
}


def formula(q: Tensor, k: Tensor, v: Tensor, factor: Callable[[int, int, int], float], first: int = 0) -> Tensor:
    def score(b: int, h: int, i: int, j: int) -> Any:
        return factor(b, h, first + i) * (q[b, h, i] @ k[b, h // 2, j]) / math.sqrt(8) if j <= first + i else -math.inf

    return plain(q, k, v, score)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_factor_of_every_shape_is_the_formula(shape: str, backend: str | None):
    make, factor = SHAPES[shape]
    q, k, v = inputs(b=B, h=H, t=T, dv=5)
    scheme = Scheme(Own(make), causal)
    with small_blocks(), torch.no_grad():
        assert_same(attend(q, k, v, scheme, backend=backend), formula(q, k, v, factor))
        last = attend(q[:, :, -3:], k, v, scheme, backend=backend)
    assert_same(last, formula(q[:, :, -3:], k, v, factor, T - 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "parts",
    [(), (mp.LogN(3),), (mp.Rope(8), mp.Rerope(3)), (mp.Shaw(8, reach=3, values=False),)],
    ids=lambda each: str(len(each)),
)
def test_a_learned_factor_of_each_head_agrees_with_the_specification(parts: tuple[Any, ...], backend: str | None):
    scheme = Scheme(HeadLogN(H), *parts, causal).double()
    given = [each.requires_grad_() for each in inputs(b=B, h=H, t=T)]
    leaves = [*given, *scheme.parameters()]

    def answers(name: str | None) -> list[Tensor]:
        out = attend(*given, scheme, backend=name)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    try:
        with small_blocks():
            ours = answers(backend)
    except mp.CannotRun as refusal:
        assert backend is not None
        assert f'backend "{backend}" cannot run this scheme' in str(refusal)
        return
    for one, other in zip(ours, answers("reference"), strict=True):
        assert_same(one, other, within=1e-11)


def test_far_and_near_keys_joined_by_torch_are_sharpened_by_head():
    q, k, v = inputs(b=1, h=2, g=1, t=600)
    place = Scheme(
        mp.Rope(8), mp.Rerope(300), Own(lambda index, length: HEADS[None, :2, None] * (1 + index / 99)[:, None]), causal
    )
    assert_same(attend(q, k, v, place, backend="chunked"), attend(q, k, v, place, backend="reference"), within=1e-11)


def test_one_graph_serves_every_length():
    assert graphs_over(Scheme(HeadLogN(4), causal).double(), range(8, 20, 3), any_length=True) == 1


def test_the_kernels_refuse_a_factor_of_each_head():
    found = mp.explain(*(torch.zeros(1, H, 3, 8) for _ in range(3)), Scheme(HeadLogN(H), causal))
    assert "sharpens each head by a factor of its own" in found.reasons["triton"]


@pytest.mark.parametrize("shape", [(3,), (T + 1,), (B, H), (3, H, T), (1, H + 1, T), (1, H, 2), (1, 1, 1, 1)])
def test_another_shape_is_refused_by_name(shape: tuple[int, ...]):
    q, k, v = inputs(b=B, h=H, t=T)
    sizes = rf"\[{T}\], \[{B}\|1, {T}\|1\] or \[{B}\|1, {H}\|1, {T}\|1\]"
    says = rf"Own\(.*\): sharpen returned a factor of shape \[.*\]; give {sizes}"
    for backend in BACKENDS:
        with pytest.raises(ValueError, match=says):
            attend(q, k, v, Scheme(Own(lambda index, length: torch.ones(shape)), causal), backend=backend)
