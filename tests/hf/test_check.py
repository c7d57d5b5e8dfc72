"""`milepost check`: two planted errors of every kind of convention are named, and nothing between identical pairs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import milepost as mp
from milepost.cli import app
from milepost.hf import check, extend

transformers = pytest.importorskip("transformers")

TINY = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 16, "max_position_embeddings": 4096,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip


def llama(**settings: Any) -> Any:
    given = {"rope_theta": 10000.0, "rope_type": "default"} | settings
    return transformers.LlamaConfig(**TINY, rope_parameters=given)


def model(kind: str = "Llama", **settings: Any) -> Any:
    return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**(TINY | settings)))


def rotary(
    theta: float = 10000.0, sense: float = 1.0, width: int = 32, kept: Callable[[Tensor, Tensor], Tensor] | None = None
):
    """RoPE as one writes it by hand, with a fault: pairs of halves, angles in float64 unless `kept` says otherwise."""
    f = torch.tensor([theta ** (-2 * n / width) for n in range(width // 2)], dtype=torch.float64)

    def turn(x: Tensor, position: Tensor) -> Tensor:
        p = position.double()[:, None]
        phase = (p * f if kept is None else kept(p, f).double()) * sense
        cos, sin = phase.cos().float(), phase.sin().float()
        a, b, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    return turn


def in_bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def t5(**settings: Any) -> Any:
    own = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 16}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**(own | settings)))


def umt5(**settings: Any) -> Any:
    own = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 16}
    return transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**(own | settings)))


def mt5(**settings: Any) -> Any:
    own = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 16}
    return transformers.MT5ForConditionalGeneration(transformers.MT5Config(**(own | settings)))


def mistral(window: int | None) -> dict[str, Any]:
    return TINY | {"model_type": "mistral", "head_dim": 32, "rope_theta": 10000.0, "sliding_window": window}


def scaled_in_one_layer() -> Any:
    made = model()
    made.model.layers[1].self_attn.scaling *= 1.3
    return made


def counted_from(first: int) -> Callable[[Tensor, Tensor], Tensor]:
    turn = rotary()
    return lambda x, position: turn(x, position + first)


def t5_reversed() -> Any:
    made = t5()
    for each in made.modules():
        if getattr(each, "has_relative_attention_bias", False):
            own = type(each)._relative_position_bucket
            each._relative_position_bucket = lambda distance, own=own, **given: own(-distance, **given)
    return made


def t5_bias(**settings: Any) -> mp.T5Bias:
    return mp.T5Bias(4, **settings)


def slopes(heads: int) -> Tensor:
    return mp.Alibi(heads).slopes().behind


SINK = {"model_type": "deepseek_v3", "rope_theta": 10000.0, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}


def mla(**settings: Any) -> dict[str, Any]:
    return {**TINY, **SINK, **settings}


PLANTED: dict[str, tuple[str, Callable[[], tuple[Any, Any]]]] = {
    "neighbours in a function": ("pairs", lambda: (mp.Rope(32), mp.Rope(32, pairs="neighbours"))),
    "a config without rope_interleave": ("pairs", lambda: (mla(), mla(rope_interleave=False))),
    "Cohere's code for a Llama": ("pairs", lambda: (model(), model("Cohere", rope_parameters={"rope_theta": 10000.0}))),
    "turned the other way": ("sign", lambda: (rotary(), rotary(sense=-1.0))),
    "a model and the other way": ("sign", lambda: (model(), rotary(sense=-1.0))),
    "half a million": ("base", lambda: (llama(), llama(rope_theta=500000.0))),
    "a base that is a little off": ("base", lambda: (rotary(), rotary(theta=10010.0))),
    "a model and the default base": ("base", lambda: (model(rope_parameters={"rope_theta": 5e5}), rotary())),
    "a quarter of the channels": ("partial size", lambda: (rotary(), rotary(width=8))),
    "neox with another share": (
        "partial size",
        lambda: tuple(
            {**TINY, "model_type": "gpt_neox", "rotary_pct": share, "rotary_emb_base": 10000} for share in (0.25, 0.5)
        ),
    ),
    "truncate": ("YaRN ramp", lambda: (llama(**YARN), llama(**YARN, truncate=False))),
    "beta_fast": ("YaRN ramp", lambda: (llama(**YARN), llama(**YARN, beta_fast=16.0))),
    "the paper's ramp": (
        "YaRN ramp",
        lambda: tuple(mp.Rope(64, stretch=mp.Yarn(4, 1024, ramp=ramp)) for ramp in ("code", "paper")),
    ),
    "no magnitude": ("magnitude", lambda: (llama(**YARN), llama(**YARN, attention_factor=1.0))),
    "half of it": (
        "magnitude",
        lambda: (mp.Rope(32, stretch=mp.Yarn(4, 1024)), mp.Rope(32, stretch=mp.Yarn(4, 1024, scaled=1.07))),
    ),
    "in the scale": (
        "magnitude in the scale",
        lambda: (mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Rope(32), mp.DeepseekScale(4))),
    ),
    "a scale without a root": (
        "magnitude in the scale", lambda: (mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Rope(32), mp.Scale(1.0))),
    ),
    "a model in bfloat16": ("dtype of the phases", lambda: (model(), model().bfloat16())),
    "positions in bfloat16": ("dtype of the phases", lambda: (rotary(), rotary(kept=lambda p, f: in_bf16(p) * f))),
    "phases in float16": ("dtype of the phases", lambda: (rotary(), rotary(kept=lambda p, f: (p * f).half()))),
    "phases in bfloat16": (
        "dtype of the phases", lambda: (rotary(), rotary(kept=lambda p, f: in_bf16(p) * in_bf16(f))),
    ),
    "slopes in another order": ("ALiBi slopes", lambda: (mp.Alibi(6), slopes(6).sort(descending=True).values)),
    "slopes over the root": ("ALiBi slopes", lambda: (slopes(8), slopes(8) / math.sqrt(64))),
    "Falcon's slopes": ("ALiBi slopes", lambda: (slopes(12), in_bf16(slopes(12)).double())),
    "a table for both sides": ("T5 direction", lambda: (t5_bias(), t5_bias(bidirectional=True))),
    "a model that counts the other way": ("T5 direction", lambda: (t5(), t5_reversed())),
    "fewer buckets": ("T5 buckets", lambda: (t5_bias(), t5_bias(buckets=16))),
    "a longer reach": (
        "T5 buckets",
        lambda: (t5(), t5(relative_attention_max_distance=256)),
    ),
    "a longer reach in umT5": ("T5 buckets", lambda: (umt5(), umt5(relative_attention_max_distance=256))),
    "fewer buckets in mT5": ("T5 buckets", lambda: (mt5(), mt5(relative_attention_num_buckets=16))),
    "one layer scaled otherwise": ("magnitude in the scale", lambda: (model(), scaled_in_one_layer())),
    "positions from one": ("first position", lambda: (rotary(), counted_from(1))),
    "a model and positions from one": ("first position", lambda: (model(), counted_from(1))),
    "slopes of the other sign": ("ALiBi slopes", lambda: (slopes(8), -slopes(8))),
    "a base that follows the text": ("stretch", lambda: (mp.Rope(32), mp.Rope(32, stretch=mp.DynamicNtk(64)))),
    "a config that follows the text": ("stretch", lambda: (llama(), llama(rope_type="dynamic", factor=2.0))),
    "a window": ("what is seen", lambda: (mistral(8), mistral(None))),
    "a window put in": ("what is seen", lambda: (model(), extend(model(), mp.causal & mp.window(64)))),
    "positions moved": ("other parts", lambda: (model(), extend(model(), mp.Rerope(64)))),
    "a temperature": ("other parts", lambda: (mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Rope(32), mp.LogN(64)))),
    "a temperature in T5": ("other parts", lambda: (t5(), extend(t5(), mp.LogN(64)))),
    "all pairs divided": ("stretch", lambda: (llama(), llama(rope_type="linear", factor=4.0))),
    "YaRN and Llama 3": ("YaRN ramp", lambda: (llama(**YARN, attention_factor=1.0), llama(**LLAMA3))),
}  # fmt: skip

SAYS = {
    "truncate": "truncate",
    "beta_fast": "beta_fast",
    "the paper's ramp": "its paper",
    "positions in bfloat16": "positions in bfloat16",
    "phases in float16": "phases in float16",
    "phases in bfloat16": "positions and phases in bfloat16",
    "a model in bfloat16": r"frequencies \(inv_freq\) in bfloat16",
    "slopes in another order": "another order of heads",
    "slopes over the root": "multiplied by 0.125",
    "Falcon's slopes": "B keeps them in bfloat16",
    "a model that counts the other way": "query − key",
    "half a million": "has 10,000; B 500,000",
    "one layer scaled otherwise": "in layer 1; B by .* 1 of 2 layers differ",
    "positions from one": "by position 0; B 1",
    "slopes of the other sign": "The sign is turned",
    "a base that follows the text": r"A is the same at every length; B follows the length of the text by .*DynamicNtk",
    "a window": r"A shows causal & window\(8\); B shows causal",
    "positions moved": r"A has none; B has Rerope\(64\)",
    "a quarter of the channels": "turns 32 of 32 channels; B turns 8",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_named_and_nothing_else(name: str):
    convention, make = PLANTED[name]
    found = check(*make(), dim=32)
    assert set(found.conventions) == {convention}, str(found)
    if name in SAYS:
        assert re.search(SAYS[name], str(found)), str(found)


@pytest.mark.parametrize("name", PLANTED)
def test_nothing_is_found_between_identical_pairs(name: str):
    for side in (0, 1):
        one, two = (PLANTED[name][1]()[side] for _ in range(2))
        found = check(one, two, dim=32)
        assert not found, str(found)
        assert "no difference found" in str(found)


def test_every_kind_has_two_planted_errors():
    kinds = [kind for kind, _ in PLANTED.values()]
    wanted = {
        "pairs", "sign", "base", "partial size", "YaRN ramp", "magnitude", "magnitude in the scale",
        "dtype of the phases", "ALiBi slopes", "T5 direction", "T5 buckets", "stretch", "first position",
        "what is seen", "other parts",
    }  # fmt: skip
    assert {kind for kind in kinds if kinds.count(kind) >= 2} >= wanted


MODELS: dict[str, dict[str, Any]] = {
    "Llama": {}, "Qwen3": {"head_dim": 32}, "Cohere": {}, "Gemma2": {"head_dim": 32}, "Olmo2": {},
    "Gemma3": {"head_dim": 32, "sliding_window": 64}, "GPTNeoX": {}, "Phi": {}, "SmolLM3": {"pad_token_id": 0},
    "Glm": {"head_dim": 32, "pad_token_id": 0},
    "StableLm": {}, "Mistral": {"sliding_window": None}, "GptOss": {"head_dim": 32, "num_local_experts": 2},
    "Phi3": {"pad_token_id": 0},
    "DeepseekV3": {
        "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 16, "q_lora_rank": 16,
        "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_and_its_own_config_agree(kind: str):
    name = {"Gemma3": "Gemma3Text"}.get(kind, kind)
    config = getattr(transformers, f"{name}Config")(**(TINY | MODELS[kind]))
    made = getattr(transformers, f"{kind}ForCausalLM")(config)
    found = check(made, config)
    assert not found, str(found)
    assert "its own rotation" in found.a
    assert "read from its config" in found.b


@pytest.mark.parametrize("heads", [4, 6])
def test_models_with_slopes_agree_with_their_configs(heads: int):
    width = heads * 8
    bloom = transformers.BloomConfig(hidden_size=width, n_layer=1, n_head=heads, vocab_size=16)
    mpt = transformers.MptConfig(d_model=width, n_layers=1, n_heads=heads, vocab_size=16)
    for made in (transformers.BloomForCausalLM(bloom), transformers.MptForCausalLM(mpt)):
        assert not check(made, made.config)


def test_falcons_own_slopes_are_not_those_of_its_config():
    # It rounds them to bfloat16 (and only where they are not powers of two does it matter).
    own = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 6, "vocab_size": 16, "alibi": True}
    made = transformers.FalconForCausalLM(transformers.FalconConfig(**own))
    found = check(made, made.config)
    assert set(found.conventions) <= {"ALiBi slopes"}


def test_checking_leaves_a_dynamic_model_as_it_is():
    made = model(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    before = made.model.rotary_emb.inv_freq.clone()
    check(made, made.config)
    assert torch.equal(made.model.rotary_emb.inv_freq, before)


def test_a_magnitude_that_the_scale_makes_up_for_is_said():
    size = 0.1 * math.log(4) + 1
    a = mp.Scheme(mp.Rope(32, stretch=mp.Yarn(4, 1024)))
    b = mp.Scheme(mp.Rope(32, stretch=mp.ByParts(4, 1024)), mp.Scale(size**2 / math.sqrt(32)))
    found = check(a, b)
    assert set(found.conventions) == {"magnitude", "magnitude in the scale"}
    assert "makes up for it" in str(found)


# What is refused


def test_a_function_must_say_how_wide_a_head_is():
    with pytest.raises(ValueError, match="pass dim=128"):
        check(rotary(), rotary())
    assert not check(llama(), rotary())


def test_what_turns_nothing_as_asked_is_refused():
    with pytest.raises(TypeError, match=r"takes x .* and position .* and returns x turned"):
        check(lambda x, position: None, rotary(), dim=32)
    with pytest.raises(ValueError, match=r"slopes, .heads.; slopes of 4 heads is .2, 2."):
        check(torch.ones(2, 2), slopes(4))
    with pytest.raises(ValueError, match="nothing in common that can be compared"):
        check(slopes(4), rotary(), dim=32)
    with pytest.raises(ValueError, match="no model_type"):
        check(3, llama())
    with pytest.raises(ValueError, match="mixes 32 channels otherwise than in pairs, so it is no rotation"):
        check(mp.Rope(32), lambda x, position: x.roll(1, -1) * position[:, None])
    with pytest.raises(ValueError, match=r"layers of Schedule\(.* differ; give one of its schemes"):
        check(mp.Schedule([mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Nope())]), llama())


def test_a_schedule_of_one_kind_is_its_scheme():
    scheme = mp.Scheme(mp.Rope(32), mp.causal)
    assert not check(mp.Schedule([scheme, scheme]), scheme)


def test_a_folder_that_was_saved_extended_is_read_as_such(tmp_path: Path):
    for name, part in (("plain", mp.Yarn(4, 1024)), ("rerope", mp.Rerope(64)), ("again", mp.Rerope(64))):
        extend(model(), part).save_pretrained(tmp_path / name)
    plain, rerope, again = (tmp_path / name for name in ("plain", "rerope", "again"))
    assert not check(str(rerope), again)
    assert "other parts: A has none; B has Rerope(64)" in str(check(llama(), rerope))
    assert set(check(plain, rerope).conventions) == {"stretch", "magnitude", "other parts"}
    extend(t5(), mp.LogN(64)).save_pretrained(tmp_path / "t5")
    assert check(t5(), tmp_path / "t5").conventions == ("other parts",)


def test_a_model_extended_by_its_own_scheme_is_itself():
    assert not check(model(), extend(model(), through="attend"))
    assert set(check(model(), extend(model(), mp.Yarn(4, 1024))).conventions) == {"stretch", "magnitude"}


# The command


def test_the_command_ends_with_1_where_something_differs(tmp_path: Path):
    for name, theta in (("a", 10000.0), ("b", 500000.0)):
        llama(rope_theta=theta).save_pretrained(tmp_path / name)
    done = CliRunner().invoke(app(), ["check", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 1
    assert "base: A has 10,000; B 500,000" in done.stdout
    same = CliRunner().invoke(app(), ["check", str(tmp_path / "a"), str(tmp_path / "a"), "--json"])
    assert same.exit_code == 0, same.output
    assert json.loads(same.stdout)["differences"] == []
    wrong = CliRunner().invoke(app(), ["check", str(tmp_path / "a"), str(tmp_path)])
    assert wrong.exit_code == 2
    assert "the folder has no config.json" in wrong.stderr
