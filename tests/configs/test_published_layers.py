"""What the layers of published models see, which of them turn, and how scores are scaled, as transformers has it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.masking_utils import bidirectional_mask_function, sliding_window_bidirectional_mask_function

from milepost import Llama4Scale, Nope, Partial, Schedule, Scheme, SinkLogit, SoftCap, causal, chunks, window
from milepost.seams.visible import Visible
from tests.configs import theirs
from tests.configs.published import ROTARY
from tests.oracles import assert_same

BOTH_WAYS = ("embeddinggemma-300m", "ModernBERT-base")
# Their attention modules have no such attribute; it is 1/√d in the code.
NO_SCALING = ("gptj", "codegen", "falcon", "modernbert")
ONE_WAY = [name for name in ROTARY if name not in BOTH_WAYS]


def small(plain: dict[str, Any]) -> dict[str, Any]:
    """The same config with a window of 5 and chunks of 4, where it has any."""
    plain = copy.deepcopy(plain)
    inner = plain.get("text_config", plain)
    inner |= {key: n for key, n in (("sliding_window", 5), ("attention_chunk_size", 4)) if inner.get(key)}
    return plain


def seen(scheme: Scheme, length: int) -> torch.Tensor:
    i, zero = torch.arange(length), torch.zeros(())
    found = scheme.see(zero, zero, i[:, None], i)
    return torch.ones(length, length, dtype=torch.bool) if found is None else found


def firsts(schedule: Schedule) -> list[int]:
    return [schedule.order.index(number) for number in sorted(set(schedule.order))][:4]


@pytest.mark.parametrize("name", ONE_WAY)
def test_masks(name):
    schedule, config = Schedule.of(small(ROTARY[name])), theirs.config_of(small(ROTARY[name]))
    for layer in firsts(schedule):
        assert torch.equal(seen(schedule[layer], 18), theirs.mask(config, layer, 18))


def test_masks_that_look_both_ways():
    i = torch.arange(400)
    for name in BOTH_WAYS:
        schedule, config = Schedule.of(ROTARY[name]), theirs.config_of(ROTARY[name])
        for layer in firsts(schedule):
            # Gemma counts the distance past which nothing is seen, ModernBERT the last one that is.
            reach = config.sliding_window - (name == "embeddinggemma-300m")
            local = config.layer_types[layer] == "sliding_attention"
            made = sliding_window_bidirectional_mask_function(reach) if local else bidirectional_mask_function
            assert torch.equal(seen(schedule[layer], 400), made(0, 0, i[:, None], i).expand(400, 400))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Mistral-7B-v0.1", {0: causal & window(4096), 31: causal & window(4096)}),
        ("Mistral-7B-v0.3", {0: causal}),
        ("Qwen2-7B", {0: causal, 27: causal}),
        ("Phi-3-mini-4k", {0: causal & window(2047)}),
        ("gemma-2-27b", {0: causal & window(4096), 1: causal, 45: causal}),
        ("gemma-3-27b", {0: causal & window(1024), 5: causal, 60: causal & window(1024)}),
        ("gpt-oss-20b", {0: causal & window(128), 23: causal}),
        ("Llama-4-Scout", {0: causal & chunks(8192), 3: causal, 47: causal}),
        ("command-r7b", {0: causal & window(4096), 3: causal}),
        ("Olmo-3-7B", {2: causal & window(4096), 3: causal}),
        ("embeddinggemma-300m", {0: window(257, ahead=256), 5: None}),
        ("ModernBERT-base", {0: None, 1: window(65, ahead=64)}),
    ],
)
def test_windows_of_the_true_size(name, expected):
    for layer, visible in expected.items():
        parts = [part for part in Scheme.of(ROTARY[name], layer=layer).parts if isinstance(part, Visible)]
        assert parts == ([] if visible is None else [visible])


@pytest.mark.parametrize(
    ("name", "still"),
    [("Llama-4-Scout", 4), ("Llama-4-Maverick", 4), ("SmolLM3-3B", 4), ("command-r7b", 4), ("Llama-3-8B", None)],
)
def test_layers_without_positions(name, still):
    schedule, config = Schedule.of(ROTARY[name]), theirs.config_of(ROTARY[name])
    for layer, scheme in enumerate(schedule):
        assert (Nope() in scheme.parts) == (still is not None and (layer + 1) % still == 0)
        if hasattr(config, "no_rope_layers"):
            assert (Nope() in scheme.parts) == (not config.no_rope_layers[layer])


@pytest.mark.parametrize("name", [name for name, plain in ROTARY.items() if plain["model_type"] not in NO_SCALING])
def test_softmax_scales(name):
    config, scheme = theirs.config_of(ROTARY[name]), Scheme.of(ROTARY[name])
    turn = next(part for part in scheme.parts if hasattr(part, "turn"))
    sharper = scheme.sharpen(torch.zeros(1, 1), torch.ones(1, 1))
    by = scheme.scale(turn.of if isinstance(turn, Partial) else turn.head_dim) * (
        1.0 if sharper is None else float(sharper)
    )
    assert by == pytest.approx(theirs.attention(config, 0).scaling, rel=1e-14)


def test_deepseek_sharpens_by_the_square_of_yarns_magnitude():
    by = {name: Scheme.of(ROTARY[name]).sharpen(torch.zeros(1, 1), torch.ones(1, 1)) for name in ROTARY}
    assert float(by["DeepSeek-V3"]) == pytest.approx(1.3688879454113936**2, rel=1e-14)
    assert float(by["DeepSeek-V2"]) == float(by["DeepSeek-V2-Lite"]) == pytest.approx(1.26080377740598549**2, rel=1e-14)


def test_temperatures_of_layers_without_positions():
    config, scheme = theirs.config_of(ROTARY["Llama-4-Scout"]), Scheme.of(ROTARY["Llama-4-Scout"], layer=3)
    assert Llama4Scale(8192, weight=0.1, offset=1) in scheme.parts
    i = torch.tensor([[0, 8190, 8191, 16383, 131071, 1000000]])
    # As Llama4TextAttention writes it.
    oracle = torch.log1p(torch.floor((i.double() + 1.0) / config.floor_scale)) * config.attn_scale + 1.0
    assert_same(scheme.sharpen(i, i + 1)[:, 0], oracle)
    assert Scheme.of(ROTARY["Llama-4-Scout"], layer=0).sharpen(i, i + 1) is None


def test_caps_and_sinks():
    for name in ("gemma-2-2b", "gemma-2-27b"):
        assert (
            SoftCap(theirs.attention(theirs.config_of(ROTARY[name]), 0).attn_logit_softcapping)
            in Scheme.of(ROTARY[name]).parts
        )
    schedule = Schedule.of(ROTARY["gpt-oss-20b"])
    sinks = [next(part for part in scheme.parts if isinstance(part, SinkLogit)) for scheme in schedule]
    assert sinks[0].logit.shape == theirs.attention(theirs.config_of(ROTARY["gpt-oss-20b"]), 0).sinks.shape
    assert len(set(map(id, sinks))) == 24


def test_layers_that_agree_are_one_object():
    assert len(Schedule.of(ROTARY["Llama-3.1-8B"]).schemes) == 1
    assert Schedule.of(ROTARY["gemma-3-1b"]).order == (0, 0, 0, 0, 0, 1) * 4 + (0, 0)
    assert Schedule.of(ROTARY["Llama-4-Scout"]).order == (0, 0, 0, 1) * 12


def test_a_cap_that_transformers_does_not_apply_to_gemma_3_is_refused():
    config = {
        "model_type": "gemma3_text", "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2,
        "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "rope_theta": 1e6,
        "attn_logit_softcapping": 2.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="transformers does not apply to Gemma 3"):
        Scheme.of(config)
    assert Scheme.of(config | {"attn_logit_softcapping": None}, layer=5).parts[-1] == causal
