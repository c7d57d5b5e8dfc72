"""XLNet, DeBERTa and Transformer-XL, read from their config.json, attend as transformers' own layers do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers import AutoModel
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention as First
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention as Second
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from milepost import Deberta, Schedule, Scheme, TransformerXL, attend, causal
from tests.configs import theirs
from tests.configs.published_others import OTHERS
from tests.oracles import assert_same
from tests.parity.peers import EXACT, random, tokens

TRANSFO_XL = {
    "model_type": "transfo-xl", "d_model": 16, "n_head": 2, "d_head": 8, "n_layer": 3, "clamp_len": 1000,
    "attn_type": 0, "same_length": False, "untie_r": True,
}  # fmt: skip


# transformers takes √(3d) in float32, whatever the weights are; scores and values here are of size 1.
ROUNDED_ROOT = 2.0**-23


def heads(x: Tensor, h: int) -> Tensor:
    """[b t h·d] → [b h t d]."""
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


def test_deberta_v3_attends_with_the_layers_own_projections():
    config = theirs.config_of(OTHERS["deberta-v3-base"])
    module, t = Second(config).double().eval(), 150
    part = Scheme.of(OTHERS["deberta-v3-base"]).parts[0]
    assert isinstance(part, Deberta)
    part.double()
    part.to_keys.load_state_dict(module.key_proj.state_dict())
    part.to_queries.load_state_dict(module.query_proj.state_dict())
    x = torch.randn(1, t, 768, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    oracle, _ = module(x, torch.ones(1, 1, t, t, dtype=torch.bool), rel_embeddings=part.table)
    q, k, v = (heads(project(x), 12) for project in (module.query_proj, module.key_proj, module.value_proj))
    assert_same(attend(q, k, v, Scheme(part)).transpose(1, 2).flatten(-2), oracle, ROUNDED_ROOT)


def test_deberta_v1_projects_positions_apart():
    config = theirs.config_of(OTHERS["deberta-base"])
    module, t = First(config).double().eval(), 40
    part = Scheme.of(OTHERS["deberta-base"]).parts[0]
    assert isinstance(part, Deberta)
    part.double()
    part.to_keys.load_state_dict(module.pos_proj.state_dict())
    part.to_queries.load_state_dict(module.pos_q_proj.state_dict())
    x = torch.randn(1, t, 768, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    away = torch.arange(t)[:, None] - torch.arange(t)
    seen = torch.ones(1, 1, t, t, dtype=torch.bool)
    oracle, _ = module(x, seen, relative_pos=away[None], rel_embeddings=part.table)
    q, k, v = heads(module.in_proj(x), 12).chunk(3, -1)
    q, v = (each + heads(bias[None, None], 12) for each, bias in ((q, module.q_bias), (v, module.v_bias)))
    assert_same(attend(q, k, v, Scheme(part)).transpose(1, 2).flatten(-2), oracle, ROUNDED_ROOT)


@torch.no_grad()
@pytest.mark.parametrize(
    ("model_type", "shared"), [("deberta", False), ("deberta-v2", False), ("deberta-v2", True)], ids=str
)
def test_every_layer_takes_a_checkpoints_weights_as_they_are_named(model_type: str, shared: bool):
    # v2 with projections of its own for positions has a bias on both of them, v1 on that of the queries alone.
    settings = {
        "model_type": model_type, "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9,
        "intermediate_size": 16, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": shared,
        "max_relative_positions": 20, "position_biased_input": False, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    settings |= {"position_buckets": 8, "norm_rel_ebd": "layer_norm"} if model_type == "deberta-v2" else {}
    model = random(AutoModel.from_config(theirs.config_of(settings)))
    saved, schedule, x = model.state_dict(), Schedule.of(settings).double(), tokens(2, 19, 48)
    keys, queries = ("pos_proj", "pos_q_proj") if model_type == "deberta" else ("pos_key_proj", "pos_query_proj")
    keys, queries = ("key_proj", "query_proj") if shared else (keys, queries)
    for number, layer in enumerate(model.encoder.layer):
        own, part, prefix = layer.attention.self, schedule[number].parts[0], f"encoder.layer.{number}.attention.self"
        weights = {"table": model.encoder.get_rel_embedding()}
        for ours, name in (("to_keys", keys), ("to_queries", queries)):
            start = f"{prefix}.{name}."
            weights |= {f"{ours}.{key[len(start) :]}": saved[key] for key in saved if key.startswith(start)}
        part.load_state_dict(weights)
        seen = torch.ones(2, 1, 19, 19, dtype=torch.bool)
        away = model.encoder.get_rel_pos(x)
        oracle, _ = own(x, seen, relative_pos=away, rel_embeddings=weights["table"])
        if model_type == "deberta":
            q, k, v = heads(own.in_proj(x), 4).chunk(3, -1)
            q, v = (each + heads(bias[None, None], 4) for each, bias in ((q, own.q_bias), (v, own.v_bias)))
        else:
            q, k, v = (heads(project(x), 4) for project in (own.query_proj, own.key_proj, own.value_proj))
        # √36 is exact in float32.
        assert_same(attend(q, k, v, schedule[number]).transpose(1, 2).flatten(-2), oracle, EXACT)


def test_debertas_table_is_one_for_all_layers_and_its_projections_are_not():
    parts = [scheme.parts[0] for scheme in Schedule.of(OTHERS["deberta-v3-base"])]
    assert len({id(part.table) for part in parts}) == 1
    assert len({id(part.to_keys) for part in parts}) == 12


def test_a_deberta_without_relative_attention_has_learned_rows():
    settings = {"model_type": "deberta-v2", "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 16}
    assert repr(Scheme.of(settings)) == "Scheme(Learned(16, 8))"


def test_xlnet_attends_to_distances_of_either_sign():
    config = theirs.config_of(OTHERS["xlnet-base"])
    part = Scheme.of(OTHERS["xlnet-base"]).parts[0]
    assert isinstance(part, TransformerXL)
    torch.manual_seed(0)
    module, t = XLNetRelativeAttention(config).double().eval(), 30
    for name in ("r_w_bias", "r_r_bias", "r"):
        torch.nn.init.normal_(getattr(module, name), std=0.1)
    with torch.no_grad():
        part.double()
        part.u.copy_(module.r_w_bias)
        part.v.copy_(module.r_r_bias)
        part.project.weight.copy_(module.r.flatten(1).T)
    with torch.device("meta"):
        model = XLNetModel(config)
    waves = model.relative_positional_encoding(t, t, bsz=1).double()
    q, k, v = (torch.randn(t, 1, 12, 64, dtype=torch.float64) for _ in range(3))
    rows = torch.einsum("ibh,hnd->ibnd", waves, module.r)
    oracle = module.rel_attn_core(q, k, v, rows)
    ours = attend(*(x.permute(1, 2, 0, 3) for x in (q, k, v)), Scheme(part))
    # Their waves are float32, and their angles, up to t radians, were rounded before the sine.
    within = 4 * t * 2.0**-24 * math.sqrt(768) * 5
    assert_same(ours, oracle.permute(1, 2, 0, 3), within)


def test_each_layer_of_xlnet_has_weights_of_its_own():
    assert len({id(scheme.parts[0]) for scheme in Schedule.of(OTHERS["xlnet-base"])}) == 12


def test_xlnet_may_clamp_distances_and_look_one_way():
    scheme = Scheme.of(OTHERS["xlnet-base"] | {"clamp_len": 100, "attn_type": "uni"})
    assert scheme.parts[0].reach == 100
    assert scheme.parts[1:] == (causal,)


def test_transformer_xl_ties_its_biases_unless_told():
    tied, free = Schedule.of(TRANSFO_XL | {"untie_r": False}), Schedule.of(TRANSFO_XL)
    for name in ("u", "v"):
        assert len({id(getattr(scheme.parts[0], name)) for scheme in tied}) == 1
        assert len({id(getattr(scheme.parts[0], name)) for scheme in free}) == 3
    assert len({id(scheme.parts[0].project) for scheme in tied}) == 3
    assert free[0].parts[0].reach == 1000
