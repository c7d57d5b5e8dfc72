"""A scheme read from a configuration keeps the length that the model was trained at, and saving keeps it too."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from milepost import Rope, Schedule, Scheme, causal
from tests.configs.published import PUBLISHED

# Without a stretch the longest length of the config, with one the length before it; tables count their usable rows.
TRAINED = {
    "Llama-2-7b": 4096,
    "Llama-3-8B": 8192,
    "Llama-3.1-8B": 8192,
    "Llama-4-Scout": 8192,
    "Llama-4-Maverick": 1048576,
    "Mistral-7B-v0.3": 32768,
    "Qwen2.5-7B with YaRN": 32768,
    "Phi-3-mini-4k": 4096,
    "Phi-3.5-mini": 4096,
    "Olmo-3-7B": 8192,
    "gpt-j-6b": 2048,
    "DeepSeek-V3": 4096,
    "Kimi-K2": 4096,
    "gpt-oss-20b": 4096,
    "gemma-3-1b": 32768,
    "gemma-3-4b": None,
    "ModernBERT-base": 8192,
    "mpt-30b": 8192,
    "gpt2": 1024,
    "bert-base": 512,
    "roberta-base": 512,
    "opt-125m": 2048,
    "deberta-v3-base": 512,
    "t5-small": None,
}


@pytest.fixture(autouse=True)
def no_weights():
    with torch.device("meta"):
        yield


@pytest.mark.parametrize("name", TRAINED)
def test_published_models(name: str):
    schedule = Schedule.of(PUBLISHED[name])
    assert schedule.trained == TRAINED[name]
    # Every layer has it, whether it is stretched or not.
    assert {scheme.trained for scheme in schedule} == {TRAINED[name]}
    assert Scheme.of(PUBLISHED[name]).trained == TRAINED[name]


@pytest.mark.parametrize("name", [name for name, trained in TRAINED.items() if trained])
def test_a_config_object_says_the_same(name: str):
    config = AutoConfig.for_model(**copy.deepcopy(PUBLISHED[name]))
    assert Schedule.of(config).trained == Schedule.of(config.to_dict()).trained == TRAINED[name]


@pytest.mark.parametrize(
    ("rope", "trained"),
    [
        ({"rope_type": "default"}, 16384),
        # A length beside plain RoPE, or inside its settings, says nothing.
        ({"rope_type": "default", "original_max_position_embeddings": 2048}, 16384),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_type": "dynamic", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 4096),
    ],
    ids=str,
)
def test_a_stretch_says_where_it_began(rope: dict[str, Any], trained: int):
    plain = {"model_type": "llama", "head_dim": 16, "num_hidden_layers": 2, "max_position_embeddings": 16384}
    for key in ("rope_parameters", "rope_scaling"):
        assert Scheme.of(plain | {"rope_theta": 1e4, key: rope}).trained == trained


def test_a_length_beside_the_settings_of_a_stretch():
    plain = {"model_type": "llama", "head_dim": 16, "num_hidden_layers": 2, "max_position_embeddings": 16384}
    plain |= {"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 8.0}}
    assert Scheme.of(plain | {"original_max_position_embeddings": 2048}).trained == 2048


def test_names_of_others_for_the_longest_length():
    assert Scheme.of({"model_type": "bloom", "n_head": 4, "seq_length": 2048}).trained == 2048
    settings = {"model_type": "chatglm", "kv_channels": 128, "num_layers": 2, "seq_length": 32768}
    assert Scheme.of(settings).trained == 32768


def test_a_model():
    config = LlamaConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=4, vocab_size=4)
    assert Scheme.of(LlamaForCausalLM(config)).trained == config.max_position_embeddings


def test_a_scheme_of_ones_own_has_none_until_it_is_said():
    scheme = Scheme(Rope(8), causal)
    assert scheme.trained is None
    assert Schedule([scheme]).trained is None
    assert scheme.to_dict().keys() == {"scheme"}
    scheme.trained = 512
    assert Scheme.from_dict(scheme.to_dict()).trained == 512
    assert copy.deepcopy(scheme).trained == 512


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Olmo-3-7B", "roberta-base"])
def test_saving_keeps_it(name: str):
    schedule = Schedule.of(PUBLISHED[name])
    again = Schedule.from_dict(json.loads(json.dumps(schedule.to_dict())))
    assert again.trained == TRAINED[name]
    assert {scheme.trained for scheme in again} == {TRAINED[name]}
    assert again.same_as(schedule)
    scheme = Scheme.from_dict(json.loads(json.dumps(schedule[0].to_dict())))
    assert scheme.trained == TRAINED[name]


def test_the_same_scheme_trained_longer_is_built_the_same_way():
    plain = {"model_type": "llama", "head_dim": 16, "num_hidden_layers": 2, "rope_theta": 1e4}
    short, long = (plain | {"max_position_embeddings": n} for n in (512, 4096))
    assert Scheme.of(short).trained != Scheme.of(long).trained
    assert Scheme.of(short).same_as(Scheme.of(long))
    assert Scheme.of(short).same_as(Scheme(Rope(16), causal))
    assert Schedule.of(short).same_as(Schedule.of(long))
    assert not Schedule.of(short).same_as(Schedule.of(long | {"num_hidden_layers": 3}))
    assert not Schedule.of(short).same_as(Schedule.of(long | {"head_dim": 32}))
