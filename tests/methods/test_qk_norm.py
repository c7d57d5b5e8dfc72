"""QkNorm: queries and keys over their root mean square, with a weight for each channel, after the turn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import QkNorm, Rope, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain, turned


def randomised(dim: int = 8, eps: float = 1e-6) -> QkNorm:
    torch.manual_seed(1)
    method = QkNorm(dim, eps=eps).double()
    for weight in method.parameters():
        torch.nn.init.uniform_(weight, 0.3, 1.7)
    return method


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One vector: x_n · w_n / √(Σ x²/d + eps)."""
    return x * weight / math.sqrt(float((x * x).sum()) / len(x) + eps)


@torch.no_grad()
@pytest.mark.parametrize("eps", [1e-6, 0.5, 0.0])
def test_what_was_turned_is_divided_by_its_size(eps: float):
    q, k, v = inputs(t=7, s=9)
    method = randomised(eps=eps)
    at = torch.arange(9)
    sides = []
    for x, position, weight in ((q, at[2:], method.query_weight), (k, at, method.key_weight)):
        pairs = turned(x, position)
        whole = torch.cat((pairs.real, pairs.imag), -1)
        sides.append([[[normed(row, weight, eps) for row in head] for head in batch] for batch in whole])

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        return sides[0][b][h][i] @ sides[1][b][h // 2][j] / math.sqrt(8) if j <= i + 2 else -math.inf

    assert_same(attend(q, k, v, Scheme(Rope(8), method, causal)), plain(q, k, v, score))


@torch.no_grad()
def test_the_order_listed_is_the_order_of_turn_and_norm():
    q, k, v = inputs()
    method = randomised()
    after = attend(q, k, v, Scheme(Rope(8), method, causal))
    before = attend(q, k, v, Scheme(method, Rope(8), causal))
    own = method.turn(q, torch.arange(11)), method.turn(k, torch.arange(11), "key")
    assert_same(before, attend(*own, v, Scheme(Rope(8), causal)))
    assert float((after - before).abs().max()) > 1e-3


@torch.no_grad()
def test_a_weight_for_each_channel_is_what_breaks_relativity():
    """With weights alike within every pair, shifting all positions changes nothing; with others it does."""
    q, k, v = inputs()
    method = randomised()
    there = torch.arange(11) + 5

    def moved() -> float:
        scheme = Scheme(Rope(8), method, causal)
        assert not scheme.relative
        away = attend(q, k, v, scheme, position=there, key_position=there)
        return float((away - attend(q, k, v, scheme)).abs().max())

    assert moved() > 1e-3
    for weight in method.parameters():
        weight[4:] = weight[:4]
    assert moved() < 1e-12


def test_a_new_one_gives_every_query_and_key_the_size_of_its_width():
    x = inputs()[0]
    for side in ("query", "key"):
        size = QkNorm(8, eps=0.0).double().turn(x, torch.arange(11), side).square().sum(-1)
        assert_same(size.detach(), torch.full_like(size, 8.0))


def test_values_are_left_alone():
    v = inputs(dv=5)[2]
    assert QkNorm(8).turn(v, torch.arange(11), "value") is v


def test_the_norm_of_half_precision_is_formed_in_float32():
    # 300² overflows float16, and a mean in bfloat16 would be off by a part in 256.
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.full((1, 1, 2, 64), 300.0, dtype=dtype)
        assert torch.equal(QkNorm(64).to(dtype).turn(x, torch.arange(2)), torch.ones_like(x))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: QkNorm(0), ValueError, r"QkNorm\(head_dim=0\): head_dim must be at least 1"),
        (lambda: QkNorm(8.0), TypeError, r"QkNorm\(head_dim=8.0\): head_dim must be an integer, not float"),
        (lambda: QkNorm(8, eps=-1), ValueError, r"QkNorm\(eps=-1\): eps must be at least 0"),
        (lambda: QkNorm(8).turn(torch.zeros(1, 1, 3, 6), torch.arange(3)), ValueError, "given a tensor of 6 channels"),
    ],
)
def test_wrong_arguments_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
