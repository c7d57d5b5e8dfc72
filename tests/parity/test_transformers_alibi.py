"""BLOOM's and MPT's own attention layers give what Alibi gives; Falcon's penalty is another one, shown here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import BloomConfig, DynamicCache, FalconConfig, FalconModel, MptConfig
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_penalty
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_penalty
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor

from milepost import Alibi, AlibiInterpolate, Scale, Scheme, attend, causal
from tests.oracles import assert_same
from tests.parity import peers
from tests.parity.peers import EXACT, U, assert_within, behind, hides, left_padded, merge, random, tokens

DIM = 6
PADS = (0, 3, 8)
SEEN = transformers.__version__.startswith("5.22")


def bloom_layer(heads: int) -> BloomAttention:
    return random(BloomAttention(BloomConfig(hidden_size=heads * DIM, n_head=heads), layer_idx=0))


def bloom_heads(peer: BloomAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = peer.query_key_value(x).unflatten(-1, (peer.num_heads, 3, DIM)).permute(3, 0, 2, 1, 4)
    return q, k, v


def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every softmax in the dtype of its scores, whatever dtype is asked for."""
    plain = functional.softmax
    monkeypatch.setattr(functional, "softmax", lambda x, dim, dtype=None: plain(x, dim=dim))


@torch.no_grad()
@pytest.mark.parametrize("heads", [4, 6])
def test_bloom_gives_the_same_for_a_left_padded_batch(heads: int, monkeypatch: pytest.MonkeyPatch):
    # Of 4 and of 6 heads the slopes are powers of two, which float32 holds.
    peer, x, real = bloom_layer(heads), tokens(3, 15, heads * DIM), left_padded(3, 15, PADS)
    in_float64(monkeypatch)
    mask = hides(real[:, None, None].bool() & behind(15))
    theirs, _ = peer(x, x, bloom_penalty(real, heads, torch.float64), mask)
    ours = x + peer.dense(merge(attend(*bloom_heads(peer, x), Scheme(Alibi(heads), causal), documents=real - 1)))
    assert_same(ours[real.bool()], theirs[real.bool()], within=EXACT)


@torch.no_grad()
@pytest.mark.parametrize("heads", [6, 12])
def test_bloom_as_it_stands_differs_by_its_float32_softmax_and_slopes_alone(heads: int):
    peer, x, real = bloom_layer(heads), tokens(3, 15, heads * DIM), left_padded(3, 15, PADS)
    penalty = bloom_penalty(real, heads, torch.float64)
    theirs, weights = peer(x, x, penalty, hides(real[:, None, None].bool() & behind(15)))
    q, k, v = bloom_heads(peer, x)
    ours = x + peer.dense(merge(attend(q, k, v, Scheme(Alibi(heads), causal), documents=real - 1)))
    most = penalty.view(3, heads, 15).amax(-1)[..., None, None]
    # A slope is a rounded base (U) raised to a power of 8 at most (8 U, and 2 U for itself), times a distance (U); an
    # error of the scores counts twice in the weights.
    error = peers.weight_error(peers.score_sizes(q, k, DIM**-0.5) + most, 15) + 2 * 11 * U * most
    allowed = peers.output_error(error, weights, v, peer.dense.weight)
    assert_within(ours[real.bool()], theirs[real.bool()], allowed[real.bool()])


@torch.no_grad()
def test_bloom_decodes_the_same_token_after_token_behind_padding(monkeypatch: pytest.MonkeyPatch):
    heads, scheme, theirs = 4, Scheme(Alibi(4), causal), DynamicCache()
    peer, x, real = bloom_layer(heads), tokens(3, 15, heads * DIM), left_padded(3, 15, PADS)
    in_float64(monkeypatch)
    q, k, v = bloom_heads(peer, x)
    for first, last in [(0, 10), *((t, t + 1) for t in range(10, 15))]:
        now, seen = slice(first, last), real[:, :last]
        mask = hides(seen[:, None, None].bool() & behind(last - first, last))
        found, _ = peer(x[:, now], x[:, now], bloom_penalty(seen, heads, torch.float64), mask, layer_past=theirs)
        held = {"documents": real[:, now] - 1, "key_documents": seen - 1}
        ours = peer.dense(merge(attend(q[:, :, now], k[:, :, :last], v[:, :, :last], scheme, **held)))
        assert_same((x[:, now] + ours)[real[:, now].bool()], found[real[:, now].bool()], within=EXACT)


def mpt_layer(heads: int, **told: Any) -> MptAttention:
    config = MptConfig(d_model=heads * DIM, n_heads=heads, max_seq_len=64, attn_config=told)
    return random(MptAttention(config, layer_idx=0))


