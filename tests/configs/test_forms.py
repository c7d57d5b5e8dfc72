"""One model, one scheme: as an old config.json, as a new one, or as a config object; and through JSON and back."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import AutoConfig

from milepost import Llama3, LongRope, Partial, Rope, Schedule, Scheme, Yarn
from tests.configs.published import LONG, PUBLISHED, SHORT, model


@pytest.fixture(autouse=True)
def no_weights():
    """Schemes are compared by their arguments, so tables need no memory."""
    with torch.device("meta"):
        yield


@pytest.mark.parametrize("name", PUBLISHED)
def test_dict_object_and_saved_object_mean_the_same(name):
    plain = PUBLISHED[name]
    config = AutoConfig.for_model(**copy.deepcopy(plain))
    ours = Schedule.of(plain)
    assert Schedule.of(config).same_as(ours)
    assert Schedule.of(config.to_dict()).same_as(ours)
    assert Schedule.of(json.loads(config.to_json_string(use_diff=False))).same_as(ours)


@pytest.mark.parametrize("name", PUBLISHED)
def test_schemes_come_back_from_json(name):
    schedule = Schedule.of(PUBLISHED[name])
    for scheme in list(schedule.schemes)[:2]:
        again = Scheme.from_dict(json.loads(json.dumps(scheme.to_dict())))
        assert again.same_as(scheme)
        assert repr(again) == repr(scheme)
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))).same_as(schedule)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("old", "new", "ours"),
    [
        (
            model("llama", 4096, 32, 32, 131072, rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3}),
            model("llama", 4096, 32, 32, 131072, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}),
            Rope(128, theta=5e5, stretch=Llama3(8.0, 8192)),
        ),
        (
            model("qwen2", 3584, 28, 28, 32768, rope_theta=1e6, rope_scaling={"type": "yarn", **YARN}),
            model("qwen2", 3584, 28, 28, 32768, rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **YARN}),
            Rope(128, theta=1e6, stretch=Yarn(4.0, 32768)),
        ),
        (
            model("gpt_neox", 2048, 16, 24, 2048, rotary_pct=0.25, rotary_emb_base=10000),
            model("gpt_neox", 2048, 16, 24, 2048, rope_parameters={
                "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
            }),
            Partial(Rope(32), of=128),
        ),
        (
            model("phi", 2560, 32, 32, 2048, rope_theta=10000.0, partial_rotary_factor=0.4),
            model("phi", 2560, 32, 32, 2048, rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.4}),
            Partial(Rope(32), of=80),
        ),
        (
            model(
                "phi3", 3072, 32, 32, 131072, rope_theta=1e4, original_max_position_embeddings=4096,
                rope_scaling={"type": "su", "short_factor": SHORT, "long_factor": LONG},
            ),
            model("phi3", 3072, 32, 32, 131072, rope_parameters={
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": SHORT, "long_factor": LONG,
                "original_max_position_embeddings": 4096, "factor": 32.0,
            }),
            Rope(96, theta=1e4, stretch=LongRope(SHORT, LONG, 4096, factor=32.0)),
        ),
    ],
    ids=["llama3", "yarn", "gpt-neox", "phi", "longrope"],
)  # fmt: skip
def test_old_keys_and_new_ones_mean_the_same(old, new, ours):
    assert Rope.of(old) == Rope.of(new) == ours
    assert Scheme.of(old).same_as(Scheme.of(new))


def test_gemma_3_nested_by_layer_type():
    old = model(
        "gemma3_text", 1152, 4, 12, 32768, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
        rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0},
    )  # fmt: skip
    new = {key: value for key, value in old.items() if not key.startswith("rope")} | {
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    assert Schedule.of(old).same_as(Schedule.of(new))
    assert Rope.of(old, layer=0) == Rope.of(new, layer=0) == Rope(256, theta=1e4)
    assert Rope.of(old, layer=-1).theta == Rope.of(new, layer=-1).theta == 1e6


def test_an_object_of_any_library_will_do():
    class Config:
        model_type, hidden_size, num_attention_heads, num_hidden_layers = "llama", 64, 4, 2
        rope_theta, rope_scaling = 500000.0, None

    assert Rope.of(Config()) == Rope(16, theta=500000.0)


def test_a_rope_needs_no_number_of_layers_where_all_turn_alike():
    settings = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e6}
    assert Rope.of(settings) == Rope.of(settings, layer=7) == Rope(16, theta=1e6)
