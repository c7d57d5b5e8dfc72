from __future__ import annotations

import math

import pytest
import torch

from milepost import Learned, Scheme, attend, causal
from tests.oracles import assert_same, plain


def table_of(length: int, dim: int) -> Learned:
    method = Learned(length, dim).double()
    torch.nn.init.normal_(method.table)
    return method


def test_each_token_gets_the_row_of_its_index():
    method = table_of(9, 6)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    expected = torch.stack([torch.stack([x[b, t] + method.table[t] for t in range(5)]) for b in range(2)])
    assert_same(method.embed(x), expected)


@pytest.mark.parametrize("index", [[3, 1, 4, 1, 8], [[0, 1, 2, 3, 4], [0, 0, 0, 7, 8]]])
def test_indices_choose_the_rows(index):
    method = table_of(9, 6)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    rows = torch.tensor(index).expand(2, 5).tolist()
    expected = torch.stack([torch.stack([x[b, t] + method.table[rows[b][t]] for t in range(5)]) for b in range(2)])
    assert_same(method.embed(x, torch.tensor(index)), expected)


def test_a_text_that_goes_on_gets_the_rows_after_those_it_had():
    method = table_of(9, 6)
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    first, rest = method.embed(x[:, :4], torch.arange(4)), method.embed(x[:, 4:], torch.arange(4, 9))
    assert_same(torch.cat([first, rest], 1), method.embed(x))


def test_it_equals_the_embedding_of_torch():
    method = table_of(9, 6)
    index = torch.tensor([[8, 2, 2], [0, 5, 1]])
    peer = torch.nn.Embedding.from_pretrained(method.table.detach())
    assert_same(method.embed(torch.zeros(2, 3, 6, dtype=torch.float64), index), peer(index))


def test_attention_reads_the_rows_through_its_projections():
    b, t, model, heads, dim = 2, 7, 8, 4, 4
    x = torch.randn(b, t, model, dtype=torch.float64)
    wq = torch.randn(model, heads * dim, dtype=torch.float64)
    wk, wv = torch.randn(2, model, 2 * dim, dtype=torch.float64)
    scheme = Scheme(table_of(t, model), causal)

    def project(y, w):
        return (y @ w).view(b, t, -1, dim).transpose(1, 2)

    y = scheme.embed(x)
    ours = attend(project(y, wq), project(y, wk), project(y, wv), scheme.attention)

    (table,) = scheme.parameters()
    rows = torch.stack([x[:, i] + table[i] for i in range(t)], 1)
    q, k, v = project(rows, wq), project(rows, wk), project(rows, wv)
    oracle = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / 2 if j <= i else -math.inf)
    assert_same(ours, oracle)


def test_the_table_has_a_number_for_each_position_and_channel():
    assert sum(weight.numel() for weight in Learned(512, 768).parameters()) == 393_216


def test_rows_start_normal_with_a_deviation_of_two_hundredths():
    torch.manual_seed(0)
    rows = Learned(256, 256).table.detach()
    # The deviation of 65536 draws is known to 0.3 %, their mean to 8e-5; five of each are allowed.
    assert abs(float(rows.std()) / 0.02 - 1) < 0.015
    assert abs(float(rows.mean())) < 4e-4


def test_only_the_rows_that_are_read_learn():
    method = table_of(6, 4)
    method.embed(torch.zeros(1, 3, 4, dtype=torch.float64), torch.tensor([1, 4, 4])).sum().backward()
    assert method.table.grad is not None
    assert method.table.grad[:, 0].tolist() == [0, 1, 0, 0, 2, 0]


def test_the_dtype_of_the_embeddings_stays():
    assert Learned(4, 6).embed(torch.zeros(1, 4, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_text_longer_than_the_table_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Learned\(length=4\): index 4 is past the table, which ends at 3"):
        Learned(4, 6).embed(torch.zeros(1, 5, 6))
    with pytest.raises(ValueError, match=r"index 9 is past the table.*Sinusoidal"):
        Learned(4, 6).embed(torch.zeros(1, 2, 6), torch.tensor([0, 9]))


def test_an_index_below_zero_is_refused_rather_than_read_from_the_end():
    with pytest.raises(ValueError, match="-1"):
        Learned(4, 6).embed(torch.zeros(1, 2, 6), torch.tensor([-1, 0]))


def test_embeddings_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"Learned\(model_dim=6\): given a tensor of 5 channels"):
        Learned(4, 6).embed(torch.zeros(1, 2, 5))


@pytest.mark.parametrize(
    ("length", "dim", "error", "text"),
    [
        (0, 6, ValueError, r"Learned\(length=0\): length must be at least 1"),
        (-3, 6, ValueError, r"Learned\(length=-3\): length must be at least 1"),
        (4.0, 6, TypeError, r"Learned\(length=4.0\): length must be an integer, not float"),
        (True, 6, TypeError, r"Learned\(length=True\): length must be an integer, not bool"),
        (4, 0, ValueError, r"Learned\(model_dim=0\): model_dim must be at least 1"),
        (4, "6", TypeError, r"Learned\(model_dim='6'\): model_dim must be an integer, not str"),
    ],
)
def test_what_the_table_cannot_be_made_of_is_refused(length, dim, error, text):
    with pytest.raises(error, match=text):
        Learned(length, dim)


def test_a_grown_table_keeps_its_trained_rows_and_draws_the_rest():
    method = table_of(4, 256)
    longer = method.grown(260, torch.Generator().manual_seed(5))
    assert longer.table.shape == (260, 256)
    assert torch.equal(longer.table[:4], method.table)
    fresh = longer.table[4:].detach()
    # The deviation of 65536 draws is known to 0.3 %, their mean to 8e-5; five of each are allowed.
    assert abs(float(fresh.std()) / 0.02 - 1) < 0.015
    assert abs(float(fresh.mean())) < 4e-4


def test_a_grown_table_serves_the_longer_text_and_learns_all_of_it():
    longer = table_of(4, 6).grown(7)
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    assert_same(longer.embed(x), torch.stack([x[:, i] + longer.table[i] for i in range(7)], 1))
    longer.embed(x).sum().backward()
    assert longer.table.grad is not None
    assert bool((longer.table.grad == 2).all())


def test_growing_leaves_the_trained_table_as_it_was():
    method = table_of(4, 6)
    before = method.table.detach().clone()
    longer = method.grown(7)
    torch.nn.init.zeros_(longer.table)
    assert method.length == 4
    assert torch.equal(method.table, before)


def test_the_same_generator_grows_the_same_rows():
    method = table_of(4, 6)
    first, second = (method.grown(9, torch.Generator().manual_seed(seed)).table for seed in (1, 1))
    other = method.grown(9, torch.Generator().manual_seed(2)).table
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_grown_table_has_the_dtype_of_the_trained_one(dtype):
    assert Learned(4, 6).to(dtype).grown(5).table.dtype == dtype


def test_growing_by_nothing_copies():
    method = table_of(4, 6)
    same = method.grown(4)
    assert torch.equal(same.table, method.table)
    assert same.table is not method.table


def test_a_table_does_not_shrink():
    with pytest.raises(ValueError, match=r"Learned\(length=4\)\.grown\(3\): a table grows; it does not shrink"):
        Learned(4, 6).grown(3)
    with pytest.raises(TypeError, match="length must be an integer, not float"):
        Learned(4, 6).grown(8.0)
