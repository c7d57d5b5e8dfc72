"""DeBERTa's own attention layers, v1 and v2/v3, with their weights in Deberta."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta.modeling_deberta import DebertaEncoder
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder

from milepost import Deberta, Scheme, attend
from tests.oracles import assert_same
from tests.parity import peers
from tests.parity.peers import EXACT, U, assert_within, left_padded, merge, random, split, tokens

HEADS = 4
# Their scale is a float32 square root of 3·d; of 36 it is exact.
DIM = 12


def told(dim: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": HEADS * dim, "num_attention_heads": HEADS, "num_hidden_layers": 1, "intermediate_size": 8,
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0, **more,
    }  # fmt: skip


def v1(dim: int = DIM, reach: int = 6) -> DebertaEncoder:
    encoder = random(DebertaEncoder(DebertaConfig(**told(dim, max_relative_positions=reach))))
    # Theirs takes the norm after the output projection in float32; what is compared is what goes into it.
    encoder.layer[0].attention.output.LayerNorm = nn.Identity()
    return encoder


def v2(buckets: int, reach: int, shared: bool = True) -> DebertaV2Encoder:
    config = DebertaV2Config(
        **told(DIM, max_relative_positions=reach, position_buckets=buckets, share_att_key=shared),
        norm_rel_ebd="layer_norm",
    )
    return random(DebertaV2Encoder(config))


def theirs_of(encoder: DebertaEncoder | DebertaV2Encoder, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's attention, given what the encoder gives it, and its weights."""
    mask, distance = encoder.get_attention_mask(real), encoder.get_rel_pos(x)
    table = encoder.get_rel_embedding()
    return encoder.layer[0].attention(x, mask, True, relative_pos=distance, rel_embeddings=table)


