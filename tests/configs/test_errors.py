"""Nothing is guessed: a config without what its family always says is refused, and the error says what was sought."""

from __future__ import annotations

from typing import Any

import pytest

from milepost import Proportional, Rope, Schedule, Scheme
from milepost.configs import MODEL_TYPES

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
}  # fmt: skip


def without(key: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in LLAMA.items() if name != key} | more


def with_rope(**rope: Any) -> dict[str, Any]:
    return LLAMA | {"rope_scaling": rope}


def text_of(config: Any, call: Any = Rope.of, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        call(config, **options)
    return str(caught.value)


def test_a_lost_base_is_not_10000():
    # anchors.md, defect 13: readers that did not know rope_parameters fell back to 10000 in silence.
    assert text_of(without("rope_theta", rope_params={"rope_theta": 5e5})) == (
        "Rope.of(a llama config): the base of the rotation not found; looked for rope_parameters['rope_theta'], "
        "rope_theta, rotary_emb_base, rope_base. The keys nearest to these are rope_params. Please add rope_theta as "
        "the model was trained with it; 10000 is not assumed."
    )
    for call in (Scheme.of, Schedule.of):
        assert "10000 is not assumed" in text_of(without("rope_theta"), call)


@pytest.mark.parametrize(
    ("model_type", "kind", "own"),
    [
        ("llama", "sliding_attention", "full_attention"),
        ("llama", "chunked_attention", "full_attention"),
        ("mistral", "full_attention", "sliding_attention"),
    ],
)
def test_layer_types_are_refused_where_transformers_has_one_mask_for_all_layers(model_type: str, kind: str, own: str):
    plain = LLAMA | {"model_type": model_type, "sliding_window": 8, "attention_chunk_size": 8}
    plain |= {"layer_types": [own, kind]}
    text = f"and every layer of transformers' {model_type} is {own}; remove it"
    assert text in text_of(plain, Schedule.of)
    assert text in text_of(plain, Scheme.of, layer=1)
    assert Schedule.of(plain | {"layer_types": [own, own]})[1].same_as(Scheme.of(plain, layer=0))


def test_a_base_lost_by_one_layer_type():
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_type": "default"}}
    types = ["full_attention", "sliding_attention"]
    plain = without("rope_theta", model_type="olmo3", layer_types=types, rope_parameters=nested)
    assert Rope.of(plain, layer=0).theta == 1e6
    assert "the base of the rotation not found" in text_of(plain, layer=1)


def test_only_a_config_written_before_there_was_a_key_means_10000():
    for version, known in (("4.31.0.dev0", True), ("4.32.1", True), ("4.33.0", False), ("5.0.0", False)):
        plain = without("rope_theta", transformers_version=version)
        if known:
            assert Rope.of(plain) == Rope(16)
        else:
            assert "not found" in text_of(plain)
    # Mistral never had a version without the key.
    assert "not found" in text_of(without("rope_theta", model_type="mistral", transformers_version="4.31.0"))


def test_two_bases_that_disagree():
    assert text_of(LLAMA | {"rope_parameters": {"rope_theta": 1e6}}) == (
        "Rope.of(a llama config): rope_parameters has rope_theta 1000000.0, and next to it the config has 500000.0. "
        "Please keep one"
    )


def test_an_unknown_model_type():
    text = text_of(LLAMA | {"model_type": "lama"})
    assert text == (
        "Rope.of: model_type 'lama' is not known; did you mean llama or mllama or llama4? To read it one has to know "
        "how its queries and keys rotate (base, channels, pairs), what is added to its scores and what scales them, "
        "and which keys are seen. Write that in parts, such as Scheme(Rope(128, theta=500000.0), causal); "
        f"milepost.configs.MODEL_TYPES lists the {len(MODEL_TYPES)} types that are read"
    )
    assert "'zzzzzz' is not known. To read it" in text_of(LLAMA | {"model_type": "zzzzzz"})


def test_no_model_type():
    assert text_of(without("model_type"), Scheme.of) == (
        "Scheme.of: the dict has no model_type, by which the rest is read; give a model or a config of "
        "transformers, a folder with a config.json, that file, or its dict: {'model_type': 'llama', …}"
    )


def test_an_unknown_rope_type():
    assert text_of(with_rope(rope_type="yarm", factor=2.0)) == (
        "Rope.of(a llama config): rope_type is 'yarm', which is not known; did you mean yarn?; known are default, "
        "linear, dynamic, yarn, longrope, llama3, proportional"
    )


def test_two_rope_types_that_disagree():
    text = text_of(with_rope(rope_type="default", type="yarn", factor=4.0))
    assert text == "Rope.of(a llama config): rope_type is 'default' and type is 'yarn'. Please keep one"


def test_old_and_new_settings_that_disagree():
    plain = LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}
    assert "rope_parameters and rope_scaling disagree" in text_of(plain)


