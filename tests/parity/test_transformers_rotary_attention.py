"""Whole attention layers that turn queries and keys, weights and all, from hidden states to their output projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache
from transformers.models.cohere.modeling_cohere import CohereAttention
from transformers.models.gemma.modeling_gemma import GemmaAttention
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.phi3.modeling_phi3 import Phi3Attention
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLAttention, Qwen2VLRotaryEmbedding

from milepost import AxialRope, Cache, Partial, Rope, Scheme, attend, causal
from tests.oracles import assert_same
from tests.parity import peers
from tests.parity.peers import (
    EXACT,
    Tables,
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

HEADS, GROUPS, DIM, WIDTH = 4, 2, 16, 24
Heads = tuple[Tensor, Tensor, Tensor]


def apart(layer: Any, x: Tensor) -> Heads:
    """Queries, keys and values from projections of their own."""
    q, k, v = (split(project(x), layer.head_dim) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    return q, k, v


def in_a_row(layer: Phi3Attention, x: Tensor) -> Heads:
    """All queries, then all keys, then all values."""
    q, k, v = (split(each, DIM) for each in layer.qkv_proj(x).split([HEADS * DIM, GROUPS * DIM, GROUPS * DIM], dim=-1))
    return q, k, v


def by_head(layer: GPTNeoXAttention, x: Tensor) -> Heads:
    """Query, key and value of each head together."""
    q, k, v = layer.query_key_value(x).unflatten(-1, (HEADS, 3, -1)).permute(3, 0, 2, 1, 4)
    return q, k, v


@dataclass
class Peer:
    layer: type[Any]
    config: str
    method: Rope | Partial
    heads: Callable[[Any, Tensor], Heads] = apart
    out: str = "o_proj"
    width: int = WIDTH
    layout: Callable[[Tensor, Tensor], Tables] = halves
    cache: str = "past_key_values"

    def made(self) -> Any:
        rope = self.method.method if isinstance(self.method, Partial) else self.method
        share = {"partial_rotary_factor": rope.head_dim / DIM} if isinstance(self.method, Partial) else {}
        config = getattr(transformers, self.config)(
            hidden_size=self.width, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=DIM, pad_token_id=0,
            rope_parameters={"rope_type": "default", "rope_theta": rope.theta, **share},
        )  # fmt: skip
        # Theirs takes an eager softmax in float32; torch's own attention stays in float64.
        config._attn_implementation = "sdpa"
        return random(self.layer(config, layer_idx=0))

    def tables(self, position: Tensor) -> Tables:
        rope = self.method.method if isinstance(self.method, Partial) else self.method
        return self.layout(*turns(position, rope.head_dim, rope.theta))

    def ours(self, layer: Any, attended: Tensor) -> Tensor:
        return getattr(layer, self.out)(merge(attended))


NEIGHBOURS = Partial(Rope(8, pairs="neighbours"), of=DIM)
PEERS = {
    "Llama": Peer(LlamaAttention, "LlamaConfig", Rope(DIM, theta=5e5)),
    "Gemma": Peer(GemmaAttention, "GemmaConfig", Rope(DIM)),
    "GLM": Peer(GlmAttention, "GlmConfig", NEIGHBOURS),
    "Phi-3": Peer(Phi3Attention, "Phi3Config", Partial(Rope(12), of=DIM), in_a_row),
    "GPT-NeoX": Peer(
        GPTNeoXAttention, "GPTNeoXConfig", Partial(Rope(4), of=DIM), by_head, "dense", HEADS * DIM, cache="layer_past"
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", PEERS)
def test_a_left_padded_batch_gives_the_same(name: str):
    peer, real = PEERS[name], left_padded(3, 14, (0, 3, 8))
    layer, x = peer.made(), tokens(3, 14, peer.width)
    tables = peer.tables((real.cumsum(-1) - 1).clamp(min=0))
    theirs = layer(x, position_embeddings=tables, attention_mask=hides(real[:, None, None].bool() & behind(14)))[0]
    scheme = Scheme(peer.method, causal)
    ours = peer.ours(layer, attend(*peer.heads(layer, x), scheme, documents=real - 1))
    assert_same(ours[real.bool()], theirs[real.bool()], within=EXACT)


@torch.no_grad()
@pytest.mark.parametrize("name", PEERS)
def test_decoding_gives_the_same_from_raw_keys_as_from_turned_ones(name: str):
    peer, scheme = PEERS[name], Scheme(PEERS[name].method, causal)
    layer, x = peer.made(), tokens(2, 14, peer.width)
    theirs, ours = DynamicCache(), Cache()
    for first, last in [(0, 9), *((t, t + 1) for t in range(9, 14))]:
        now = x[:, first:last]
        tables = peer.tables(torch.arange(first, last)[None])
        mask = hides(behind(last - first, last)).expand(2, 1, -1, -1)
        found = layer(now, position_embeddings=tables, attention_mask=mask, **{peer.cache: theirs})[0]
        q, k, v = peer.heads(layer, now)
        ours.append(k, v)
        mine = peer.ours(layer, attend(q, ours.keys, ours.values, scheme, key_index=ours.index))
        assert_same(mine, found, within=EXACT)


@torch.no_grad()
@pytest.mark.parametrize("norm", [False, True])
def test_cohere_gives_the_same_up_to_its_float32_turn_and_softmax(norm: bool):
    config = transformers.CohereConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, num_key_value_heads=GROUPS, use_qk_norm=norm
    )
    config._attn_implementation = "eager"
    layer, x = random(CohereAttention(config, layer_idx=0)), tokens(2, 14, HEADS * DIM)
    theirs, weights = layer(x, peers.twice(*turns(torch.arange(14)[None], DIM)), hides(behind(14)))
    q, k, v = apart(layer, x)
    if norm:
        # The norm comes before the turn, so it stays outside of the scheme.
        q, k = layer.q_norm(q.transpose(1, 2)).transpose(1, 2), layer.k_norm(k.transpose(1, 2)).transpose(1, 2)
    ours = layer.o_proj(merge(attend(q, k, v, Scheme(Rope(DIM, pairs="neighbours"), causal))))
    sizes = peers.score_sizes(q, k, DIM**-0.5)
    # Besides the softmax, queries and keys are rounded to float32: 2 U of a score, which count twice in the weights.
    error = peers.weight_error(sizes, 14) + 2 * 2 * U * sizes
    assert_within(ours, theirs, peers.output_error(error, weights, v, layer.o_proj.weight))


@torch.no_grad()
def test_gpt_j_gives_the_same_up_to_its_float32_scores():
    config = transformers.GPTJConfig(n_embd=HEADS * DIM, n_head=HEADS, rotary_dim=6, n_positions=32)
    layer, x = random(GPTJAttention(config, layer_idx=0)), tokens(3, 14, HEADS * DIM)
    real = left_padded(3, 14, (0, 3, 8))
    position = (real.cumsum(-1) - 1).clamp(min=0)
    mask = hides(real[:, None, None].bool() & behind(14)).float().clamp(min=torch.finfo(torch.float32).min)
    theirs, weights = layer(x, attention_mask=mask, position_ids=position)
    q, k, v = apart(layer, x)
    scheme = Scheme(Partial(Rope(6, pairs="neighbours"), of=DIM), causal)
    ours = layer.out_proj(merge(attend(q, k, v, scheme, documents=real - 1)))
    sizes = peers.score_sizes(q, k, DIM**-0.5)
    # Float32 tables turn queries and keys by 2 · table_error of themselves too far, both are rounded, and so are the
    # products of DIM channels, their sum and the division. All of that counts twice in the weights.
    share = 2 * 2 * float(peers.table_error(position, 6, 10000.0).max()) + (2 + DIM + 1) * U
    error = peers.weight_error(sizes, 14) + 2 * share * sizes
    allowed = peers.output_error(error, weights, v, layer.out_proj.weight)
    assert_within(ours[real.bool()], theirs[real.bool()], allowed[real.bool()])


@torch.no_grad()
def test_qwen2_vl_gives_the_same_for_text_images_and_video():
    config = transformers.Qwen2VLConfig(
        text_config={
            "hidden_size": 64, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "num_hidden_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        }
    ).text_config  # fmt: skip
    config._attn_implementation = "sdpa"
    ids = peers.image_ids()
    t, recompose = ids.shape[-1], Qwen2VLRotaryEmbedding(config).recomposition_frequencies
    layer, x = random(Qwen2VLAttention(config, layer_idx=0)), tokens(2, t, 64)
    cos, sin = (recompose(table) for table in turns(ids, DIM, 1e6))
    theirs, _ = layer(x, position_embeddings=(cos, sin))
    scheme, position = Scheme(AxialRope(DIM, (2, 3, 3), theta=1e6), causal), ids.permute(1, 2, 0)
    q, k, v = apart(layer, x)
    ours = layer.o_proj(merge(attend(q, k, v, scheme, position=position, key_position=position)))
    assert_same(ours, theirs, within=EXACT)
    last = layer.o_proj(merge(attend(q[:, :, -1:], k, v, scheme, position=position[:, -1:], key_position=position)))
    assert_same(last, theirs[:, -1:], within=EXACT)
