from __future__ import annotations

import math

import pytest
import torch

from milepost import ComplexOrder, Hierarchical, Learned, Multiplied, Recurrent, Rope, Scheme, Sinusoidal, causal
from tests.layers import WIDTH, T, layer, project, tokens
from tests.oracles import assert_same, dots, plain


def waves(length: int, dim: int) -> torch.Tensor:
    table = torch.zeros(length, dim, dtype=torch.float64)
    for i in range(length):
        for n in range(dim // 2):
            angle = i * 10000 ** (-2 * n / dim)
            table[i, 2 * n], table[i, 2 * n + 1] = math.sin(angle), math.cos(angle)
    return table


def learned(length: int, dim: int) -> Learned:
    method = Learned(length, dim).double()
    torch.nn.init.normal_(method.table)
    return method


def test_each_embedding_is_scaled_by_one_plus_its_wave():
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    assert_same(Multiplied(Sinusoidal(6)).embed(x), x * (1 + waves(9, 6)))


def test_each_embedding_is_scaled_by_one_plus_its_learned_row():
    method = learned(12, 6)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    index = torch.tensor([[11, 0, 4], [5, 5, 2]])
    expected = torch.stack(
        [torch.stack([x[b, t] * (1 + method.table[index[b, t]]) for t in range(3)]) for b in range(2)]
    )
    assert_same(Multiplied(method).embed(x, index), expected)


@pytest.mark.parametrize("make", [lambda: Hierarchical((4, 6)), lambda: Recurrent(6), lambda: Learned(16, 6)])
def test_whatever_adds_can_multiply(make):
    method = make().double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    added = method.embed(torch.zeros_like(x))
    assert float(added.detach().abs().max()) > 0
    assert_same(Multiplied(method).embed(x), x * (1 + added))


def test_attention_reads_the_products_through_its_projections():
    x = tokens()
    q, k, v = project(x * (1 + waves(T, WIDTH)))
    score = dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: score(b, h, i, j) if j <= i else -math.inf)
    assert_same(layer(Scheme(Multiplied(Sinusoidal(WIDTH)), causal), x), oracle)


def test_a_table_of_zeros_leaves_the_signal_alive():
    method = learned(5, 6)
    torch.nn.init.zeros_(method.table)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    assert torch.equal(Multiplied(method).embed(x), x)


def test_the_gradient_of_a_row_is_the_embedding_it_scales():
    method = learned(5, 6)
    x = torch.randn(1, 3, 6, dtype=torch.float64)
    Multiplied(method).embed(x, torch.tensor([4, 1, 1])).sum().backward()
    expected = torch.zeros(5, 6, dtype=torch.float64)
    expected[4], expected[1] = x[0, 0], x[0, 1] + x[0, 2]
    assert method.table.grad is not None
    assert_same(method.table.grad, expected)


def test_a_scheme_learns_the_weights_inside():
    method = learned(5, 6)
    assert [weight is method.table for weight in Scheme(Multiplied(method), causal).parameters()] == [True]


def test_sums_and_products_follow_the_order_they_are_listed_in():
    factor, term = learned(5, 6), learned(5, 6)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    assert_same(Scheme(Multiplied(factor), term).embed(x), x * (1 + factor.table) + term.table)
    assert_same(Scheme(term, Multiplied(factor)).embed(x), (x + term.table) * (1 + factor.table))


def test_the_dtype_of_the_embeddings_stays():
    assert Multiplied(Learned(5, 6)).embed(torch.ones(1, 5, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_text_longer_than_the_table_is_refused_by_the_method_inside():
    with pytest.raises(ValueError, match=r"Learned\(length=4\): index 4 is past the table"):
        Multiplied(Learned(4, 6)).embed(torch.zeros(1, 5, 6))


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (Rope(6), r"Multiplied\(Rope\(.*the method must add to token embeddings, such as Learned\(512, 768\)"),
        (Learned, r"Multiplied\(Learned\): the method must add to token embeddings"),
        (ComplexOrder(4, 6), r"Multiplied\(ComplexOrder\(4, 6\)\): the method must add to token embeddings"),
        (causal, r"Multiplied\(causal\): the method must add to token embeddings"),
        (3, r"Multiplied\(3\): the method must add to token embeddings"),
        (Multiplied(Sinusoidal(6)), r"Multiplied\(Multiplied\(Sinusoidal\(6\)\)\): a product of products"),
    ],
)
def test_what_adds_nothing_to_embeddings_is_refused(method, text):
    with pytest.raises(TypeError, match=text):
        Multiplied(method)
