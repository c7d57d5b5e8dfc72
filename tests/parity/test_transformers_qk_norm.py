"""HunYuan's attention, which takes the norms of queries and keys after their rotation, beside QkNorm after Rope."""

from __future__ import annotations

import pytest
import torch

from milepost import QkNorm, Rope, Scheme, attend, causal
from tests.oracles import assert_same

hunyuan = pytest.importorskip("transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense")


@torch.no_grad()
def test_hunyuan_takes_the_norm_of_what_was_turned():
    torch.manual_seed(0)
    config = hunyuan.HunYuanDenseV1Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=1,
        intermediate_size=16, vocab_size=11, attn_implementation="eager", rms_norm_eps=1e-5,
    )  # fmt: skip
    layer = hunyuan.HunYuanDenseV1Attention(config, 0).eval()
    for norm in (layer.query_layernorm, layer.key_layernorm):
        torch.nn.init.uniform_(norm.weight, 0.3, 1.7)
    x, at = torch.randn(2, 9, 32), torch.arange(9)[None]
    cos_sin = hunyuan.HunYuanDenseV1RotaryEmbedding(config)(x, at)
    hidden = torch.full((9, 9), -torch.inf).triu(1)
    theirs = layer(x, cos_sin, hidden)[0]

    method = QkNorm(8, eps=1e-5)
    method.query_weight.copy_(layer.query_layernorm.weight)
    method.key_weight.copy_(layer.key_layernorm.weight)
    q, k, v = (
        project(x).unflatten(-1, (-1, 8)).transpose(1, 2) for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    theta = config.rope_parameters["rope_theta"]
    out = attend(q, k, v, Scheme(Rope(8, theta=theta), method, causal))
    assert_same(layer.o_proj(out.transpose(1, 2).flatten(2)), theirs, within=1e-5)
    before = attend(q, k, v, Scheme(method, Rope(8, theta=theta), causal))
    assert float((layer.o_proj(before.transpose(1, 2).flatten(2)) - theirs).abs().max()) > 1e-3
