"""x-transformers beside us: CoPE, ALiBi, xPos, and the two ways of attending to nothing."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milepost import Alibi, Cope, Scheme, SinkLogit, SoftmaxOne, Xpos, attend, causal
from tests.oracles import assert_same, inputs

theirs = pytest.importorskip("x_transformers.x_transformers")


def attention(**options: object) -> torch.nn.Module:
    """Their attention over q, k and v that are ready, in float64 (by itself it takes the softmax in float32)."""
    return theirs.Attend(custom_attn_fn=functools.partial(F.softmax, dim=-1), **options).double()


def cope(positions: int = 5, heads: int = 4, dim: int = 8) -> torch.nn.Module:
    torch.manual_seed(1)
    module = theirs.CoPE(dim, heads, positions).double()
    torch.nn.init.normal_(module.pos_emb, std=2.0)
    return module


def like(module: torch.nn.Module) -> Cope:
    """Ours with their table: they add what the table says to scores that are divided by √d already."""
    method = Cope(module.pos_emb.shape[1], module.max_pos, after_scale=True).double()
    method.table.data.copy_(module.pos_emb)
    return method


# CoPE


@torch.no_grad()
@pytest.mark.parametrize("positions", [2, 5, 12])
def test_cope_is_theirs_added_after_the_scale(positions):
    q, k, v = inputs(g=4, dv=5)
    module = cope(positions)
    peer, _ = attention(causal=True, heads=4, cope=module)(q, k, v)
    assert_same(attend(q, k, v, Scheme(like(module), causal)), peer)
    divided = Cope(8, positions).double()
    divided.table.copy_(module.pos_emb)
    assert float((attend(q, k, v, Scheme(divided, causal)) - peer).abs().max()) > 1e-2


def test_cope_has_their_gradients():
    q, k, v = (x.requires_grad_() for x in inputs(g=4))
    module = cope()
    method = like(module)
    ours, (peer, _) = (
        attend(q, k, v, Scheme(method, causal)),
        attention(causal=True, heads=4, cope=module)(q, k, v),
    )
    mine = torch.autograd.grad(ours.square().sum(), (q, k, v, method.table))
    for one, other in zip(mine, torch.autograd.grad(peer.square().sum(), (q, k, v, module.pos_emb)), strict=True):
        assert_same(one, other, within=1e-11)


@torch.no_grad()
def test_the_gates_of_hidden_keys_are_shut_in_theirs_too():
    # They take the gates from masked scores, so padding counts for nothing.
    q, k, v = inputs(g=4)
    real = torch.ones(2, 11, dtype=torch.bool)
    real[0, 4:6] = real[1, 8:] = False
    module = cope(12)
    peer, _ = attention(causal=True, heads=4, cope=module)(q, k, v, mask=real)
    ours = attend(q, k, v, Scheme(like(module), causal), documents=torch.where(real, 0, -1))
    seen = real[:, None, :, None].expand_as(ours)
    assert_same(ours[seen], peer[seen])


@torch.no_grad()
def test_cope_decodes_one_token_as_theirs_does():
    q, k, v = inputs(t=1, s=9, g=4)
    module = cope()
    peer, _ = attention(causal=True, heads=4, cope=module)(q, k, v)
    assert_same(attend(q, k, v, Scheme(like(module), causal)), peer)


@torch.no_grad()
def test_gates_on_scores_see_the_bias_beside_them_as_theirs_do():
    q, k, v = inputs(g=4)
    module = cope()
    bias = theirs.AlibiPositionalBias(heads=4)(11, 11).double()
    peer, _ = attention(causal=True, heads=4, cope=module)(q, k, v, attn_bias=bias)
    assert_same(attend(q, k, v, Scheme(like(module), Alibi(4), causal)), peer)


# ALiBi


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 40])
@pytest.mark.parametrize(("t", "s"), [(9, 9), (4, 9)])
def test_the_bias_of_alibi_is_theirs(heads, t, s):
    peer = theirs.AlibiPositionalBias(heads=heads)(t, s)
    ours = Scheme(Alibi(heads)).bias(torch.arange(s - t, s), torch.arange(s), dtype=torch.float64)[0]
    # Their slopes are float32, and so is their product with distances below 9.
    assert_same(ours, peer, within=8 * 2 * 2**-24)


@pytest.mark.parametrize("sees_ahead", [True, False])
@pytest.mark.parametrize("heads", [4, 6])
def test_attention_with_alibi_is_theirs(heads, sees_ahead):
    q, k, v = inputs(h=heads, g=heads, dv=5)
    bias = theirs.AlibiPositionalBias(heads=heads)(11, 11).double()
    peer, _ = attention(causal=not sees_ahead, heads=heads)(q, k, v, attn_bias=bias)
    # The slopes of four and of six heads are powers of two.
    assert_same(attend(q, k, v, Scheme(Alibi(heads), *(() if sees_ahead else (causal,)))), peer)


def test_positions_of_ones_own_mean_the_same_to_both():
    q, k, v = inputs(g=4)
    place = torch.randint(0, 50, (2, 11), generator=torch.Generator().manual_seed(0))
    bias = theirs.AlibiPositionalBias(heads=4).forward_custom_pos(place).double()
    peer, _ = attention(causal=True, heads=4)(q, k, v, attn_bias=bias)
    assert_same(attend(q, k, v, Scheme(Alibi(4), causal), position=place, key_position=place), peer)


# xPos


def rotary(dim: int, fade: int) -> torch.nn.Module:
    """Theirs with frequencies and ζ as they are meant: their own are float32."""
    module = theirs.RotaryEmbedding(dim, use_xpos=True, scale_base=fade).double()
    n = torch.arange(0, dim, 2, dtype=torch.float64)
    assert_same(module.inv_freq, 10000 ** (-n / dim), within=1e-6)
    assert_same(module.scale, (n / dim + 0.4) / 1.4, within=1e-6)
    module.inv_freq.copy_(10000 ** (-n / dim))
    module.scale.copy_((n / dim + 0.4) / 1.4)
    return module


def turned(module: torch.nn.Module, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys under their rotation; queries are the last of the keys."""
    freqs, scale = module.forward_from_seq_len(k.shape[2])
    return theirs.apply_rotary_pos_emb(q, freqs, scale), theirs.apply_rotary_pos_emb(k, freqs, scale**-1)