def test_a_setting_that_is_missing():
    assert text_of(with_rope(rope_type="linear")) == (
        "Rope.of(a llama config): rope type 'linear' needs 'factor', and is given rope_type"
    )
    for kind, key in (("dynamic", "factor"), ("longrope", "short_factor"), ("llama3", "low_freq_factor")):
        assert f"rope type '{kind}' needs '{key}'" in text_of(with_rope(rope_type=kind))


def test_two_trained_lengths_that_disagree():
    plain = with_rope(rope_type="yarn", factor=2.0, original_max_position_embeddings=4096)
    assert text_of(plain | {"original_max_position_embeddings": 2048}) == (
        "Rope.of(a llama config): original_max_position_embeddings is 2048, and 4096 inside the rope settings"
    )


def test_yarn_with_factors_of_longrope():
    text = text_of(with_rope(rope_type="yarn", short_factor=[1.0] * 8, long_factor=[2.0] * 8))
    assert "which rope type 'yarn' of llama does not read" in text


def test_a_number_of_heads_that_is_missing():
    assert text_of(without("num_attention_heads", num_attn_heads=4)) == (
        "Rope.of(a llama config): the number of heads not found; looked for num_attention_heads, n_head, n_heads, "
        "num_heads, attention_heads, encoder_attention_heads. The keys nearest to these are num_attn_heads. "
        "Please add it to the config."
    )


def test_layers_that_are_not_there():
    assert text_of(LLAMA, Scheme.of, layer=2) == "Scheme.of(layer=2): the llama config has 2 layers"
    assert text_of(LLAMA, Scheme.of, layer="0") == "Scheme.of(layer='0'): a layer is an integer, not str"
    assert "layer_types lists 1 layers, and layer 1 is not" in text_of(
        LLAMA | {"layer_types": ["full_attention"]}, Scheme.of, layer=1
    )
    smol = LLAMA | {"model_type": "smollm3", "no_rope_layers": [1]}
    assert "no_rope_layers lists 1 layers, so layer 1 is not there" in text_of(smol, Scheme.of, layer=1)


def test_a_layer_that_is_not_attention():
    plain = LLAMA | {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}
    assert text_of(plain, Scheme.of) == (
        "Scheme.of(a qwen3_next config): layer 0 is 'linear_attention', which is not attention over tokens, so no "
        "scheme describes it. Attention is in layer 1: Scheme.of(config, layer=1)"
    )


def test_layers_that_turn_differently():
    plain = LLAMA | {"model_type": "gemma3_text", "rope_local_base_freq": 1e4, "sliding_window": 8, "head_dim": 16}
    text = text_of(plain | {"num_hidden_layers": 6, "query_pre_attn_scalar": 16})
    assert text == (
        "Rope.of(a gemma3_text config): layers rotate differently; name one: Rope.of(config, layer=0). layer 0 has "
        "Rope(16); layer 5 has Rope(16, theta=500000)"
    )


def test_a_layer_without_positions():
    plain = LLAMA | {"model_type": "smollm3", "num_hidden_layers": 4}
    assert Rope.of(plain) == Rope(16, theta=500000.0)
    assert text_of(plain, layer=3) == (
        "Rope.of(a smollm3 config): layer 3 does not rotate queries and keys. Scheme.of(config) gives what it does "
        "instead"
    )


