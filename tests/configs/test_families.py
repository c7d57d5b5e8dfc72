"""Every model type that turns, at transformers' own default settings, turns as transformers does."""

from __future__ import annotations

import math

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig

from milepost import (
    AxialRope,
    Llama4Scale,
    Ntk,
    Partial,
    Rope,
    Scale,
    Schedule,
    Scheme,
    TwoPartRope,
    Yarn,
    causal,
    chunks,
    configs,
    window,
)
from milepost.configs import MODEL_TYPES
from milepost.configs.layer_types import SAME_TYPE, any_type
from milepost.configs.model_types import FAMILIES, ROTARY, SAME
from tests.configs import theirs
from tests.configs.ours import read, scores_agree, whole
from tests.configs.published import ROTARY as ROTARY_CONFIGS
from tests.configs.tiny_models import MODELS
from tests.stretches import assert_ratio

# Types that came with transformers 5.23.
NEWER = {"internlm3", "iquestcoder", "lfm3"} - set(CONFIG_MAPPING)
# Types that transformers does not have, not yet or no longer.
REMOTE = {"baichuan", "bailing_moe_v2", "chatglm", "minicpm", "step3_text", "transfo-xl"} | NEWER
# Those of tiny_models.py are judged by whole models; most of them have no usable default settings.
BY_DEFAULT = sorted(set(ROTARY) - REMOTE - (set(MODELS) - {"hunyuan_v1_dense", "qwen3_vl_text"}) - {"t5_gemma_module"})


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_scores_of_turned_queries_and_keys(name):
    config = theirs.config_of({"model_type": name})
    schedule = Schedule.of(config)
    turning = [layer for layer in map(schedule.order.index, set(schedule.order)) if schedule[layer].answering("turn")]
    assert turning
    for layer in turning[:2]:
        scores_agree(Rope.of(config, layer=layer), config, layer)


@pytest.mark.parametrize("name", sorted({*BY_DEFAULT} - {"modernbert", "roformer"}))
def test_windows(name):
    config = theirs.config_of({"model_type": name})
    schedule = Schedule.of(config)
    for layer in map(schedule.order.index, set(schedule.order)):
        kinds = getattr(config, "layer_types", None)
        local = kinds[layer] == "sliding_attention" if kinds else getattr(config, "sliding_window", None)
        chunked = causal & chunks(8192) if kinds and kinds[layer] == "chunked_attention" else causal
        assert schedule[layer].parts[-1] == (causal & window(config.sliding_window) if local else chunked)


@pytest.mark.parametrize("name", sorted({*BY_DEFAULT} - {"gptj", "codegen", "roformer"}))
def test_a_share_of_the_channels_counts_only_where_transformers_reads_it(name):
    # Llama and most others turn all channels whatever partial_rotary_factor says, as long as nothing is stretched.
    config = theirs.config_of({"model_type": name, "partial_rotary_factor": 0.5})
    kind = theirs.kind_of(config, 0)
    made = theirs.embedding(config)
    width = 2 * (made.inv_freq if kind is None else getattr(made, f"{kind}_inv_freq")).numel()
    for plain in (config, config.to_dict()):
        turn = Rope.of(plain, layer=0)
        assert whole(turn).head_dim == width
    if not getattr(whole(Rope.of(config, layer=0)), "stretch", None):
        scores_agree(Rope.of(config, layer=0), config)


def test_every_family_exists_in_transformers_or_is_known_not_to():
    assert set(FAMILIES) - set(CONFIG_MAPPING) == REMOTE
    assert set(SAME) - set(CONFIG_MAPPING) == {"kimi_k2"}
    assert set(MODEL_TYPES) == set(FAMILIES) | set(SAME) | {"paligemma"}
    assert "paligemma" in CONFIG_MAPPING


LISTED = [
    "afmoe", "cohere2", "cwm", "dots1", "exaone4", "exaone_moe", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text",
    "gpt_oss", "jamba", "kimi_linear", "lfm2", "llama4_text", "minimax", "modernbert", "modernbert-decoder", "olmo3",
    "qwen2", "qwen3", "qwen3_5_text", "qwen3_next", "smollm3", "t5_gemma_module", "vaultgemma",
]  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_layer_types_that_a_config_leaves_out(name):
    config = theirs.config_of({"model_type": name})
    plain = {key: value for key, value in config.to_dict().items() if key not in ("layer_types", "layers_block_type")}
    reader = configs.read(plain, "Scheme.of")
    ours = [any_type(reader, layer, reader.family.rule) for layer in range(len(config.layer_types))]
    assert ours == [SAME_TYPE.get(kind, kind) for kind in config.layer_types]


