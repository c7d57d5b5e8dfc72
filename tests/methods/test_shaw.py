from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Rerope, Scheme, Shaw, attend, causal
from tests.oracles import assert_same, attention, inputs, plain


def clip(offset: int, reach: int) -> int:
    return max(-reach, min(reach, offset))


def shaw(q: Tensor, k: Tensor, v: Tensor, method: Shaw, sees_ahead: bool = True) -> Tensor:
    """e_ij = q_i·(k_j + a^K_ij)/√d, o_i = Σ α_ij (v_j + a^V_ij), a_ij = w[clip(j − i) + k]; queries are the last t."""
    group, behind, reach = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2], method.reach

    def row(i: int, j: int) -> int:
        return clip(j - (i + behind), reach) + reach

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if not sees_ahead and j > i + behind:
            return -math.inf
        return q[b, h, i] @ (k[b, h // group, j] + method.key_table[row(i, j)]) / math.sqrt(q.shape[3])

    def value(b: int, h: int, i: int, j: int) -> Tensor:
        added = 0 if method.value_table is None else method.value_table[row(i, j)]
        return v[b, h // group, j] + added

    return attention((*q.shape[:3], k.shape[2]), score, value)


def randomised(method: Shaw) -> Shaw:
    torch.manual_seed(1)
    for weight in method.parameters():
        torch.nn.init.normal_(weight)
    return method.double()


@torch.no_grad()
def test_both_sides_are_clipped_and_join_keys_and_values():
    q, k, v = inputs()
    method = randomised(Shaw(8, reach=3))
    assert_same(attend(q, k, v, Scheme(method)), shaw(q, k, v, method))


@torch.no_grad()
def test_values_may_have_a_width_of_their_own_and_more_keys_than_queries():
    q, k, v = inputs(t=5, s=12, dv=3)
    method = randomised(Shaw(8, reach=4, value_dim=3))
    assert_same(attend(q, k, v, Scheme(method, causal)), shaw(q, k, v, method, sees_ahead=False))


@torch.no_grad()
def test_values_are_left_alone_if_asked():
    q, k, v = inputs(dv=5)
    method = randomised(Shaw(8, reach=2, values=False))
    assert method.value_table is None
    assert_same(attend(q, k, v, Scheme(method, causal)), shaw(q, k, v, method, sees_ahead=False))


def test_rows_are_counted_by_key_minus_query():
    method = Shaw(4, reach=3)
    offsets = torch.arange(-6, 7)
    expected = [max(-3, min(3, offset)) + 3 for offset in offsets.tolist()]
    assert method.relate(0).keys.find(-offsets).tolist() == expected
    assert expected[0] == 0  # the first row is far behind
    assert expected[-1] == 6


def test_the_tables_hold_two_times_two_reach_plus_one_vectors():
    assert sum(weight.numel() for weight in Shaw(64).parameters()) == 2 * (2 * 16 + 1) * 64


@torch.no_grad()
def test_the_tables_start_as_xavier_does():
    torch.manual_seed(0)
    method = Shaw(64, reach=100)
    bound = math.sqrt(6 / (64 + 201))
    for table in (method.key_table, method.value_table):
        assert bound * 0.99 < float(table.abs().max()) <= bound


@torch.no_grad()
def test_zero_tables_are_plain_attention():
    q, k, v = inputs()
    method = Shaw(8, reach=3).double()
    for weight in method.parameters():
        weight.zero_()
    expected = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8))
    assert_same(attend(q, k, v, Scheme(method)), expected)


@torch.no_grad()
def test_clipping_a_long_table_is_what_rerope_does_to_distances():
    q, k, v = inputs()
    long, short = randomised(Shaw(8, reach=10)), Shaw(8, reach=3).double()
    for whole, part in ((long.key_table, short.key_table), (long.value_table, short.value_table)):
        part.copy_(whole[10 - 3 : 10 + 3 + 1])
    assert_same(attend(q, k, v, Scheme(long, Rerope(3))), attend(q, k, v, Scheme(short)))


@torch.no_grad()
def test_keys_agree_with_transformers():
    bert = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    from transformers import Wav2Vec2BertConfig

    config = Wav2Vec2BertConfig(
        hidden_size=32, num_attention_heads=4, position_embeddings_type="relative_key",
        left_max_position_embeddings=3, right_max_position_embeddings=3,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = bert.Wav2Vec2BertSelfAttention(config).double().eval()
    ours = Shaw(8, reach=3, values=False).double()
    ours.key_table.copy_(theirs.distance_embedding.weight)
    x = torch.randn(2, 11, 32, dtype=torch.float64)
    q, k, v = (
        project(x).view(2, 11, 4, 8).transpose(1, 2) for project in (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    )
    out = attend(q, k, v, Scheme(ours))
    assert_same(theirs.linear_out(out.transpose(1, 2).reshape(2, 11, 32)), theirs(x)[0])


@pytest.mark.parametrize("name", ["head_dim", "reach", "value_dim"])
def test_sizes_must_be_positive_integers(name: str):
    sizes = {"head_dim": 8, "reach": 4}
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=rf"Shaw\({name}={wrong}\): {name} must be at least 1"):
            Shaw(**(sizes | {name: wrong}))
    with pytest.raises(TypeError, match=rf"Shaw\({name}=2.5\): {name} must be an integer, not float"):
        Shaw(**(sizes | {name: 2.5}))
    with pytest.raises(TypeError, match=rf"Shaw\({name}=True\): {name} must be an integer, not bool"):
        Shaw(**(sizes | {name: True}))


def test_queries_of_another_width_are_refused_by_name():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"Shaw\(head_dim=16\): given a tensor of 8 channels"):
        attend(q, k, v, Scheme(Shaw(16).double()))


def test_values_of_another_width_are_refused_by_name():
    q, k, v = inputs(dv=5)
    with pytest.raises(ValueError, match=r"Shaw.*value_dim"):
        attend(q, k, v, Scheme(Shaw(8).double()))