def test_a_layer_type_without_settings():
    plain = without("rope_theta", layer_types=["full_attention"], rope_parameters={"sliding_attention": {}})
    assert text_of(plain, layer=0) == (
        "Rope.of(a llama config): rope_parameters has settings of sliding_attention, but not of full_attention"
    )


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "only 'absolute' tables can be read"),
        ({"model_type": "mpt", "n_heads": 2, "attn_config": {"alibi": False}}, "MPT without ALiBi"),
        ({"model_type": "xlnet", "bi_data": True}, "turns distances round in half of the batch"),
        ({"model_type": "xlnet", "attn_type": "both"}, "it is 'bi' or 'uni'"),
        ({"model_type": "transfo-xl", "attn_type": 2}, "only 0, the relative encoding"),
        ({"model_type": "transfo-xl", "same_length": True}, "hides keys by the length of the memory"),
        ({"model_type": "deberta", "relative_attention": True, "pos_att_type": "c2p"}, "both 'c2p' and 'p2c'"),
        ({"model_type": "roformer", "rotary_value": True}, "rotates the values as well and never back"),
        ({"model_type": "chatglm", "position_encoding_2d": True}, "causal | sinks(length_of_the_prompt)"),
        (
            {"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 16},
            "ChatGLM2 divides positions and ChatGLM3 multiplies the base",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else each["model_type"],
)  # fmt: skip
def test_what_parts_cannot_say_is_refused_by_name(plain, said):
    usual = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    assert said in text_of(usual | plain, Scheme.of)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        # Two values of one setting, or none that means anything
        ({"rotary_emb_base": 1e6}, "two names of one setting disagree: rope_theta is 500000.0, rotary_emb_base is 100"),
        ({"n_embd": 256}, "two names of one setting disagree: hidden_size is 64, n_embd is 256"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_base": 1e4}}, "rope_parameters has rope_theta 500000.0"),
        ({"rope_theta": "500000"}, "rope_theta is '500000', and must be a number, greater than 0"),
        ({"rope_theta": True}, "rope_theta is True, and must be a number"),
        ({"rope_theta": [1e4]}, "rope_theta is [10000.0], and must be a number"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4', and must be an integer, at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, and must be an integer"),
        ({"model_type": "qwen3"}, "the channels of a head not found; looked for head_dim"),
        ({"head_dim": 0}, "head_dim is 0, and must be an integer"),
        ({"is_causal": "false"}, "is_causal is 'false', and must be true or false"),
        ({"is_causal": 0}, "is_causal is 0, and must be true or false"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', and must be an object of settings, or null"),
        ({"model_type": "phi", "partial_rotary_factor": 0}, "partial_rotary_factor is 0, and must be a number"),
        ({"model_type": "phi", "partial_rotary_factor": 0.01}, "of 16 channels none would rotate"),
        ({"model_type": ["llama"]}, "model_type is ['llama'], and must be a string"),
        ({"layer_types": ["full_attention"] * 3}, "a list of 3 layers, of which the model has 2"),
        ({"layer_types": "full_attention"}, "must be a list with the type of each layer"),
        (
            {"model_type": "gpt_oss", "head_dim": 16, "rope_scaling": YARN | {"partial_rotary_factor": 0.125}},
            "partial_rotary_factor is 0.125, which leaves one pair",
        ),
        # Settings that change the formula elsewhere, or that nothing reads
        ({"rope_scaling": YARN | {"attn_factor": 1.3}}, "attn_factor is 1.3, which rope type 'yarn' of llama does not"),
        ({"rope_scaling": YARN | {"low_freq_factor": 2.0}}, "low_freq_factor is 2.0, which rope type 'yarn'"),
        ({"rope_scaling": YARN | {"truncate": "false"}}, "truncate is 'false', and must be true or false"),
        ({"rope_scaling": YARN | {"factor": 0}}, "factor is 0, and must be a number, greater than 0"),
        ({"rope_scaling": YARN | {"beta_slow": 0}}, "beta_slow is 0, and must be a number"),
        ({"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 32}}, "Yarn(fast=1): fast must be at least 32"),
        ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "attention_factor is -1.0, and must be a number"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "must be an integer, at least 1"),
        ({"rope_scaling": {"factor": 8.0}}, "factor is 8.0, which rope type 'default' of llama does not read"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.5}}, "mscale is 1.5, which rope type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor is -2, and must be a number"),
        ({"rope_scaling": {"rope_type": "", "factor": 2.0}}, "rope_type is '', which is not known"),
        ({"rope_scaling": {"mrope_section": [2, 3, 3]}}, "which rope type 'default' of llama does not read; remove it"),
        ({"rope_scaling": YARN | {"atention_factor": 1.0}}, "does not read; did you mean attention_factor"),
        ({"rope_scaling": {"llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta is 0.1, which rope type 'default'"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 5e5}, "factor": 2.0}},
            "factor is 2.0, next to settings by layer type; move it into them",
        ),
        (
            {"rope_parameters": {"full_attention": YARN | {"rope_theta": 5e5}}},
            "transformers' llama has one rotation for all layers and passes over them",
        ),
        (
            {
                "layer_types": ["full_attention", "full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}},
            },
            "has settings of full_attention, sliding_attention, and transformers' llama has one rotation",
        ),
        (
            {
                "layer_types": ["full_attention", "full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 5e5}},
            },
            "has settings of full_attention, and transformers' llama has one rotation",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_a_setting_that_is_wrong_or_that_nothing_reads_is_refused_by_name(more, said):
    assert said in text_of(LLAMA | more, Scheme.of)


def test_a_share_of_zero_is_no_rotation_at_all():
    config = with_rope(rope_type="proportional", partial_rotary_factor=0.0)
    assert Rope.of(config) == Rope(16, theta=500000.0, stretch=Proportional(0.0))


def test_a_key_that_stock_transformers_does_not_read_changes_nothing():
    # rope_interleave is DeepSeek-V3's; Cohere pairs neighbours whatever it is.
    assert Rope.of(LLAMA | {"model_type": "cohere", "rope_interleave": False}).pairs == "neighbours"


def test_gpt_neox_reads_its_own_share_and_no_other():
    # transformers' GPTNeoXConfig has rotary_pct = 0.25, and nothing reads partial_rotary_factor next to it.
    for more in ({}, {"partial_rotary_factor": 1.0}, {"rotary_pct": 0.25}):
        assert Rope.of(LLAMA | {"model_type": "gpt_neox", "rotary_emb_base": 1e4} | more).width == 4
    assert "looked for rope_parameters['rope_theta'], rotary_emb_base" in text_of(LLAMA | {"model_type": "gpt_neox"})


def test_a_model_without_a_longest_length_has_no_trained_length():
    # transformers' XLNetConfig has max_position_embeddings = -1.
    xlnet = {"model_type": "xlnet", "d_model": 64, "n_head": 4, "n_layer": 2, "max_position_embeddings": -1}
    assert Scheme.of(xlnet).trained is None
