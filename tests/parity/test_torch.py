"""What torch itself has: its attention, FlexAttention's documented examples and nn.MultiheadAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import (
    Alibi,
    Kerple,
    Nope,
    Rope,
    Scale,
    Scheme,
    SoftCap,
    T5Bias,
    Yarn,
    attend,
    causal,
    chunks,
    everything,
    sinks,
    window,
)
from tests.oracles import assert_same, inputs

# scaled_dot_product_attention


def test_without_positions_it_is_torchs_causal_attention():
    q, k, v = inputs(g=4, t=11, dv=5)
    assert_same(attend(q, k, v, Scheme(Nope(), causal)), sdpa(q, k, v, is_causal=True))
    assert_same(attend(q, k, v, Scheme(Nope())), sdpa(q, k, v))
    assert_same(attend(q, k, v, Scheme(everything)), sdpa(q, k, v))


@pytest.mark.parametrize("g", [1, 2, 4])
def test_grouped_queries_share_keys_as_torchs_do(g):
    q, k, v = inputs(h=4, g=g, t=11)
    assert_same(attend(q, k, v, Scheme(Nope(), causal)), sdpa(q, k, v, is_causal=True, enable_gqa=True))


def test_fewer_queries_than_keys_are_the_last_of_them():
    # torch's is_causal counts from the first key; its causal_lower_right is what decoding means.
    q, k, v = inputs(g=4, t=4, s=11)
    assert_same(attend(q, k, v, Scheme(causal)), sdpa(q, k, v, attn_mask=causal_lower_right(4, 11)))
    first = attend(q, k, v, Scheme(causal), index=torch.arange(4))
    assert_same(first, sdpa(q, k, v, attn_mask=causal_upper_left(4, 11)))
    assert_same(first, sdpa(q, k, v, is_causal=True))


def test_a_scale_is_torchs_scale():
    q, k, v = inputs(g=4, t=11)
    assert_same(attend(q, k, v, Scheme(Scale(0.3), causal)), sdpa(q, k, v, is_causal=True, scale=0.3))


@pytest.mark.parametrize("stretch", [None, Yarn(8, trained=4)])
def test_turned_queries_and_keys_may_go_to_torch(stretch):
    q, k, v = inputs(g=4, t=4, s=11)
    rope = Rope(8, stretch=stretch)
    one, two = rope.turn(q, torch.arange(7, 11), length=11), rope.turn(k, torch.arange(11), "key", 11)
    theirs = sdpa(one, two, v, attn_mask=causal_lower_right(4, 11))
    assert_same(attend(q, k, v, Scheme(rope, causal)), theirs)


@pytest.mark.parametrize("part", [Alibi(4), T5Bias(4, buckets=8, reach=9), Kerple(4)], ids=repr)
def test_a_bias_may_go_to_torch_as_its_mask(part):
    q, k, v = inputs(t=4, s=11)
    scheme = Scheme(part, causal).double().requires_grad_(False)
    bias = scheme.bias(torch.arange(7, 11), torch.arange(11), dtype=torch.float64)
    assert_same(attend(q, k, v, scheme), sdpa(q, k, v, attn_mask=bias, enable_gqa=True))


# FlexAttention: the score_mods and mask_mods of its documentation

plainly_run = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def flexed(q: Tensor, k: Tensor, v: Tensor, score_mod: Any = None, mask_mod: Any = None) -> Tensor:
    t, s = q.shape[2], k.shape[2]
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, t, s, device="cpu")
    with torch.no_grad():
        out = flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True)
    assert isinstance(out, Tensor)
    return out


def documented_causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


@plainly_run
def test_the_documented_alibi():
    q, k, v = inputs(t=11)
    slopes = torch.exp2(-((torch.arange(4, dtype=torch.float64) + 1) * 8.0 / 4))

    def alibi(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + slopes[h] * (kv_idx - q_idx)

    assert_same(attend(q, k, v, Scheme(Alibi(4), causal)), flexed(q, k, v, alibi, documented_causal))


@plainly_run
def test_the_documented_soft_cap():
    q, k, v = inputs(t=11)

    def tanh_softcap(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return 0.5 * torch.tanh(score / 0.5)

    assert_same(attend(q, k, v, Scheme(SoftCap(0.5), causal)), flexed(q, k, v, tanh_softcap, documented_causal))


@plainly_run
@pytest.mark.parametrize(
    ("mask_mod", "visible"),
    [
        (documented_causal, causal),
        # Theirs lets the difference be as large as the window, so it shows one key more than the number says.
        (lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx <= 3), causal & window(4)),
        (lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (kv_idx <= 2), causal | sinks(3)),
        (lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx // 4 == kv_idx // 4), causal & chunks(4)),
    ],
    ids=["causal", "sliding window", "prefix", "blocks"],
)
def test_the_documented_masks(mask_mod: Callable[..., Tensor], visible):
    q, k, v = inputs(t=11)
    assert_same(attend(q, k, v, Scheme(visible)), flexed(q, k, v, mask_mod=mask_mod))


@plainly_run
def test_the_documented_mask_of_packed_documents():
    q, k, v = inputs(t=11)
    document = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2])

    def document_masking(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (document[q_idx] == document[kv_idx])

    assert_same(attend(q, k, v, Scheme(causal), documents=document), flexed(q, k, v, mask_mod=document_masking))


@plainly_run
def test_turned_queries_and_keys_may_go_to_flex_attention():
    q, k, v = inputs(t=11)
    at, rope = torch.arange(11), Rope(8)
    theirs = flexed(rope.turn(q, at), rope.turn(k, at, "key"), v, mask_mod=documented_causal)
    assert_same(attend(q, k, v, Scheme(rope, causal)), theirs)


# nn.MultiheadAttention


def multihead(layer: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, keys and values [b h t d] that a layer makes of x [b t D]."""
    made = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    q, k, v = (each.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for each in made.chunk(3, -1))
    return q, k, v