@pytest.mark.parametrize(("t", "s"), [(11, 11), (3, 12), (1, 8)])
@pytest.mark.parametrize("fade", [512, 8])
def test_attention_with_xpos_is_theirs(fade, t, s):
    q, k, v = inputs(t=t, s=s, g=4)
    peer, _ = attention(causal=True, heads=4)(*turned(rotary(8, fade), q, k), v)
    assert_same(attend(q, k, v, Scheme(Xpos(8, fade=float(fade)), causal)), peer)


def test_a_whole_layer_with_xpos_is_theirs():
    torch.manual_seed(0)
    layer = theirs.Attention(32, heads=4, dim_head=8, causal=True).double().eval()
    x = torch.randn(2, 11, 32, dtype=torch.float64)
    q, k, v = (project(x).view(2, 11, 4, 8).transpose(1, 2) for project in (layer.to_q, layer.to_k, layer.to_v))
    peer = layer(x, rotary_pos_emb=rotary(8, 512).forward_from_seq_len(11))
    ours = attend(q, k, v, Scheme(Xpos(8), causal)).transpose(1, 2).flatten(2)
    # Their layer takes the softmax in float32.
    assert_same(layer.to_out(ours), peer, within=1e-6)


# Attending to nothing


@pytest.mark.parametrize("visible", [(), (causal,)])
def test_softmax_one_is_their_key_of_zeros(visible):
    q, k, v = inputs(g=4, dv=5)
    peer, _ = attention(causal=bool(visible), heads=4, add_zero_kv=True)(q, k, v)
    assert_same(attend(q, k, v, Scheme(SoftmaxOne(4), *visible)), peer)


@torch.no_grad()
def test_the_learned_sink_is_theirs():
    q, k, v = inputs(g=4)
    module, method = attention(causal=True, heads=4, head_learned_sink=True), SinkLogit(4).double()
    torch.nn.init.normal_(method.logit)
    module.head_attn_sink.copy_(method.logit)
    assert_same(attend(q, k, v, Scheme(method, causal)), module(q, k, v)[0])
