"""Scale, SoftCap, SinkLogit and Nope against their formulas and against other people's code."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from milepost import Alibi, LogN, Nope, Scale, Scheme, SinkLogit, SoftCap, attend, causal
from tests.oracles import assert_same, attention, dots, hidden_future, inputs, plain

# Scale


@pytest.mark.parametrize("value", [1.0, 0.37, 0.0, -2, 3])
def test_dot_products_are_multiplied_by_the_number(value):
    q, k, v = inputs(dv=5)
    dot = dots(q, k, value)
    oracle = plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(Scale(value), causal)), oracle)
    assert_same(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=value, enable_gqa=True), oracle)


def test_one_over_the_root_of_the_width_is_what_one_gets_without():
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(Scale(8**-0.5), causal)), attend(q, k, v, Scheme(causal)))


def test_log_n_sharpens_a_scale_of_ones_own():
    q, k, v = inputs()
    dot = dots(q, k, 0.5)

    def score(b, h, i, j):
        return dot(b, h, i, j) * math.log(i + 1) / math.log(4) if j <= i else -math.inf

    assert_same(attend(q, k, v, Scheme(Scale(0.5), LogN(4, clip=False), causal)), plain(q, k, v, score))


def test_two_scales_are_refused():
    with pytest.raises(ValueError, match=r"Scale\(1\) and Scale\(2\) both set the scale; keep one"):
        Scheme(Scale(1.0), Scale(2.0))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (math.nan, ValueError, r"Scale\(value=nan\): value must be finite"),
        (math.inf, ValueError, r"Scale\(value=inf\): value must be finite"),
        ("1.0", TypeError, r"Scale\(value='1.0'\): value must be a number, not str"),
        (True, TypeError, r"Scale\(value=True\): value must be a number, not bool"),
        (None, TypeError, r"Scale\(value=None\): value must be a number, not NoneType"),
    ],
)
def test_what_is_no_scale_is_refused(value, error, text):
    with pytest.raises(error, match=text):
        Scale(value)


# SoftCap


def test_scores_are_held_within_the_cap():
    q, k, v = inputs(dv=5)
    dot = dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: 0.7 * torch.tanh(dot(b, h, i, j) / 0.7) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(SoftCap(0.7), causal)), oracle)


def test_the_cap_acts_where_it_is_listed_among_the_parts_that_bend():
    q, k, v = inputs()
    dot = dots(q, k)

    def penalty(h, i, j):
        return 2 ** (-2 * (h + 1)) * (i - j)

    def after(b, h, i, j):
        return 2 * torch.tanh((dot(b, h, i, j) - penalty(h, i, j)) / 2) if j <= i else -math.inf

    def before(b, h, i, j):
        return 2 * torch.tanh(dot(b, h, i, j) / 2) - penalty(h, i, j) if j <= i else -math.inf

    assert_same(attend(q, k, v, Scheme(Alibi(4), SoftCap(2), causal)), plain(q, k, v, after))
    assert_same(attend(q, k, v, Scheme(SoftCap(2), Alibi(4), causal)), plain(q, k, v, before))


def test_it_equals_the_capped_attention_of_gemma():
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    q, k, v = inputs()
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    peer, _ = gemma.eager_attention_forward(module, q, k, v, hidden_future(11), scaling=0.3, softcap=1.5)
    ours = attend(q, k, v, Scheme(SoftCap(1.5), Scale(0.3), causal))
    # Theirs takes the softmax in float32.
    assert_same(ours, peer.transpose(1, 2), within=2e-6)


def test_a_wide_cap_changes_nothing():
    q, k, v = inputs()
    # cap·tanh(x/cap) = x − x³/(3 cap²) + …
    assert_same(attend(q, k, v, Scheme(SoftCap(1e8), causal)), attend(q, k, v, Scheme(causal)))


@pytest.mark.parametrize(
    ("cap", "error", "text"),
    [
        (0, ValueError, r"SoftCap\(cap=0\): cap must be greater than 0"),
        (-30.0, ValueError, r"SoftCap\(cap=-30.0\): cap must be greater than 0"),
        (math.inf, ValueError, r"SoftCap\(cap=inf\): cap must be finite"),
        (math.nan, ValueError, r"SoftCap\(cap=nan\): cap must be finite"),
        ("50", TypeError, r"SoftCap\(cap='50'\): cap must be a number, not str"),
    ],
)
def test_what_is_no_cap_is_refused(cap, error, text):
    with pytest.raises(error, match=text):
        SoftCap(cap)


# SinkLogit


def sink(*logits: float) -> SinkLogit:
    method = SinkLogit(len(logits)).double()
    method.logit.data.copy_(torch.tensor(logits, dtype=torch.float64))
    return method


def test_each_head_may_put_weight_on_nothing():
    q, k, v = inputs(dv=5)
    dot, rest = dots(q, k), torch.tensor([1.5, -2.0, 0.0, 4.0])
    oracle = attention(
        (2, 4, 11, 11),
        lambda b, h, i, j: dot(b, h, i, j) if j <= i else -math.inf,
        lambda b, h, i, j: v[b, h // 2, j],
        rest,
    )
    assert_same(attend(q, k, v, Scheme(sink(*rest.tolist()), causal)), oracle)


def test_logits_start_at_zero_which_is_the_softmax_with_one_added_below():
    q, k, v = inputs()
    assert SinkLogit(4).logit.tolist() == [0.0] * 4
    scores = torch.exp(q @ k.repeat_interleave(2, 1).mT / math.sqrt(8) + hidden_future(11))
    expected = scores / (1 + scores.sum(-1, keepdim=True)) @ v.repeat_interleave(2, 1)
    assert_same(attend(q, k, v, Scheme(SinkLogit(4), causal)), expected)


def test_it_is_a_key_that_scores_the_logit_and_brings_nothing():
    q, k, v = inputs(g=4)
    logits = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    nothing = torch.zeros(2, 4, 1, 8, dtype=torch.float64)
    bias = torch.cat([torch.zeros(4, 11, 11, dtype=torch.float64), logits.view(4, 1, 1).expand(4, 11, 1)], -1)
    peer = F.scaled_dot_product_attention(q, torch.cat([k, nothing], 2), torch.cat([v, nothing], 2), attn_mask=bias)
    assert_same(attend(q, k, v, Scheme(sink(*logits.tolist()))), peer)


def test_it_equals_the_sinks_of_gpt_oss():
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    q, k, v = inputs()
    method = sink(0.5, -1.0, 2.0, 0.1)
    module = SimpleNamespace(num_key_value_groups=2, sinks=method.logit, training=False)
    peer, _ = gpt_oss.eager_attention_forward(module, q, k, v, hidden_future(11), scaling=0.3)
    assert_same(attend(q, k, v, Scheme(method, Scale(0.3), causal)), peer.transpose(1, 2))


def test_a_logit_of_minus_infinity_is_plain_attention():
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(sink(*[-math.inf] * 4), causal)), attend(q, k, v, Scheme(causal)))


def test_the_log_sum_exp_counts_the_logit():
    q, k, v = inputs()
    method = sink(0.5, -1.0, 2.0, 0.1)
    scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(8) + hidden_future(11)
    with_rest = torch.cat([scores, method.logit.detach().view(1, 4, 1, 1).expand(2, 4, 11, 1)], -1)
    _, lse = attend(q, k, v, Scheme(method, causal), return_lse=True)
    assert_same(lse, with_rest.exp().sum(-1).log())


def test_two_sinks_add_up():
    q, k, v = inputs()
    ours = attend(q, k, v, Scheme(sink(0.5, -1.0, 2.0, 0.1), sink(1.0, 1.0, -3.0, 0.0), causal))
    both = [math.log(math.exp(a) + math.exp(b)) for a, b in zip((0.5, -1, 2, 0.1), (1, 1, -3, 0), strict=True)]
    assert_same(ours, attend(q, k, v, Scheme(sink(*both), causal)))


@pytest.mark.parametrize(
    ("heads", "error", "text"),
    [
        (0, ValueError, r"SinkLogit\(heads=0\): heads must be at least 1"),
        (4.0, TypeError, r"SinkLogit\(heads=4.0\): heads must be an integer, not float"),
        (False, TypeError, r"SinkLogit\(heads=False\): heads must be an integer, not bool"),
    ],
)
def test_a_sink_without_heads_is_refused(heads, error, text):
    with pytest.raises(error, match=text):
        SinkLogit(heads)


# Nope


def test_without_positions_attention_is_plain():
    q, k, v = inputs(dv=5)
    dot = dots(q, k)
    causal_oracle = plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(Nope(), causal)), causal_oracle)
    assert_same(attend(q, k, v, Scheme(Nope())), F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_without_positions_and_mask_order_does_not_matter():
    q, k, v = inputs()
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    assert_same(attend(q, k[:, :, order], v[:, :, order], Scheme(Nope())), attend(q, k, v, Scheme(Nope())))


def test_a_causal_mask_alone_tells_order():
    q, k, v = inputs()
    order = torch.arange(11).flip(0)
    scheme = Scheme(Nope(), causal)
    plainly, mixed = attend(q, k, v, scheme), attend(q, k[:, :, order], v[:, :, order], scheme)
    # The last query sees the same set of keys; an earlier one does not.
    assert_same(mixed[:, :, -1], plainly[:, :, -1])
    assert float((mixed[:, :, 3] - plainly[:, :, 3]).abs().max()) > 0.1


def test_positions_mean_nothing_to_it():
    q, k, v = inputs()
    place = torch.arange(11) * 1000.5
    scheme = Scheme(Nope(), causal)
    assert torch.equal(attend(q, k, v, scheme, position=place, key_position=place), attend(q, k, v, scheme))
    assert scheme.relative
