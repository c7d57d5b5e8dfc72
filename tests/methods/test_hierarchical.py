from __future__ import annotations

import math

import pytest
import torch

from milepost import Hierarchical, Learned, Scheme, causal
from tests.layers import WIDTH, T, layer, project, tokens
from tests.oracles import assert_same, dots, plain


def table_of(n: int, dim: int) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def mixed(table: torch.Tensor, alpha: float) -> torch.Tensor:
    """Every row of the long table, [n² dim], counted from one: q[(i − 1)n + j] = α u[i] + (1 − α) u[j]."""
    n = len(table)
    p = dict(enumerate(table, start=1))
    u = {i: (p[i] - alpha * p[1]) / (1 - alpha) for i in range(1, n + 1)}
    q = {(i - 1) * n + j: alpha * u[i] + (1 - alpha) * u[j] for i in range(1, n + 1) for j in range(1, n + 1)}
    return torch.stack([q[place] for place in range(1, n * n + 1)])


def empty(t: int, dim: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(1, t, dim, dtype=dtype)


@pytest.mark.parametrize("alpha", [0.4, 0.1, 0.49, 0.8])
def test_all_positions_mix_the_vectors_of_two_digits(alpha):
    table = table_of(5, 6)
    method = Hierarchical(table, alpha=alpha)
    assert_same(method.embed(empty(25, 6))[0], mixed(table, alpha))


def test_the_first_digit_weighs_four_tenths_unless_told():
    table = table_of(4, 6)
    assert_same(Hierarchical(table).embed(empty(16, 6))[0], mixed(table, 0.4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_first_positions_keep_their_trained_vectors_bit_for_bit(dtype):
    table = table_of(64, 32).to(dtype)
    assert torch.equal(Hierarchical(table).embed(empty(64, 32, dtype))[0], table)


def test_vectors_are_added_to_the_embeddings_at_any_indices():
    table = table_of(4, 6)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    index = torch.tensor([[0, 15, 7], [7, 4, 4]])
    rows = mixed(table, 0.4)
    expected = torch.stack([torch.stack([x[b, t] + rows[index[b, t]] for t in range(3)]) for b in range(2)])
    assert_same(Hierarchical(table).embed(x, index), expected)


def test_attention_reads_the_vectors_through_its_projections():
    table = table_of(5, WIDTH)
    x = tokens()
    q, k, v = project(x + mixed(table, 0.4)[:T])
    score = dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: score(b, h, i, j) if j <= i else -math.inf)
    assert_same(layer(Scheme(Hierarchical(table), causal), x), oracle)


def test_a_table_of_512_reaches_to_its_square():
    table = table_of(512, 2)
    method = Hierarchical(table)
    assert method.length == 262_144
    last = method.embed(empty(2, 2), torch.tensor([262_143, 511 * 512]))[0]
    u = (table - 0.4 * table[0]) / 0.6
    assert_same(last, torch.stack([0.4 * u[511] + 0.6 * u[511], 0.4 * u[511] + 0.6 * u[0]]))
    with pytest.raises(ValueError, match=r"Hierarchical\(.*: index 262144 is past the table, which ends at 262143"):
        method.embed(empty(1, 2), torch.tensor([262_144]))


def test_no_two_positions_share_a_vector():
    rows = Hierarchical(table_of(6, 3)).embed(empty(36, 3))[0].detach()
    apart = torch.cdist(rows, rows) + torch.eye(36)
    assert float(apart.min()) > 1e-3


def test_gradients_reach_the_table_through_both_digits_and_its_first_row():
    table = table_of(4, 3)
    method, leaf = Hierarchical(table, alpha=0.3), table.clone().requires_grad_()
    weight = torch.randn(16, 3, dtype=torch.float64)
    (method.embed(empty(16, 3))[0] * weight).sum().backward()
    (mixed(leaf, 0.3) * weight).sum().backward()
    assert method.table.grad is not None
    assert leaf.grad is not None
    assert_same(method.table.grad, leaf.grad)


def test_it_learns_nothing_but_the_table():
    assert [tuple(weight.shape) for weight in Hierarchical((512, 768)).parameters()] == [(512, 768)]


def test_the_weight_of_a_trained_part_is_shared():
    learned, embedding = Learned(4, 6), torch.nn.Embedding(4, 6)
    weight = torch.nn.Parameter(torch.randn(4, 6))
    assert Hierarchical(learned).table is learned.table
    assert Hierarchical(embedding).table is embedding.weight
    assert Hierarchical(weight).table is weight


def test_a_plain_tensor_is_copied():
    table = table_of(4, 6)
    method = Hierarchical(table)
    before = table.clone()
    table.zero_()
    assert torch.equal(method.table, before)


def test_a_shape_stands_for_a_table_to_come():
    torch.manual_seed(0)
    table = Hierarchical((256, 256)).table.detach()
    assert table.shape == (256, 256)
    # The deviation of 65536 draws is known to 0.3 %; five of these are allowed.
    assert abs(float(table.std()) / 0.02 - 1) < 0.015


def test_the_dtype_of_the_embeddings_stays():
    assert Hierarchical((4, 6)).embed(empty(9, 6, torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("alpha", "error", "text"),
    [
        (0.5, ValueError, r"Hierarchical\(alpha=0.5\): alpha must lie between 0 and 1 and not be 0.5.* exchanged"),
        (1.0, ValueError, r"Hierarchical\(alpha=1.0\): alpha must lie between 0 and 1"),
        (3, ValueError, r"Hierarchical\(alpha=3\): alpha must lie between 0 and 1"),
        (0, ValueError, r"Hierarchical\(alpha=0\): alpha must be greater than 0"),
        (-0.4, ValueError, r"Hierarchical\(alpha=-0.4\): alpha must be greater than 0"),
        (math.nan, ValueError, r"Hierarchical\(alpha=nan\): alpha must be finite"),
        ("0.4", TypeError, r"Hierarchical\(alpha='0.4'\): alpha must be a number, not str"),
        (True, TypeError, r"Hierarchical\(alpha=True\): alpha must be a number, not bool"),
    ],
)
def test_what_cannot_weigh_two_digits_is_refused(alpha, error, text):
    with pytest.raises(error, match=text):
        Hierarchical((4, 6), alpha=alpha)


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        (
            512,
            TypeError,
            r"Hierarchical\(table=int\): table must be a tensor \[n, model_dim\], an nn.Embedding, a Learned",
        ),
        (None, TypeError, r"or a shape \(n, model_dim\)"),
        (torch.zeros(3), ValueError, r"table must be floats \[n, model_dim\], given torch.float32 \[3\]"),
        (torch.zeros(3, 2).long(), ValueError, r"table must be floats \[n, model_dim\], given torch.int64 \[3, 2\]"),
        ((3,), ValueError, r"table must be floats \[n, model_dim\]"),
        ((0, 6), ValueError, r"Hierarchical\(table=0\): table must be at least 1"),
        ((4, 6.0), TypeError, r"Hierarchical\(table=6.0\): table must be an integer, not float"),
    ],
)
def test_what_is_no_table_is_refused(table, error, text):
    with pytest.raises(error, match=text):
        Hierarchical(table)


def test_indices_before_the_table_and_embeddings_of_another_width_are_refused():
    method = Hierarchical((4, 6))
    with pytest.raises(ValueError, match="index -1 is before the table; indices count from 0"):
        method.embed(empty(2, 6), torch.tensor([-1, 0]))
    with pytest.raises(TypeError, match=r"index must be integers, given torch.float64"):
        method.embed(empty(2, 6), torch.zeros(2).double())
    with pytest.raises(ValueError, match="given a tensor of 5 channels"):
        method.embed(empty(2, 5))
