"""DeepseekScale, Llama4Scale, LogN without a trained length and SoftmaxOne, against formulas and other code."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from milepost import (
    Alibi,
    DeepseekScale,
    Llama4Scale,
    LogN,
    Partial,
    Rope,
    Scale,
    Scheme,
    SinkLogit,
    SoftmaxOne,
    Yarn,
    attend,
    causal,
)
from tests.oracles import assert_same, attention, dots, hidden_future, inputs, plain

ONE = torch.tensor([[1]])


def sharpened(q, k, v, factor):
    """Causal attention whose scores are multiplied by factor(i); queries are the last of the keys."""
    dot, behind = dots(q, k), k.shape[2] - q.shape[2]
    return plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) * factor(i + behind) if j <= i + behind else -math.inf)


# DeepseekScale


@pytest.mark.parametrize(("factor", "weight"), [(40, 1.0), (40, 0.707), (2.5, 3), (40, 0)])
def test_every_query_is_sharpened_by_the_square_of_yarns_magnitude(factor, weight):
    q, k, v = inputs(dv=5)
    size = 0.1 * weight * math.log(factor) + 1
    assert_same(
        attend(q, k, v, Scheme(DeepseekScale(factor, weight=weight), causal)), sharpened(q, k, v, lambda i: size**2)
    )


def test_the_golden_magnitude_at_forty():
    assert round(math.sqrt(DeepseekScale(40).sharpen(ONE, ONE).item()), 5) == 1.36889


@pytest.mark.parametrize("factor", [1, 0.25, 1.0])
def test_nothing_is_sharpened_that_is_not_stretched(factor):
    assert DeepseekScale(factor, weight=5).sharpen(ONE, ONE).item() == 1


def test_it_equals_the_scale_of_deepseek_in_transformers():
    theirs = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    for factor, weight in ((40, 1.0), (40, 0.707), (4.0, 0.5), (1.0, 1.0), (0.5, 1.0)):
        told = {"rope_type": "yarn", "factor": factor, "mscale_all_dim": weight}
        peer = theirs.yarn_apply_mscale(told, 1.0)
        assert DeepseekScale(factor, weight=weight).sharpen(ONE, ONE).item() == pytest.approx(peer, rel=1e-15)


def test_where_all_of_a_head_is_turned_it_is_yarns_own_magnitude():
    # m on cos and sin of queries and of keys makes m² on every product.
    q, k, v = inputs()
    whole = attend(q, k, v, Scheme(Rope(8, stretch=Yarn(40, 16)), causal))
    apart = attend(q, k, v, Scheme(Rope(8, stretch=Yarn(40, 16, scaled=1.0)), DeepseekScale(40), causal))
    assert_same(apart, whole)


def test_where_part_of_a_head_is_turned_the_rest_is_sharpened_too():
    q, k, v = inputs(d=12)
    turning = Partial(Rope(4, stretch=Yarn(40, 16, scaled=1.0)), of=12)
    at, size = torch.arange(11), 0.1 * 0.707 * math.log(40) + 1
    turned = [turning.turn(x, at, side) for x, side in ((q, "query"), (k, "key"))]
    ours = attend(q, k, v, Scheme(turning, DeepseekScale(40, weight=0.707), causal))
    assert_same(ours, attend(*turned, v, Scheme(Scale(size**2 / math.sqrt(12)), causal)))
    on_angles = Partial(Rope(4, stretch=Yarn(40, 16, scaled=size)), of=12)
    assert float((attend(q, k, v, Scheme(on_angles, causal)) - ours).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"factor": 0}, ValueError, r"DeepseekScale\(factor=0\): factor must be greater than 0"),
        ({"factor": math.nan}, ValueError, r"DeepseekScale\(factor=nan\): factor must be finite"),
        ({"factor": "40"}, TypeError, r"DeepseekScale\(factor='40'\): factor must be a number, not str"),
        ({"weight": -0.1}, ValueError, r"DeepseekScale\(weight=-0.1\): weight must be at least 0"),
        ({"weight": math.inf}, ValueError, r"DeepseekScale\(weight=inf\): weight must be finite"),
        ({"weight": None}, TypeError, r"DeepseekScale\(weight=None\): weight must be a number, not NoneType"),
    ],
)
def test_what_is_no_deepseek_scale_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        DeepseekScale(**({"factor": 40} | options))


# Llama4Scale


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_queries_grow_sharper_with_every_chunk_behind_them(offset):
    q, k, v = inputs(t=7, s=12, dv=5)
    ours = attend(q, k, v, Scheme(Llama4Scale(3, weight=0.5, offset=offset), causal))
    assert_same(ours, sharpened(q, k, v, lambda i: 1 + 0.5 * math.log(1 + (i + offset) // 3)))


def test_golden_temperatures_of_llama_4():
    golden = {0: 1, 8190: 1, 8191: 1.069315, 16383: 1.109861, 131071: 1.283321}
    found = Llama4Scale().sharpen(torch.tensor([list(golden)]), ONE)[0].tolist()
    assert [round(each, 6) for each in found] == list(golden.values())
    assert found[:2] == [1, 1]


def test_without_the_offset_the_step_comes_one_token_later():
    index = torch.tensor([[8190, 8191, 8192]])
    with_it, without = (Llama4Scale(offset=offset).sharpen(index, ONE)[0].tolist() for offset in (1, 0))
    assert with_it[1:] == [1 + 0.1 * math.log(2)] * 2
    assert without == [1, 1, with_it[2]]


def test_it_equals_the_layers_without_positions_of_llama_4_in_transformers():
    theirs = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    from transformers import Llama4TextConfig

    config = Llama4TextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=4,
        floor_scale=3, attn_scale=0.5, attn_temperature_tuning=True, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    layer = theirs.Llama4TextAttention(config, layer_idx=3).double().eval()
    assert not layer.use_rope
    x = torch.randn(2, 11, 32, dtype=torch.float64)
    q, k, v = (
        project(x).unflatten(-1, (-1, 8)).transpose(1, 2) for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    out = attend(q, k, v, Scheme(Llama4Scale(3, weight=0.5), causal)).transpose(1, 2).flatten(2)
    # They form the factor in float32.
    assert_same(layer.o_proj(out), layer(x, None, hidden_future(11))[0], within=1e-6)


def test_without_the_offset_it_is_the_temperature_of_ministral():
    theirs = pytest.importorskip("transformers.models.ministral3.modeling_ministral3")
    index = torch.tensor([[0, 1, 4, 5, 9, 10, 4999, 5000]])
    peer = theirs.get_llama_4_attn_scale(index, 0.1, 5)[0, 0, :, 0]
    assert_same(Llama4Scale(5, weight=0.1, offset=0).sharpen(index, ONE)[0], peer.double(), within=1e-6)


def test_padding_on_the_left_does_not_sharpen():
    q, k, v = inputs(b=1, t=9)
    scheme = Scheme(Llama4Scale(3, weight=0.5), causal)
    padded = attend(q, k, v, scheme, documents=torch.tensor([-1] * 4 + [0] * 5))
    alone = sharpened(*(x[:, :, 4:] for x in (q, k, v)), lambda i: 1 + 0.5 * math.log(1 + (i + 1) // 3))
    assert_same(padded[:, :, 4:], alone)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"chunk": 0}, ValueError, r"Llama4Scale\(chunk=0\): chunk must be at least 1"),
        ({"chunk": 8192.0}, TypeError, r"Llama4Scale\(chunk=8192.0\): chunk must be an integer, not float"),
        ({"weight": -0.1}, ValueError, r"Llama4Scale\(weight=-0.1\): weight must be at least 0"),
        ({"weight": math.nan}, ValueError, r"Llama4Scale\(weight=nan\): weight must be finite"),
        ({"offset": -1}, ValueError, r"Llama4Scale\(offset=-1\): offset must be at least 0"),
        ({"offset": True}, TypeError, r"Llama4Scale\(offset=True\): offset must be an integer, not bool"),
    ],
)
def test_what_is_no_llama_4_scale_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Llama4Scale(**options)


# LogN without a trained length


@pytest.mark.parametrize("clip", [True, False])
def test_without_a_trained_length_the_factor_is_the_natural_logarithm(clip):
    q, k, v = inputs(dv=5)
    ours = attend(q, k, v, Scheme(LogN(None, clip=clip), causal))
    assert_same(ours, sharpened(q, k, v, lambda i: max(1.0, math.log(i + 1)) if clip else math.log(i + 1)))


def test_an_encoder_without_a_trained_length_counts_the_whole_text():
    q, k, v = inputs()
    dot = dots(q, k)
    ours = attend(q, k, v, Scheme(LogN(None, clip=False, count="length")))
    assert_same(ours, plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) * math.log(11)))
    index = torch.tensor([[0, 1, 10, 999]])
    assert LogN(None, clip=False).sharpen(index, ONE)[0].tolist() == [0, math.log(2), math.log(11), math.log(1000)]


def test_a_trained_length_divides_the_logarithm():
    q, k, v = inputs()
    by_both = attend(q, k, v, Scheme(LogN(5, clip=False), causal))
    scaled = Scheme(LogN(None, clip=False), Scale(1 / math.sqrt(8) / math.log(5)), causal)
    assert_same(attend(q, k, v, scaled), by_both)


# SoftmaxOne


def test_one_is_added_to_the_denominator():
    q, k, v = inputs(dv=5)
    dot = dots(q, k)
    oracle = attention(
        (2, 4, 11, 11),
        lambda b, h, i, j: dot(b, h, i, j) if j <= i else -math.inf,
        lambda b, h, i, j: v[b, h // 2, j],
        torch.zeros(4),
    )
    assert_same(attend(q, k, v, Scheme(SoftmaxOne(4), causal)), oracle)
    exponents = torch.exp(q @ k.repeat_interleave(2, 1).mT / math.sqrt(8) + hidden_future(11))
    assert_same(exponents / (1 + exponents.sum(-1, keepdim=True)) @ v.repeat_interleave(2, 1), oracle)


def test_it_is_a_key_of_zeros_with_a_value_of_zeros():
    q, k, v = inputs(g=4)
    longer = [torch.cat([x, torch.zeros(2, 4, 1, 8, dtype=torch.float64)], 2) for x in (k, v)]
    assert_same(attend(q, k, v, Scheme(SoftmaxOne(4))), F.scaled_dot_product_attention(q, *longer))
    # The same key beside ALiBi: nothing is bent that stands nowhere.
    ours = attend(q, k, v, Scheme(SoftmaxOne(4), Alibi(4), causal))
    at, slope = torch.arange(11), torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
    bias = slope.view(4, 1, 1) * (at - at[:, None]) + hidden_future(11)
    assert_same(ours, F.scaled_dot_product_attention(q, *longer, attn_mask=F.pad(bias, (0, 1))))


def test_it_equals_the_zero_attention_of_torch():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(32, 4, add_zero_attn=True, batch_first=True).double()
    x = torch.randn(2, 11, 32, dtype=torch.float64)
    q, k, v = (
        F.linear(x, weight, bias).view(2, 11, 4, 8).transpose(1, 2)
        for weight, bias in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    )
    ours = layer.out_proj(attend(q, k, v, Scheme(SoftmaxOne(4))).transpose(1, 2).flatten(2))
    assert_same(ours, layer(x, x, x, need_weights=False)[0])


def test_it_is_the_learned_sink_before_it_learns():
    q, k, v = inputs()
    ours, lse = attend(q, k, v, Scheme(SoftmaxOne(4), causal), return_lse=True)
    peer, peer_lse = attend(q, k, v, Scheme(SinkLogit(4), causal), return_lse=True)
    assert torch.equal(ours, peer)
    assert torch.equal(lse, peer_lse)
    assert list(Scheme(SoftmaxOne(4)).parameters()) == []


def test_a_query_that_no_key_suits_attends_to_nothing():
    q, k, v = inputs()
    q[..., 0], k[..., 0] = 60.0, -60.0
    assert float(attend(q, k, v, Scheme(SoftmaxOne(4), causal)).abs().max()) < 1e-300


@pytest.mark.parametrize(
    ("heads", "error", "text"),
    [
        (0, ValueError, r"SoftmaxOne\(heads=0\): heads must be at least 1"),
        (-1, ValueError, r"SoftmaxOne\(heads=-1\): heads must be at least 1"),
        (4.0, TypeError, r"SoftmaxOne\(heads=4.0\): heads must be an integer, not float"),
    ],
)
def test_no_heads_at_all_are_refused(heads, error, text):
    with pytest.raises(error, match=text):
        SoftmaxOne(heads)


def test_queries_of_another_head_count_are_refused():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"SoftmaxOne\(8\) was given q with 4 heads"):
        attend(q, k, v, Scheme(SoftmaxOne(8)))


@pytest.mark.parametrize("backend", [None, "reference", "chunked", "sdpa"])
@pytest.mark.parametrize(("offset", "least"), [(0, -1), (1, -2), (0, -9)])
def test_padding_before_the_first_index_gives_finite_outputs_and_gradients(backend, offset, least):
    # ln(1 + ⌊−1/chunk⌋) has no value.
    q, k, v = (each.requires_grad_() for each in inputs(t=6))
    index = torch.tensor([[0, 1, 2, 3, 4, 5], [least, least, 0, 1, 2, 3]])
    documents = torch.where(index < 0, -1, 0)
    scheme = Scheme(Llama4Scale(chunk=1, offset=offset), causal)
    out = attend(q, k, v, scheme, index=index, key_index=index, documents=documents, backend=backend)
    assert (out[1, :, :2] == 0).all()
    short = [each[1:, :, 2:] for each in (q, k, v)]
    assert_same(out[1:, :, 2:], attend(*short, scheme))
    for grad in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert grad.isfinite().all()