def layer_of(width: int, heads: int) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        weight.normal_(std=0.3, generator=generator)
    return layer


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(causal),
        Scheme(Alibi(4), causal),
        Scheme(Alibi(4)),
        Scheme(T5Bias(4, buckets=8, reach=9, bidirectional=True)),
    ],
    ids=repr,
)
def test_our_bias_is_a_mask_for_multihead_attention(scheme):
    scheme = scheme.double().requires_grad_(False)
    layer, index = layer_of(32, 4), torch.arange(9)
    x = torch.randn(2, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bias = scheme.bias(index, index, dtype=torch.float64).expand(2, 4, 9, 9)
    theirs, weights = layer(x, x, x, attn_mask=bias.reshape(8, 9, 9), average_attn_weights=False)
    q, k, v = multihead(layer, x)
    ours = attend(q, k, v, scheme)
    assert_same(layer.out_proj(ours.transpose(1, 2).flatten(2)), theirs)
    # And its weights are ours: values that tell keys apart come out as the weights.
    assert_same(attend(q, k, torch.eye(9, dtype=torch.float64).expand(2, 4, 9, 9), scheme), weights)


def test_a_padding_mask_is_a_document():
    layer = layer_of(32, 4)
    x = torch.randn(2, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, :3] = padding[1, 7:] = True
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    theirs, _ = layer(x, x, x, attn_mask=future, key_padding_mask=padding)
    q, k, v = multihead(layer, x)
    ours = attend(q, k, v, Scheme(causal), documents=torch.where(padding, -1, 0))
    ours = layer.out_proj(ours.transpose(1, 2).flatten(2))
    # Rows of padding are theirs to fill; ours are zeros before the last projection.
    assert_same(ours[~padding], theirs[~padding])
    assert_same(ours[padding], layer.out_proj.bias.expand(5, -1))


def test_the_scale_is_that_of_the_head():
    # One over the root of a head's width, not of the model's.
    layer = layer_of(32, 4)
    x = torch.randn(1, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k, v = multihead(layer, x)
    weights = (q @ k.mT / math.sqrt(8)).softmax(-1)
    assert_same(attend(q, k, v, Scheme(Nope())), weights @ v)
    assert_same(layer.out_proj((weights @ v).transpose(1, 2).flatten(2)), layer(x, x, x)[0])
