"""More published models: what their config.json comes to, as a dict, as an object and saved; and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from milepost import (
    AxialRope,
    DeepseekScale,
    Learned,
    Nope,
    Partial,
    Proportional,
    Rope,
    Scale,
    Schedule,
    Scheme,
    Sinusoidal,
    SoftCap,
    T5Bias,
    Yarn,
    causal,
    window,
)
from tests.configs.published_more import HYBRIDS, MORE, WHOLE

ATTENDING = {
    "Qwen3-Next-80B-A3B": list(range(3, 48, 4)),
    "Kimi-Linear-48B-A3B": [3, 7, 11, 15, 19, 23, 26],
    "Nemotron-H-8B": [7, 18, 29, 40],
    "granite-4.0-h-tiny": [5, 15, 25, 35],
    "LFM2-1.2B": [2, 5, 8, 10, 12, 14],
}


@pytest.fixture(autouse=True)
def no_weights():
    """Schemes are compared by their arguments, so tables need no memory."""
    with torch.device("meta"):
        yield


def forms(plain: dict[str, Any]) -> list[Any]:
    """A config as an object, as its dict, and as what it writes."""
    config = AutoConfig.for_model(**copy.deepcopy(plain))
    return [config, config.to_dict(), json.loads(config.to_json_string(use_diff=False))]


@pytest.mark.parametrize("name", WHOLE)
def test_dict_object_and_saved_object_mean_the_same(name: str):
    ours = Schedule.of(WHOLE[name])
    assert all(Schedule.of(form).same_as(ours) for form in forms(WHOLE[name]))
    assert Schedule.from_dict(json.loads(json.dumps(ours.to_dict()))).same_as(ours)


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_layers_of_a_hybrid_that_attend(name: str):
    first = ATTENDING[name][0]
    for form in (HYBRIDS[name], *forms(HYBRIDS[name])):
        for layer in range(HYBRIDS[name]["num_hidden_layers"]):
            if layer in ATTENDING[name]:
                assert Scheme.of(form, layer=layer).same_as(Scheme.of(HYBRIDS[name], layer=first))
            else:
                with pytest.raises(ValueError, match=rf"Attention is in layer {first}, .*Scheme.of\(config, layer="):
                    Scheme.of(form, layer=layer)


PARTS: dict[str, tuple[object, ...]] = {
    "Qwen3-Next-80B-A3B": (Partial(Rope(64, theta=1e7), of=256), causal),
    "Kimi-Linear-48B-A3B": (Nope(), causal),
    "Nemotron-H-8B": (Nope(), causal),
    "granite-4.0-h-tiny": (Nope(), Scale(0.0078125), causal),
    "LFM2-1.2B": (Rope(64, theta=1e6), causal),
    "GLM-4.5-Air": (Partial(Rope(64, theta=1e6), of=128), causal),
    "GLM-4.1V-9B": (Partial(AxialRope(64, (8, 12, 12), pairs="neighbours"), of=128), causal),
    "gemma-3n-E4B": (Rope(256), Scale(1.0), causal & window(512)),
    "gemma-4, twelve layers": (Rope(256), Scale(1.0), causal & window(512)),
    "DeepSeek-V3.2": (
        Partial(Rope(64, pairs="neighbours", stretch=Yarn(40, 4096, scaled=1.0)), of=192),
        DeepseekScale(40, weight=1.0),
        causal,
    ),
    "MiniMax-M2": (Partial(Rope(64, theta=5e6), of=128), causal),
    "ERNIE-4.5-21B-A3B": (Rope(128, theta=5e5, pairs="neighbours"), causal),
    "Falcon-H1-1.5B": (Rope(128, theta=1e11), causal),
    "esm2_t33_650M": (Rope(64),),
    "ettin-decoder-150m": (Rope(64, theta=160000.0), causal),
    "t5gemma-2b-2b": (Rope(256), SoftCap(50.0), window(4097, ahead=4096)),
    "opus-mt-en-de": (Sinusoidal(512, layout="concatenated"),),
    "m2m100_418M": (Sinusoidal(1024, layout="concatenated", denominator=511.0, start=2),),
    "xglm-564M": (Sinusoidal(1024, layout="concatenated", denominator=511.0, start=2), causal),
    "whisper-small": (Sinusoidal(768, layout="concatenated", denominator=383.0),),
}


@pytest.mark.parametrize("name", PARTS)
def test_first_layers_that_attend(name: str):
    assert Scheme.of(MORE[name], layer=ATTENDING.get(name, [0])[0]).parts == PARTS[name]


@pytest.mark.parametrize(
    ("name", "length", "dim"),
    [
        ("distilbert-base", 512, 768),
        ("albert-base-v2", 512, 128),
        ("mpnet-base", 512, 768),
        ("clip-vit-base-patch32", 77, 512),
        ("bart-large", 1024, 1024),
        ("esm1b_t33_650M", 1024, 1280),
    ],
)
def test_learned_tables(name: str, length: int, dim: int):
    part = Scheme.of(MORE[name]).parts[0]
    assert isinstance(part, Learned)
    assert part.table.shape == (length, dim)
    assert Scheme.of(MORE[name]).trained == length


def test_layers_that_see_everything_are_wider_in_gemma_4():
    schedule = Schedule.of(WHOLE["gemma-4, twelve layers"])
    assert schedule.order == (0, 0, 0, 0, 0, 1) * 2
    assert schedule[5].parts == (Rope(512, theta=1e6, stretch=Proportional(0.25)), Scale(1.0), causal)


def test_a_key_that_transformers_gemma_3n_does_not_read():
    text = WHOLE["gemma-3n-E4B"]["text_config"]
    assert Schedule.of(text | {"use_bidirectional_attention": True}).same_as(Schedule.of(text))


def test_decoders_of_models_that_have_both():
    rows = {"whisper-small": (448, 768), "bart-large": (1024, 1024)}
    for name, shape in rows.items():
        table, visible = Scheme.of(MORE[name] | {"is_decoder": True}).parts
        assert table.table.shape == shape
        assert visible == causal
    decoder = Scheme.of(MORE["t5gemma-2b-2b"] | {"is_decoder": True})
    assert decoder.parts == (Rope(256), SoftCap(50.0), causal & window(4096))
    assert Scheme.of(MORE["whisper-small"]).trained == 1500


def test_longt5_sees_its_neighbours_and_its_decoder_what_is_behind():
    local = MORE["long-t5-local-base"]
    bias, *rest = Scheme.of(local).parts
    assert isinstance(bias, T5Bias)
    assert bias.bidirectional
    assert rest == [Scale(1.0), window(128, ahead=127)]
    assert Scheme.of(local | {"is_decoder": True}).parts[1:] == (Scale(1.0), causal)


def test_rope_of_a_hybrid_passes_over_its_other_layers():
    assert Rope.of(HYBRIDS["Qwen3-Next-80B-A3B"]) == Partial(Rope(64, theta=1e7), of=256)
    with pytest.raises(ValueError, match="no layer rotates queries and keys"):
        Rope.of(HYBRIDS["Kimi-Linear-48B-A3B"])
    schedule = Schedule.of(HYBRIDS["Qwen3-Next-80B-A3B"])
    assert list(schedule.layers) == list(range(3, 48, 4))
    with pytest.raises(IndexError, match="layer 0, which does not attend"):
        schedule[0]


def test_layers_of_jamba_and_bamba_that_attend():
    jamba = {"model_type": "jamba", "num_hidden_layers": 16, "attn_layer_period": 8, "attn_layer_offset": 4}
    assert Scheme.of(jamba, layer=12).parts == (Nope(), causal)
    with pytest.raises(ValueError, match="Attention is in layer 4, 12: "):
        Scheme.of(jamba, layer=5)
    bamba = {"model_type": "bamba", "head_dim": 128, "rope_theta": 1e4, "num_hidden_layers": 4}
    assert Scheme.of(bamba | {"attn_layer_indices": [1, 3]}, layer=3).parts == (Partial(Rope(64), of=128), causal)
    with pytest.raises(ValueError, match="Attention is in layer 1, 3: "):
        Scheme.of(bamba | {"attn_layer_indices": [1, 3]})


def test_layers_that_look_at_an_image_are_not_attention_over_the_text():
    text = {"model_type": "mllama_text_model", "head_dim": 128, "rope_theta": 5e5, "num_hidden_layers": 4}
    whole = {"model_type": "mllama", "text_config": text | {"cross_attention_layers": [1, 3]}}
    assert Scheme.of(whole, layer=2).parts == (Rope(128, theta=5e5), causal)
    with pytest.raises(ValueError, match=r"layer 3 is 'cross_attention'.* Attention is in layer 0, 2: "):
        Scheme.of(whole, layer=3)


def test_hunyuans_norms_come_after_the_rotation():
    plain = {"model_type": "hunyuan_v1_dense", "head_dim": 8, "rope_theta": 1e4, "num_hidden_layers": 2}
    schedule = Schedule.of(plain | {"rms_norm_eps": 1e-5})
    rope, norm, seen = schedule[0].parts
    assert (rope, repr(norm), seen) == (Rope(8), "QkNorm(8, eps=1e-05)", causal)
    assert schedule[0].parts[1] is not schedule[1].parts[1]
    assert Scheme.of(plain | {"use_qk_norm": False}).parts == (Rope(8), causal)


def test_granite_4_may_turn():
    plain = HYBRIDS["granite-4.0-h-tiny"] | {"position_embedding_type": "rope"}
    assert Scheme.of(plain, layer=5).parts == (Rope(128), Scale(0.0078125), causal)


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"model_type": "longformer"}, "the tokens that each call names as global"),
        ({"model_type": "mamba2"}, "it has no attention over tokens"),
        ({"model_type": "led", "encoder_layers": 2}, "with is_decoder: true its decoder is read"),
        (WHOLE["long-t5-local-base"] | {"encoder_attention_type": "transient-global"}, "the sums of blocks"),
        (WHOLE["mpnet-base"] | {"relative_attention_num_buckets": 16}, "MPNet's own code always uses 32"),
        (WHOLE["esm2_t33_650M"] | {"position_embedding_type": "relative_key"}, "only 'rotary' and 'absolute'"),
        ({"model_type": "nomic_bert", "rotary_scaling_factor": 2}, "DynamicNtk(max_trained_positions, factor)"),
        ({"model_type": "nomic_bert", "rotary_emb_fraction": 0.5}, "only 1.0 can be read"),
        ({"model_type": "granitemoehybrid", "num_hidden_layers": 2}, "no layer is attention over tokens"),
    ],
    ids=lambda each: each if isinstance(each, str) else each["model_type"],
)
def test_what_no_scheme_says_is_refused_by_name(plain: dict[str, Any], said: str):
    with pytest.raises(ValueError) as caught:
        Scheme.of(plain)
    assert said in str(caught.value)


def test_nomics_own_keys():
    plain = {"model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_layer": 12, "rotary_emb_base": 1000}
    assert Scheme.of(plain | {"rotary_emb_fraction": 1.0, "rotary_scaling_factor": None}).parts == (
        Rope(64, theta=1000.0),
    )


def test_jinas_own_keys():
    plain = {"model_type": "xlm-roberta", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24}
    plain |= {"position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "max_position_embeddings": 8194}
    assert Scheme.of(plain).parts == (Rope(64, theta=20000.0),)
    assert Rope.of(plain) == Rope(64, theta=20000.0)
    with pytest.raises(ValueError, match="position_embedding_type is 'relative_key', and only 'absolute' tables"):
        Scheme.of(plain | {"position_embedding_type": "relative_key"})


def test_an_omni_model_is_read_as_its_thinkers_text():
    text = {"model_type": "qwen3_omni_moe_text", "head_dim": 128, "num_hidden_layers": 2, "rope_theta": 1e6}
    whole = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": text}}
    assert Scheme.of(whole).parts == (AxialRope(128, (24, 20, 20), theta=1e6, order="interleaved"), causal)


def test_a_stretch_beside_sections_stretches_the_frequencies_of_all_axes():
    plain = {"model_type": "qwen3_vl_text", "head_dim": 128, "rope_theta": 5e6, "max_position_embeddings": 262144}
    rope, *_ = Scheme.of(plain | {"rope_scaling": {"rope_type": "yarn", "factor": 3.0}}).parts
    assert isinstance(rope, AxialRope)
    assert (rope.sections, rope.order) == ((24, 20, 20), "interleaved")
    assert rope.stretch == Yarn(3.0, 262144)