def mpt_heads(peer: MptAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (peers.split(each, DIM) for each in peer.Wqkv(x).chunk(3, -1))
    return q, k, v


@torch.no_grad()
@pytest.mark.parametrize("heads", [4, 6, 12])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_mpt_gives_the_same_for_a_left_padded_batch(heads: int, scale: float | None):
    peer, x, real = mpt_layer(heads, softmax_scale=scale), tokens(3, 15, heads * DIM), left_padded(3, 15, PADS)
    penalty = build_mpt_alibi_tensor(heads, 64)
    unseen = ~(real[:, None, None].bool() & behind(15))
    theirs, weights = peer(x, penalty.double(), attention_mask=unseen)
    scheme = Scheme(Alibi(heads), causal, *([] if scale is None else [Scale(scale)]))
    q, k, v = mpt_heads(peer, x)
    ours = peer.out_proj(merge(attend(q, k, v, scheme, documents=real - 1)))
    most = penalty[..., -15:].abs().amax(-1)[None, :, None]
    # The softmax is float32. A slope is the inverse of a float32 power, times a distance; errors of scores count twice.
    error = peers.weight_error(peers.score_sizes(q, k, scale or DIM**-0.5) + most, 15) + 2 * 4 * U * most
    allowed = peers.output_error(error, weights, v, peer.out_proj.weight)
    assert_within(ours[real.bool()], theirs[real.bool()], allowed[real.bool()])


@torch.no_grad()
def test_mpt_decodes_the_same_token_after_token():
    heads, scheme, theirs = 4, Scheme(Alibi(4), causal), DynamicCache()
    peer, x, penalty = mpt_layer(heads), tokens(2, 15, heads * DIM), build_mpt_alibi_tensor(heads, 64).double()
    q, k, v = mpt_heads(peer, x)
    sizes = peers.score_sizes(q, k, DIM**-0.5) + 14 * 0.25
    for first, last in [(0, 10), *((t, t + 1) for t in range(10, 15))]:
        now, unseen = slice(first, last), ~behind(last - first, last)
        found, weights = peer(x[:, now], penalty, past_key_values=theirs, attention_mask=unseen[None, None])
        ours = peer.out_proj(merge(attend(q[:, :, now], k[:, :, :last], v[:, :, :last], scheme)))
        error = peers.weight_error(sizes[:, :, now], last)
        assert_within(ours, found, peers.output_error(error, weights, v[:, :, :last], peer.out_proj.weight))


def falcon_config(kind: str, heads: int = 4) -> FalconConfig:
    config = FalconConfig(
        hidden_size=heads * DIM, num_attention_heads=heads, num_hidden_layers=1, vocab_size=32, alibi=True, bias=True,
        multi_query=False, new_decoder_architecture=False,
    )  # fmt: skip
    config._attn_implementation = kind
    return config


def falcon_ours(peer: FalconAttention, x: Tensor, scheme: Scheme) -> Tensor:
    q, k, v = peer.query_key_value(x).unflatten(-1, (peer.num_heads, 3, DIM)).permute(3, 0, 2, 1, 4)
    return peer.dense(merge(attend(q, k, v, scheme)))


@torch.no_grad()
def test_falcon_divides_the_penalty_by_the_root_of_the_width_and_alibi_does_not():
    peer, x = random(FalconAttention(falcon_config("eager"), layer_idx=0)), tokens(2, 15, 4 * DIM)
    penalty = falcon_penalty(torch.ones(2, 15, dtype=torch.long), 4, torch.float64)
    theirs, _ = peer(x, penalty, hides(behind(15)))
    paper = falcon_ours(peer, x, Scheme(Alibi(4), causal))
    flatter = Scheme(Alibi(4, stretch=AlibiInterpolate(math.sqrt(DIM))), causal)
    assert_same(falcon_ours(peer, x, flatter), theirs, within=EXACT)
    assert (paper - theirs).abs().max() > 0.01
    # The paper adds −m·(i − j) after the division by √d.
    q, k, v = peer.query_key_value(x).unflatten(-1, (4, 3, DIM)).permute(3, 0, 2, 1, 4)
    distance = torch.arange(15)[:, None] - torch.arange(15)
    slope = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64).view(4, 1, 1)
    score = q @ k.mT / math.sqrt(DIM) - slope * distance + hides(behind(15))
    assert_same(paper, peer.dense(merge(torch.softmax(score, -1) @ v)), within=EXACT)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "times"),
    [("sdpa", 1), pytest.param("eager", 2, marks=pytest.mark.skipif(not SEEN, reason="seen in transformers 5.22"))],
)
def test_the_whole_falcon_adds_its_penalty_once_with_sdpa_and_twice_without(kind: str, times: int):
    model, words = random(FalconModel(falcon_config(kind))), torch.arange(15).view(1, 15)
    seen: list[Tensor] = []
    layer = model.h[0].self_attention
    layer.register_forward_hook(lambda module, told, out: seen.append(out[0]))
    model.h[0].input_layernorm.register_forward_hook(lambda module, told, out: seen.append(out))
    model(words)
    x, theirs = seen
    flatter = Scheme(Alibi(4, stretch=AlibiInterpolate(math.sqrt(DIM) / times)), causal)
    assert_same(falcon_ours(layer, x, flatter), theirs, within=EXACT)


def test_falcon_rounds_slopes_and_penalties_to_bfloat16_and_alibi_does_not():
    # Falcon-RW-1B has 32 heads, whose slopes are 2^(−(h + 1)/4); bfloat16 keeps eight bits of them.
    theirs = falcon_penalty(torch.ones(1, 2, dtype=torch.long), 32, torch.float64)[:, 0, 1]
    paper = torch.tensor([2 ** (-(h + 1) / 4) for h in range(32)], dtype=torch.float64)
    assert_same(Alibi(32).slopes().behind, paper, within=1e-15)
    assert ((theirs / paper - 1).abs() > 1e-3).sum() == 16
    # Past 256 the product with the place of a key is rounded as well, so that neighbours weigh the same.
    far = falcon_penalty(torch.ones(1, 400, dtype=torch.long), 4, torch.float64)[0, 0, -8:]
    assert far.unique().numel() == 5
    bias = Scheme(Alibi(4)).bias(torch.tensor([399]), torch.arange(392, 400), dtype=torch.float64)
    assert bias[0, 0, 0].tolist() == [-0.25 * distance for distance in range(7, -1, -1)]
