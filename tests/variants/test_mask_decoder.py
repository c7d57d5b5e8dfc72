from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from milepost import MaskDecoder
from tests.oracles import assert_same, attention


def decoder(length: int = 9, dim: int = 8, times: int = 2) -> MaskDecoder:
    made = MaskDecoder(length, dim, times=times).double()
    nn.init.normal_(made.positions.table, generator=torch.Generator().manual_seed(2))
    return made


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


class Layer(nn.Module):
    """Attention of one head and a residual sum, as plainly as can be."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(noise(dim, dim) / 3) for _ in range(3))
        self.calls = 0

    def forward(self, query: Tensor, hidden: Tensor) -> Tensor:
        self.calls += 1
        q, k, v = query @ self.wq, hidden @ self.wk, hidden @ self.wv
        rows = attention(
            (*hidden.shape[:1], 1, *query.shape[1:2], hidden.shape[1]),
            lambda b, h, i, j: q[b, i] @ k[b, j] / math.sqrt(q.shape[-1]),
            lambda b, h, i, j: v[b, j],
        )
        return query + rows[:, 0]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_last_layer_runs_again_and_again_with_the_same_weights(times):
    made, layer, hidden = decoder(times=times), Layer(8), noise(2, 5, 8)
    expected = hidden + made.positions.table[:5]
    for _ in range(times):
        expected = layer(expected, hidden)
    layer.calls = 0
    assert_same(made(hidden, layer), expected)
    assert layer.calls == times


def test_it_runs_twice_unless_told():
    layer = Layer(8)
    MaskDecoder(9, 8).double()(noise(1, 4, 8), layer)
    assert layer.calls == 2


def test_queries_carry_positions_and_keys_and_values_do_not():
    made, hidden = decoder(times=3), noise(2, 5, 8)
    given: list[tuple[Tensor, Tensor]] = []
    answers = [noise(2, 5, 8) for _ in range(3)]

    def layer(query: Tensor, told: Tensor) -> Tensor:
        given.append((query, told))
        return answers[len(given) - 1]

    out = made(hidden, layer)
    assert torch.equal(out, answers[2])
    assert all(torch.equal(told, hidden) for _, told in given)
    assert_same(given[0][0], hidden + made.positions.table[:5])
    # Positions enter once: each later query is the answer before it, as it is.
    assert torch.equal(given[1][0], answers[0])
    assert torch.equal(given[2][0], answers[1])


@pytest.mark.parametrize("index", [[3, 1, 8, 0, 0], [[0, 1, 2, 3, 4], [0, 0, 0, 5, 6]]])
def test_indices_choose_the_positions(index):
    made, hidden, layer = decoder(times=1), noise(2, 5, 8), Layer(8)
    rows = made.positions.table[torch.tensor(index).expand(2, 5)]
    assert_same(made(hidden, layer, torch.tensor(index)), layer(hidden + rows, hidden))


def test_once_and_without_positions_it_is_the_plain_last_layer():
    made, layer, hidden = decoder(times=1), Layer(8), noise(2, 5, 8)
    nn.init.zeros_(made.positions.table)
    assert_same(made(hidden, layer), layer(hidden, hidden))


def test_hidden_states_keep_their_values():
    made, hidden = decoder(), noise(2, 5, 8)
    before = hidden.clone()
    made(hidden, Layer(8))
    assert torch.equal(hidden, before)


def test_it_learns_nothing_but_a_vector_for_each_position():
    assert [tuple(weight.shape) for weight in MaskDecoder(512, 768).parameters()] == [(512, 768)]


def test_positions_learn_and_the_layer_learns_from_each_time_it_runs():
    made, layer, hidden = decoder(), Layer(8), noise(1, 4, 8)
    made(hidden, layer).sum().backward()
    copies = [Layer(8), Layer(8)]
    for copy in copies:
        copy.load_state_dict(layer.state_dict())
    table = made.positions.table.detach().clone().requires_grad_()
    copies[1](copies[0](hidden + table[:4], hidden), hidden).sum().backward()
    assert_same(made.positions.table.grad, table.grad)
    for ours, first, second in zip(layer.parameters(), copies[0].parameters(), copies[1].parameters(), strict=True):
        assert_same(ours.grad, first.grad + second.grad)


def test_the_layers_of_transformers_run_as_in_deberta():
    """All layers but the last, then the last one twice: three layers' weights are applied four times."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder

    config = DebertaV2Config(
        hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, relative_attention=True, position_buckets=4,
        pos_att_type=["c2p", "p2c"], position_biased_input=False,
    )  # fmt: skip
    torch.manual_seed(0)
    encoder, made, x = DebertaV2Encoder(config).double(), decoder(), noise(2, 5, 8)
    runs: list[int] = []
    for number, each in enumerate(encoder.layer):
        each.register_forward_hook(lambda *_, number=number: runs.append(number))
    mask = torch.ones(2, 5)
    states = encoder(x, mask, output_hidden_states=True).hidden_states
    seen, distance, table = encoder.get_attention_mask(mask), encoder.get_rel_pos(x), encoder.get_rel_embedding()

    def last(query: Tensor, hidden: Tensor) -> Tensor:
        return encoder.layer[-1](hidden, seen, query_states=query, relative_pos=distance, rel_embeddings=table)[0]

    with torch.no_grad():
        once = decoder(times=1)
        nn.init.zeros_(once.positions.table)
        assert_same(once(states[-2], last), states[-1])

        runs.clear()
        ours = made(states[-2], last)
        assert runs == [2, 2]
        expected = last(last(states[-2] + made.positions.table[:5], states[-2]), states[-2])
        assert_same(ours, expected)


def test_a_text_longer_than_the_table_is_refused():
    with pytest.raises(ValueError, match=r"index 4 is past the table, which ends at 3"):
        MaskDecoder(4, 8)(torch.zeros(1, 5, 8), lambda query, hidden: query)


def test_hidden_states_of_another_width_are_refused():
    with pytest.raises(ValueError, match="given a tensor of 7 channels"):
        MaskDecoder(4, 8)(torch.zeros(1, 3, 7), lambda query, hidden: query)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"length": 4, "model_dim": 8, "times": 0}, ValueError, r"MaskDecoder\(times=0\): times must be at least 1"),
        (
            {"length": 4, "model_dim": 8, "times": 2.0},
            TypeError,
            r"MaskDecoder\(times=2.0\): times must be an integer, not float",
        ),
        ({"length": 0, "model_dim": 8}, ValueError, r"length=0\): length must be at least 1"),
        ({"length": 4, "model_dim": -8}, ValueError, r"model_dim=-8\): model_dim must be at least 1"),
    ],
)
def test_what_is_no_decoder_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        MaskDecoder(**arguments)