def test_bases_that_stand_in_the_code():
    # These configs have no key for it; transformers writes 10000 into the model.
    for name in ("gptj", "codegen", "roformer"):
        assert not hasattr(theirs.config_of({"model_type": name}), "rope_parameters")


def test_gemma_3s_own_defaults_are_transformers():
    ours, config = FAMILIES["gemma3_text"].defaults, Gemma3TextConfig()
    assert {"global": ours["rope_theta"], "local": ours["rope_local_base_freq"]} == Gemma3TextConfig.default_theta
    for key in ("num_attention_heads", "head_dim", "query_pre_attn_scalar"):
        assert ours[key] == getattr(config, key)


def test_granite_has_a_scale_of_its_own():
    settings = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 40, "rope_theta": 10000.0}
    scheme = Scheme.of({"model_type": "granite", **settings, "attention_multiplier": 0.015625})
    assert scheme.parts == (Rope(64), Scale(0.015625), causal)


def test_ministral_3_sharpens_every_layer():
    scheme = Scheme.of(theirs.config_of({"model_type": "ministral3"}), layer=5)
    assert Llama4Scale(16384, weight=0.1, offset=0) in scheme.parts


def test_hunyuans_alpha_holds_the_base_still():
    settings = {"hidden_size": 2048, "num_attention_heads": 16, "head_dim": 128, "num_hidden_layers": 2}
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    plain = {"model_type": "hunyuan_v1_dense", **settings, "rope_theta": 10000.0, "rope_scaling": scaling}
    assert Rope.of(plain) == Rope(128, stretch=Ntk(1000.0))
    scores_agree(Rope.of(plain), theirs.config_of(plain))


def test_deepseek_v3_says_how_its_channels_pair():
    settings = {"model_type": "deepseek_v3", "rope_theta": 10000.0, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    assert Rope.of(settings) == Partial(Rope(64, pairs="neighbours"), of=192)
    assert Rope.of(settings | {"rope_interleave": False}) == Partial(Rope(64), of=192)


def test_kimi_k2_is_a_deepseek_v3_whose_ramp_is_a_step():
    plain = ROTARY_CONFIGS["Kimi-K2"]
    assert Schedule.of(plain | {"model_type": "kimi_k2"}).same_as(Schedule.of(plain))
    stretch = Rope.of(plain).method.stretch
    assert stretch == Yarn(32.0, 4096, fast=1.0, slow=1.0, scaled=1.0)
    # A pair that makes more than one turn within 4096 tokens is kept, any other is slowed 32 times.
    turns = [4096 / (2 * math.pi) * 50000.0 ** (-n / 32) for n in range(32)]
    found, size = read(Rope.of(plain))
    assert_ratio(found, [50000.0 ** (-n / 32) / (1 if turn > 1 else 32) for n, turn in enumerate(turns)])
    assert size == 1.0


def test_chatglm_6b_turns_by_two_positions():
    settings = {"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 28}
    assert Rope.of(settings | {"position_encoding_2d": True}) == TwoPartRope(128)
    assert Scheme.of(settings | {"kv_channels": 128}).parts == (Partial(Rope(64, pairs="neighbours"), of=128), causal)


def test_windows_of_qwen_begin_at_a_layer():
    settings = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 6, "rope_theta": 1e6}
    settings |= {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4}
    for name in ("qwen2", "qwen2_moe", "qwen3_moe"):
        config = theirs.config_of({"model_type": name, **settings})
        assert Schedule.of({"model_type": name, **settings}).same_as(Schedule.of(config))
    order = {name: Schedule.of({"model_type": name, **settings}).order for name in ("qwen2", "qwen2_moe", "qwen3_moe")}
    assert order == {"qwen2": (0, 0, 0, 0, 1, 1), "qwen2_moe": (0, 1, 0, 1, 1, 1), "qwen3_moe": (0,) * 6}


def test_exaone_4_spells_its_windows_in_letters():
    settings = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 8, "rope_theta": 1e6}
    settings |= {"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LLLG"}
    assert Schedule.of(settings).order == (0, 0, 0, 1, 0, 0, 0, 1)
    assert not Scheme.of(settings, layer=3).answering("turn")
    assert Scheme.of(settings | {"sliding_window": None}, layer=3).answering("turn")


def test_an_old_qwen_vl_config_has_its_text_beside_its_images():
    settings = {"model_type": "qwen2_5_vl", "hidden_size": 2048, "num_attention_heads": 16, "rope_theta": 1e6}
    turn = Rope.of(settings | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})
    assert turn == AxialRope(128, (16, 24, 24), theta=1e6)
