"""gpt-oss's sinks and window, Gemma 2's soft cap, Llama 4's chunks and temperature: whole attention layers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Gemma2Config, GptOssConfig, Llama4TextConfig
from transformers.masking_utils import chunked_causal_mask_function, sliding_window_causal_mask_function
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

from milepost import (
    Cache,
    Llama4Scale,
    Nope,
    Rope,
    Scale,
    Scheme,
    SinkLogit,
    SoftCap,
    attend,
    causal,
    chunks,
    window,
)
from tests.oracles import assert_same
from tests.parity import peers
from tests.parity.peers import (
    EXACT,
    U,
    assert_within,
    behind,
    halves,
    hides,
    left_padded,
    merge,
    random,
    split,
    tokens,
    turns,
)

HEADS, GROUPS, DIM, WIDTH, T = 4, 2, 16, 24, 14
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": DIM,
    "num_hidden_layers": 4,
}  # fmt: skip


def heads_of(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (split(project(x), DIM) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    return q, k, v


def pairs_of(t: int) -> tuple[int, int, Tensor, Tensor]:
    """Batch, head, queries and keys, as transformers' mask functions take them."""
    return 0, 0, torch.arange(t)[:, None], torch.arange(t)


def gpt_oss_layer(layer: int) -> tuple[GptOssAttention, Scheme]:
    """A layer and its scheme; those of even number have a window."""
    config = GptOssConfig(**SIZES, sliding_window=5, attention_bias=True)
    config._attn_implementation = "eager"
    peer = random(GptOssAttention(config, layer_idx=layer))
    sink = SinkLogit(HEADS).double()
    sink.logit.data.copy_(peer.sinks)
    return peer, Scheme(Rope(DIM, theta=150000.0), sink, causal if peer.sliding_window is None else window(5))


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1], ids=["window", "full"])
def test_gpt_oss_gives_the_same(layer: int):
    peer, scheme = gpt_oss_layer(layer)
    assert (peer.sliding_window == 5) == (layer == 0)
    x, real = tokens(3, T, WIDTH), left_padded(3, T, (0, 3, 8))
    seen = sliding_window_causal_mask_function(5)(*pairs_of(T)) if layer == 0 else behind(T)
    position = (real.cumsum(-1) - 1).clamp(min=0)
    theirs, _ = peer(x, turns(position, DIM, 150000.0), hides(real[:, None, None].bool() & seen))
    ours = peer.o_proj(merge(attend(*heads_of(peer, x), scheme, documents=real - 1)))
    assert_same(ours[real.bool()], theirs[real.bool()], within=EXACT)


@torch.no_grad()
def test_gpt_oss_decodes_the_same_from_a_trimmed_cache():
    peer, scheme = gpt_oss_layer(0)
    x, theirs, ours = tokens(2, T, WIDTH), DynamicCache(), Cache()
    for t in range(T):
        seen = sliding_window_causal_mask_function(5)(*pairs_of(t + 1))[-1:]
        found, _ = peer(x[:, t : t + 1], turns(torch.tensor([[t]]), DIM, 150000.0), hides(seen), theirs)
        q, k, v = heads_of(peer, x[:, t : t + 1])
        ours.append(k, v)
        mine = attend(q, ours.keys, ours.values, scheme, key_index=ours.index, index=ours.index[:, -1:])
        ours.trim(scheme)
        assert_same(peer.o_proj(merge(mine)), found, within=EXACT)
    assert len(ours) == 4


def test_the_sinks_of_gpt_oss_get_the_same_gradient():
    peer, scheme = gpt_oss_layer(0)
    x, wanted = tokens(2, T, WIDTH), tokens(2, T, WIDTH, seed=2)
    mask = hides(sliding_window_causal_mask_function(5)(*pairs_of(T)))
    theirs, _ = peer(x, turns(torch.arange(T)[None], DIM, 150000.0), mask)
    (expected,) = torch.autograd.grad((theirs * wanted).sum(), peer.sinks)
    ours = peer.o_proj(merge(attend(*heads_of(peer, x), scheme)))
    (found,) = torch.autograd.grad((ours * wanted).sum(), scheme.parts[1].logit)
    assert_same(found, expected, within=EXACT)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1], ids=["window", "full"])