def v1_heads(encoder: DebertaEncoder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    layer = encoder.layer[0].attention.self
    dim = layer.attention_head_size
    # Queries, keys and values lie together head by head; keys have no bias.
    q, k, v = layer.in_proj(x).unflatten(-1, (HEADS, 3, dim)).permute(3, 0, 2, 1, 4)
    return q + layer.q_bias.view(HEADS, 1, dim), k, v + layer.v_bias.view(HEADS, 1, dim)


def v1_method(encoder: DebertaEncoder) -> Deberta:
    layer = encoder.layer[0].attention.self
    dim = layer.attention_head_size
    method = Deberta(HEADS * dim, HEADS, dim, reach=encoder.max_relative_positions, bias="queries").double()
    method.table = encoder.rel_embeddings.weight
    assert method.table.shape == (2 * encoder.max_relative_positions, HEADS * dim)
    method.to_keys.load_state_dict(layer.pos_proj.state_dict())
    method.to_queries.load_state_dict(layer.pos_q_proj.state_dict())
    return method


def v2_method(encoder: DebertaV2Encoder) -> Deberta:
    layer = encoder.layer[0].attention.self
    buckets = layer.position_buckets if layer.position_buckets > 0 else None
    method = Deberta(HEADS * DIM, HEADS, DIM, reach=layer.max_relative_positions, buckets=buckets, bias="both").double()
    method.table = nn.Parameter(encoder.get_rel_embedding())
    if layer.share_att_key:
        # One pair of projections serves content and positions: ours holds the layer's own.
        method.to_keys, method.to_queries = layer.key_proj, layer.query_proj
    else:
        method.to_keys.load_state_dict(layer.pos_key_proj.state_dict())
        method.to_queries.load_state_dict(layer.pos_query_proj.state_dict())
    return method


def v2_heads(encoder: DebertaV2Encoder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    layer = encoder.layer[0].attention.self
    q, k, v = (split(project(x), DIM) for project in (layer.query_proj, layer.key_proj, layer.value_proj))
    return q, k, v


@torch.no_grad()
@pytest.mark.parametrize("reach", [6, 40], ids=["past the reach", "within the reach"])
def test_deberta_v1_gives_the_same(reach: int):
    encoder, x, real = v1(reach=reach), tokens(3, 15, HEADS * DIM), left_padded(3, 15, (0, 4, 0))
    real[2, 12:] = 0
    ours = attend(*v1_heads(encoder, x), Scheme(v1_method(encoder)), documents=real - 1)
    ours = encoder.layer[0].attention.output(merge(ours), x)
    assert_same(ours[real.bool()], theirs_of(encoder, x, real)[0][real.bool()], within=EXACT)


@torch.no_grad()
def test_deberta_v1_of_another_width_differs_by_its_float32_root_alone():
    encoder, x = v1(dim=8), tokens(2, 15, HEADS * 8)
    method = v1_method(encoder)
    q, k, v = v1_heads(encoder, x)
    output, real = encoder.layer[0].attention.output, torch.ones(2, 15, dtype=torch.long)
    ours = output(merge(attend(q, k, v, Scheme(method))), x)
    theirs, weights = theirs_of(encoder, x, real)
    keys, queries = (split(project(method.table)[None], 8) for project in (method.to_keys, method.to_queries))
    sizes = peers.score_sizes(q, k, 24**-0.5) + peers.score_sizes(q, keys, 24**-0.5)
    sizes = sizes + peers.score_sizes(k, queries, 24**-0.5).amax(2, keepdim=True)
    # Scores are off by U of themselves, and weights by twice that.
    assert_within(ours, theirs, peers.output_error(2 * U * sizes, weights, v, output.dense.weight))
    assert (ours - theirs).abs().max() > EXACT


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False], ids=["one projection", "a projection of its own"])
@pytest.mark.parametrize(("buckets", "reach", "t"), [(-1, 6, 19), (8, 20, 19), (8, 10, 10)])
def test_deberta_v2_gives_the_same(buckets: int, reach: int, t: int, shared: bool):
    # With buckets no text is longer than the reach: past it transformers reads a row that was never trained.
    encoder, x, real = v2(buckets, reach, shared), tokens(3, t, HEADS * DIM), left_padded(3, t, (0, 4, 0))
    real[2, t - 4 :] = 0
    ours = attend(*v2_heads(encoder, x), Scheme(v2_method(encoder)), documents=real - 1)
    ours = encoder.layer[0].attention.output(merge(ours), x)
    assert_same(ours[real.bool()], theirs_of(encoder, x, real)[0][real.bool()], within=EXACT)


@torch.no_grad()
def test_deberta_v3_gives_the_same_with_its_own_256_buckets_of_512():
    encoder, x = v2(256, 512), tokens(1, 400, HEADS * DIM)
    method = v2_method(encoder)
    assert method.table.shape == (512, HEADS * DIM)
    ours = encoder.layer[0].attention.output(merge(attend(*v2_heads(encoder, x), Scheme(method))), x)
    theirs, _ = theirs_of(encoder, x, torch.ones(1, 400, dtype=torch.long))
    assert_same(ours, theirs, within=EXACT)


def test_the_table_and_projections_of_deberta_v3_get_the_same_gradients():
    encoder, x = v2(8, 20), tokens(2, 15, HEADS * DIM)
    layer, wanted = encoder.layer[0].attention, tokens(2, 15, HEADS * DIM, seed=2)
    weights = [encoder.rel_embeddings.weight, layer.self.key_proj.weight, layer.self.query_proj.bias]
    theirs, _ = theirs_of(encoder, x, torch.ones(2, 15, dtype=torch.long))
    expected = torch.autograd.grad((theirs * wanted).sum(), weights)
    method = v2_method(encoder)
    scheme = Scheme(method)
    ours = layer.output(merge(attend(*v2_heads(encoder, x), scheme)), x)
    found = torch.autograd.grad((ours * wanted).sum(), [method.table, *weights[1:]])
    # Ours is the table after its norm; the rest of the way back is the norm's.
    normed = encoder.get_rel_embedding()
    found = torch.autograd.grad(normed, weights[0], found[0])[0], *found[1:]
    for ours_, theirs_ in zip(found, expected, strict=True):
        assert_same(ours_, theirs_, within=EXACT)
