"""T5's and XLNet's own attention layers, with their weights in T5Bias and TransformerXL."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, T5Config, XLNetConfig, XLNetModel
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from milepost import Cache, Scale, Scheme, Sinusoidal, T5Bias, TransformerXL, attend, causal
from tests.oracles import assert_same
from tests.parity.peers import (
    EXACT,
    assert_within,
    behind,
    hides,
    left_padded,
    merge,
    random,
    split,
    table_error,
    tokens,
)

HEADS, DIM, WIDTH = 4, 6, 16


def t5_layer(decoder: bool, first: bool = True) -> T5Attention:
    config = T5Config(d_model=WIDTH, d_kv=DIM, num_heads=HEADS, is_decoder=decoder, dropout_rate=0.0)
    config._attn_implementation = "eager"
    assert (config.relative_attention_num_buckets, config.relative_attention_max_distance) == (32, 128)
    return random(T5Attention(config, has_relative_attention_bias=first, layer_idx=0), seed=0 if first else 5)


def t5_scheme(peer: T5Attention) -> Scheme:
    method = T5Bias(HEADS, buckets=32, reach=128, bidirectional=not peer.is_decoder).double()
    method.table.data.copy_(peer.relative_attention_bias.weight)
    return Scheme(method, Scale(1.0), *([causal] if peer.is_decoder else []))


def t5_heads(peer: T5Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (split(project(x), DIM) for project in (peer.q, peer.k, peer.v))
    return q, k, v


@torch.no_grad()
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_t5_gives_the_same_past_its_reach(decoder: bool):
    peer, x = t5_layer(decoder), tokens(2, 150, WIDTH)
    theirs = peer(x, mask=hides(behind(150)) if decoder else None)[0]
    ours = peer.o(merge(attend(*t5_heads(peer, x), t5_scheme(peer))))
    assert_same(ours, theirs, within=EXACT)


@torch.no_grad()
def test_t5_gives_the_same_for_a_padded_batch():
    peer, x = t5_layer(decoder=False), tokens(3, 20, WIDTH)
    real = left_padded(3, 20, (0, 7, 0))
    real[2, 15:] = 0
    theirs = peer(x, mask=hides(real.bool())[:, None, None])[0]
    ours = peer.o(merge(attend(*t5_heads(peer, x), t5_scheme(peer), documents=real - 1)))
    assert_same(ours[real.bool()], theirs[real.bool()], within=EXACT)


@torch.no_grad()
def test_t5_decodes_the_same_token_after_token():
    peer, x = t5_layer(decoder=True), tokens(2, 40, WIDTH)
    scheme, theirs, ours = t5_scheme(peer), DynamicCache(), Cache()
    for first, last in [(0, 30), *((t, t + 1) for t in range(30, 40))]:
        q, k, v = t5_heads(peer, x[:, first:last])
        ours.append(k, v)
        mine = peer.o(merge(attend(q, ours.keys, ours.values, scheme, key_index=ours.index)))
        mask = hides(behind(last - first, last))
        assert_same(mine, peer(x[:, first:last], mask=mask, past_key_values=theirs)[0], within=EXACT)


@torch.no_grad()
def test_t5_layers_share_the_bias_of_the_first():
    first, second, x = t5_layer(decoder=False), t5_layer(decoder=False, first=False), tokens(2, 40, WIDTH)
    scheme = t5_scheme(first)
    y, bias, _ = first(x)
    theirs = second(y, position_bias=bias)[0]
    ours = first.o(merge(attend(*t5_heads(first, x), scheme)))
    assert_same(second.o(merge(attend(*t5_heads(second, ours), scheme))), theirs, within=EXACT)


def test_the_table_of_t5_gets_the_same_gradient():
    peer, x = t5_layer(decoder=True), tokens(2, 60, WIDTH)
    scheme, wanted = t5_scheme(peer), tokens(2, 60, WIDTH, seed=2)
    (peer(x, mask=hides(behind(60)))[0] * wanted).sum().backward()
    (peer.o(merge(attend(*t5_heads(peer, x), scheme))) * wanted).sum().backward()
    assert_same(scheme.parts[0].table.grad, peer.relative_attention_bias.weight.grad, within=EXACT)


def xlnet_layer() -> XLNetRelativeAttention:
    config = XLNetConfig(d_model=HEADS * DIM, n_head=HEADS, d_head=DIM, dropout=0.0)
    return random(XLNetRelativeAttention(config))


def xlnet_scheme(peer: XLNetRelativeAttention, *parts: object, reach: int | None = None) -> Scheme:
    method = TransformerXL(HEADS * DIM, HEADS, DIM, reach=reach).double()
    method.u.data.copy_(peer.r_w_bias)
    method.v.data.copy_(peer.r_r_bias)
    method.project.weight.data.copy_(peer.r.permute(1, 2, 0).reshape(HEADS * DIM, -1))
    return Scheme(method, *parts)


def xlnet_ours(peer: XLNetRelativeAttention, h: Tensor, memory: Tensor, scheme: Scheme, **options: Tensor) -> Tensor:
    """h [t b D] and memory [m b D], time first as XLNet has them, through its own projections at both ends."""
    q, k, v = (
        torch.einsum("tbw,whd->bhtd", x, weight)
        for x, weight in ((h, peer.q), *((torch.cat((memory, h)), each) for each in (peer.k, peer.v)))
    )
    return peer.post_attention(h, attend(q, k, v, scheme, **options).permute(2, 0, 1, 3))


def waves(first: int, last: int, clamp: int = 10**9) -> Tensor:
    """The sinusoids of the distances first, first − 1 … last, [n 1 D], sines before cosines."""
    n = torch.arange(0, HEADS * DIM, 2, dtype=torch.float64)
    distance = torch.arange(first, last - 1, -1).clamp(-clamp, clamp).double()
    angle = distance[:, None] / 10000 ** (n / (HEADS * DIM))
    return torch.cat((angle.sin(), angle.cos()), -1)[:, None]


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 5])
@pytest.mark.parametrize("clamp", [None, 4])
def test_xlnet_gives_the_same_in_both_directions(memory: int, clamp: int | None):
    peer, t = xlnet_layer(), 11
    h, mems = tokens(t, 2, HEADS * DIM), tokens(memory, 2, HEADS * DIM, seed=2)
    r = waves(t + memory, -t + 1, clamp or 10**9)
    theirs, _ = peer(h, None, None, None, r.expand(-1, 2, -1), None, mems=mems)
    assert_same(xlnet_ours(peer, h, mems, xlnet_scheme(peer, reach=clamp)), theirs, within=EXACT)


@torch.no_grad()
def test_xlnet_gives_the_same_looking_back_only():
    peer, t, memory = xlnet_layer(), 11, 5
    h, mems = tokens(t, 2, HEADS * DIM), tokens(memory, 2, HEADS * DIM, seed=2)
    mask = (~behind(t, t + memory)).double()[:, :, None, None]
    theirs, _ = peer(h, None, mask, None, waves(t + memory, 0).expand(-1, 2, -1), None, mems=mems)
    assert_same(xlnet_ours(peer, h, mems, xlnet_scheme(peer, causal)), theirs, within=EXACT)


@torch.no_grad()
def test_xlnet_gives_the_same_for_a_left_padded_batch():
    peer, t = xlnet_layer(), 11
    h, real = tokens(t, 2, HEADS * DIM), left_padded(2, t, (0, 4))
    mask = (1 - real).T.double()[None, :, :, None]
    theirs, _ = peer(h, None, mask, None, waves(t, -t + 1).expand(-1, 2, -1), None)
    ours = xlnet_ours(peer, h, h[:0], xlnet_scheme(peer), documents=real - 1)
    assert_same(ours.transpose(0, 1)[real.bool()], theirs.transpose(0, 1)[real.bool()], within=EXACT)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "last"), [("bi", -10), ("uni", 0)])
def test_the_sinusoids_are_xlnets_own(kind: str, last: int):
    width = HEADS * DIM
    with torch.device("meta"):
        model = XLNetModel(XLNetConfig(vocab_size=8, d_model=width, n_head=HEADS, n_layer=1, d_inner=4, attn_type=kind))
    theirs = model.relative_positional_encoding(11, 16, device="cpu")[:, :1]
    distance = torch.arange(16, last - 1, -1)
    assert_within(waves(16, last), theirs, table_error(distance, width, 10000.0).repeat(1, 2)[:, None])
    assert_same(Sinusoidal(width, layout="concatenated").table(distance), waves(16, last)[:, 0])