@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_gemma_2_gives_the_same_up_to_its_float32_softmax(layer: int, cap: float):
    config = Gemma2Config(**SIZES, sliding_window=5, query_pre_attn_scalar=9, attn_logit_softcapping=cap)
    config._attn_implementation = "eager"
    peer, x, real = random(Gemma2Attention(config, layer_idx=layer)), tokens(3, T, WIDTH), left_padded(3, T, (0, 3, 8))
    seen = sliding_window_causal_mask_function(5)(*pairs_of(T)) if peer.sliding_window else behind(T)
    tables = halves(*turns((real.cumsum(-1) - 1).clamp(min=0), DIM))
    theirs, weights = peer(x, tables, hides(real[:, None, None].bool() & seen))
    scheme = Scheme(Rope(DIM), SoftCap(cap), Scale(1 / 3), window(5) if layer == 0 else causal)
    q, k, v = heads_of(peer, x)
    ours = peer.o_proj(merge(attend(q, k, v, scheme, documents=real - 1)))
    error = peers.weight_error(peers.score_sizes(q, k, 1 / 3).clamp(max=cap), T)
    allowed = peers.output_error(error, weights, v, peer.o_proj.weight)
    assert_within(ours[real.bool()], theirs[real.bool()], allowed[real.bool()])


def llama_4_layer(layer: int) -> Llama4TextAttention:
    config = Llama4TextConfig(
        **SIZES, attention_chunk_size=5, use_qk_norm=False, floor_scale=4, attn_scale=0.7, attn_temperature_tuning=True
    )
    config._attn_implementation = "eager"
    peer = random(Llama4TextAttention(config, layer_idx=layer))
    assert bool(peer.use_rope) == (layer != 3)
    return peer


@torch.no_grad()
def test_llama_4_gives_the_same_in_chunks_up_to_its_float32_turn():
    peer, x, real = llama_4_layer(0), tokens(3, T, WIDTH), left_padded(3, T, (0, 3, 8))
    # Chunks are counted from the first real token there as well.
    skipped = real.argmax(-1)
    seen = torch.stack([chunked_causal_mask_function(5, skipped)(row, *pairs_of(T)[1:]) for row in range(3)])[:, None]
    position = (real.cumsum(-1) - 1).clamp(min=0)
    freqs = torch.complex(*turns(position, DIM, 5e5))
    theirs, weights = peer(x, freqs, hides(real[:, None, None].bool() & seen))
    q, k, v = heads_of(peer, x)
    scheme = Scheme(Rope(DIM, theta=5e5, pairs="neighbours"), causal & chunks(5))
    ours = peer.o_proj(merge(attend(q, k, v, scheme, documents=real - 1)))
    # Queries and keys are rounded to float32, which costs scores 2 U of themselves, and weights twice that.
    error = 2 * 2 * U * peers.score_sizes(q, k, DIM**-0.5)
    allowed = peers.output_error(error, weights, v, peer.o_proj.weight)
    assert_within(ours[real.bool()], theirs[real.bool()], allowed[real.bool()])


@torch.no_grad()
def test_llama_4_gives_the_same_without_positions_up_to_its_float32_temperature():
    peer, x = llama_4_layer(3), tokens(2, T, WIDTH)
    theirs, weights = peer(x, torch.ones(0), hides(behind(T)))
    q, k, v = heads_of(peer, x)
    ours = peer.o_proj(merge(attend(q, k, v, Scheme(Nope(), Llama4Scale(chunk=4, weight=0.7), causal))))
    # A float32 logarithm, product and sum: 4 U at most of a temperature of 1 + 0.7 · ln 4, and weights twice that.
    error = 2 * 4 * U * peers.score_sizes(q, k, DIM**-0.5) * (1 + 0.7 * math.log(4))
    assert_within(ours, theirs, peers.output_error(error, weights, v, peer.o_proj.weight))
    plain = peer.o_proj(merge(attend(q, k, v, Scheme(Nope(), causal))))
    assert (plain - theirs).abs().max() > 0.01
