from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from milepost import Recurrent, Scheme, causal
from tests.layers import WIDTH, T, layer, project, tokens
from tests.oracles import assert_same, dots, plain


def walker(dim: int, cell: str = "gru", **options) -> Recurrent:
    method = Recurrent(dim, cell=cell, **options).double()
    generator = torch.Generator().manual_seed(1)
    for weight in method.parameters():
        nn.init.normal_(weight, std=0.6, generator=generator)
    return method


def by_hand(method: Recurrent, length: int) -> Tensor:
    """The vectors of the first positions, one channel at a time."""
    weight, bias, row = method.weight.tolist(), method.bias.tolist(), method.start.tolist()
    free = [] if method.free is None else method.free.tolist()
    dim, rows = len(row), [row]
    for _ in range(length - 1):
        pushed = [sum(w * p for w, p in zip(weight[n], row, strict=True)) + bias[n] for n in range(len(weight))]
        if method.cell == "tanh":
            row = [math.tanh(each) for each in pushed]
        else:
            gate = [1 / (1 + math.exp(-each)) for each in pushed]
            new = [math.tanh(free[n] + gate[n] * pushed[2 * dim + n]) for n in range(dim)]
            row = [(1 - gate[dim + n]) * new[n] + gate[dim + n] * row[n] for n in range(dim)]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def torch_cell(method: Recurrent) -> nn.Module:
    """torch's own cell with the weights of the method; what comes in is zero, so its input weights do not matter."""
    cell = (nn.GRUCell if method.cell == "gru" else nn.RNNCell)(method.model_dim, method.model_dim).double()
    with torch.no_grad():
        cell.weight_hh.copy_(method.weight)
        cell.bias_hh.copy_(method.bias)
        cell.bias_ih.zero_()
        if method.free is not None:
            cell.bias_ih[-method.model_dim :] = method.free
    return cell


def steps(cell: nn.Module, start: Tensor, length: int) -> Tensor:
    rows = [start[None]]
    for _ in range(length - 1):
        rows.append(cell(torch.zeros_like(start)[None], rows[-1]))
    return torch.cat(rows)


@pytest.mark.parametrize("cell", ["gru", "tanh"])
def test_each_vector_is_made_from_the_one_before(cell):
    method = walker(5, cell)
    assert_same(method.table(12), by_hand(method, 12))


@pytest.mark.parametrize("cell", ["gru", "tanh"])
def test_it_equals_the_cell_of_torch_that_is_given_nothing(cell):
    method = walker(6, cell)
    assert_same(method.table(30), steps(torch_cell(method), method.start, 30))


@pytest.mark.parametrize("cell", ["gru", "tanh"])
def test_gradients_are_those_of_the_cell_of_torch(cell):
    method = walker(4, cell)
    peer, start = torch_cell(method), method.start.detach().clone().requires_grad_()
    weight = torch.randn(9, 4, dtype=torch.float64)
    (method.table(9) * weight).sum().backward()
    (steps(peer, start, 9) * weight).sum().backward()
    assert_same(method.start.grad, start.grad)
    assert_same(method.weight.grad, peer.weight_hh.grad)
    assert_same(method.bias.grad, peer.bias_hh.grad)
    if method.free is not None:
        assert_same(method.free.grad, peer.bias_ih.grad[-4:])


@pytest.mark.parametrize("cell", ["gru", "tanh"])
def test_embeddings_gain_the_rows_of_the_table(cell):
    method = walker(6, cell)
    x = torch.randn(2, 8, 6, dtype=torch.float64)
    assert_same(method.embed(x), x + method.table(8))


def test_indices_choose_the_rows_in_any_order():
    method = walker(6)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    index = torch.tensor([[9, 0, 9], [4, 11, 2]])
    rows = by_hand(method, 12)
    assert_same(method.embed(x, index), x + rows[index])


def test_the_first_position_is_the_learned_start():
    method = walker(6)
    assert_same(method.embed(torch.zeros(1, 1, 6, dtype=torch.float64))[0, 0], method.start)


@pytest.mark.parametrize("cell", ["gru", "tanh"])
def test_attention_reads_the_vectors_through_its_projections(cell):
    method = walker(WIDTH, cell)
    x = tokens()
    q, k, v = project(x + by_hand(method, T))
    score = dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: score(b, h, i, j) if j <= i else -math.inf)
    assert_same(layer(Scheme(method, causal), x), oracle)


def test_a_text_far_longer_than_any_seen_is_defined():
    method = walker(4)
    far = method.embed(torch.zeros(1, 1, 4, dtype=torch.float64), torch.tensor([2000]))
    assert_same(far[0, 0], by_hand(method, 2001)[-1])


def test_it_learns_a_cell_and_a_start():
    counts = {cell: sum(each.numel() for each in Recurrent(10, cell=cell).parameters()) for cell in ("gru", "tanh")}
    # Three gates and one bias more for the candidate; a single layer.
    assert counts == {"gru": 3 * (10 * 10 + 10) + 10 + 10, "tanh": 10 * 10 + 10 + 10}


def test_weights_start_as_those_of_torch_do():
    torch.manual_seed(0)
    method = Recurrent(64)
    for weight in (method.weight, method.bias):
        # Uniform between −1/√d and 1/√d.
        assert 0.12 < float(weight.detach().abs().max()) <= 0.125
    assert 0 < float(method.start.detach().abs().max()) < 0.1


def test_an_empty_table_and_an_empty_text_are_no_trouble():
    method = walker(6)
    assert method.table(0).shape == (0, 6)
    assert method.embed(torch.zeros(2, 0, 6, dtype=torch.float64)).shape == (2, 0, 6)


def test_the_dtype_of_the_embeddings_stays():
    assert Recurrent(6).embed(torch.zeros(1, 4, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_an_index_past_the_longest_is_refused_by_name():
    method = Recurrent(6, longest=4)
    assert method.embed(torch.zeros(1, 4, 6)).shape == (1, 4, 6)
    with pytest.raises(ValueError, match=r"Recurrent\(longest=4\): index 4 is past"):
        method.embed(torch.zeros(1, 5, 6))
    with pytest.raises(ValueError, match="index -1 is before"):
        method.embed(torch.zeros(1, 2, 6), torch.tensor([-1, 0]))


def test_a_fraction_is_no_step():
    with pytest.raises(TypeError, match=r"Recurrent\(.*index must be integers, given torch.float32"):
        Recurrent(6).embed(torch.zeros(1, 2, 6), torch.tensor([0.0, 0.5]))


def test_embeddings_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"Recurrent\(model_dim=6\): given a tensor of 5 channels"):
        Recurrent(6).embed(torch.zeros(1, 2, 5))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"model_dim": 0}, ValueError, r"Recurrent\(model_dim=0\): model_dim must be at least 1"),
        ({"model_dim": -2}, ValueError, r"Recurrent\(model_dim=-2\): model_dim must be at least 1"),
        ({"model_dim": 6.0}, TypeError, r"Recurrent\(model_dim=6.0\): model_dim must be an integer, not float"),
        ({"model_dim": 6, "cell": "lstm"}, ValueError, r"Recurrent\(cell='lstm'\): cell must be one of 'gru', 'tanh'"),
        ({"model_dim": 6, "longest": 0}, ValueError, r"Recurrent\(longest=0\): longest must be at least 1"),
        ({"model_dim": 6, "longest": math.inf}, TypeError, r"Recurrent\(longest=inf\): longest must be an integer"),
    ],
)
def test_what_cannot_walk_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Recurrent(**options)
