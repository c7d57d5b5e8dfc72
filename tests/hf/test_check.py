"""`milepost check`: planted differences are named and nothing else is; identical pairs have none."""

from __future__ import annotations

import copy
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
    "num_hidden_layers": 2, "vocab_size": 32, "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip
MLA = {
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 16, "q_lora_rank": 16,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2,
}  # fmt: skip
TWO_STACKS = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}
SIZES: dict[str, dict[str, Any]] = {
    "Bart": TWO_STACKS, "Bert": {"max_position_embeddings": 64}, "Bloom": {"n_layer": 2, "n_head": 2},
    "Cohere": {}, "DeepseekV3": MLA, "Falcon": {}, "Gemma2": {"head_dim": 32},
    "Gemma3Text": {"head_dim": 32, "sliding_window": 16, "num_hidden_layers": 6},
    "Glm": {"head_dim": 32, "eos_token_id": 1},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "max_position_embeddings": 64}, "GPTNeoX": {},
    "GPTJ": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_inner": 64, "rotary_dim": 16, "n_positions": 512,
             "max_position_embeddings": 512},
    "GptOss": {"head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 1}, "Llama": {},
    "Mistral": {"sliding_window": None}, "MT5": T5,
    "Mpt": {"d_model": 64, "n_layers": 2, "n_heads": 2, "max_seq_len": 4096},
    "OPT": {"ffn_dim": 64, "max_position_embeddings": 64}, "Phi3": {}, "Qwen2": {}, "Qwen3": {"head_dim": 32},
    "Roberta": {"max_position_embeddings": 65}, "SmolLM3": {}, "StableLm": {}, "T5": T5, "UMT5": T5,
}  # fmt: skip


def config(kind: str = "Llama", **settings: Any) -> Any:
    return getattr(transformers, f"{kind}Config")(**(TINY | SIZES[kind] | settings))


def model(kind: str = "Llama", change: Callable[[Any], object] | None = None, **settings: Any) -> Any:
    """A small model, the same one every time, with a fault put in."""
    torch.manual_seed(0)
    made = transformers.AutoModel.from_config(config(kind, **settings))
    if change is not None:
        change(made)
    return made


def rope(**settings: Any) -> Any:
    return config(rope_parameters={"rope_theta": 10000.0, "rope_type": "default"} | settings)


def rotary(
    theta: float = 10000.0, sense: float = 1.0, width: int = 32, kept: Callable[[Tensor, Tensor], Tensor] | None = None
):
    """RoPE as one writes it by hand, with a fault: pairs of halves, angles in float64 unless `kept` rounds them."""
    f = torch.tensor([theta ** (-2 * n / width) for n in range(width // 2)], dtype=torch.float64)

    def turn(x: Tensor, position: Tensor) -> Tensor:
        p = position.double()[:, None]
        phase = (p * f if kept is None else kept(p, f).double()) * sense
        cos, sin = phase.cos().float(), phase.sin().float()
        a, b, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    return turn


def counted_from(first: int) -> Callable[[Tensor, Tensor], Tensor]:
    turn = rotary()
    return lambda x, position: turn(x, position + first)


def swapped_function(x: Tensor, position: Tensor) -> Tensor:
    phase = position.double()[:, None] * 10000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    cos, sin = phase.sin().float(), phase.cos().float()
    a, b = x[..., :16], x[..., 16:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def in_bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def slopes(heads: int) -> Tensor:
    return mp.Alibi(heads).slopes().behind


def mla(**settings: Any) -> Any:
    return config("DeepseekV3", **settings)


# Faults put into a model


def cos_for_sin(made: Any) -> None:
    own = made.rotary_emb.forward
    made.rotary_emb.forward = lambda *args, **options: own(*args, **options)[::-1]


def frequency(n: int, value: float) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        made.rotary_emb.inv_freq[n] = value

    return change


def in_layer(n: int, fault: Callable[..., Any]) -> Callable[[Any], None]:
    """Wrap the attention of one layer: fault(own, *args, **kwargs)."""

    def change(made: Any) -> None:
        layer = made.layers[n].self_attn
        own = layer.forward
        layer.forward = lambda *args, **options: fault(own, *args, **options)

    return change


def angles_negated(own: Any, *args: Any, position_embeddings: Any, **options: Any) -> Any:
    cos, sin = position_embeddings
    return own(*args, position_embeddings=(cos, -sin), **options)


def no_rotation(own: Any, *args: Any, position_embeddings: Any, **options: Any) -> Any:
    cos, sin = position_embeddings
    return own(*args, position_embeddings=(torch.ones_like(cos), torch.zeros_like(sin)), **options)


def one_pair_still(own: Any, *args: Any, position_embeddings: Any, **options: Any) -> Any:
    cos, sin = (each.clone() for each in position_embeddings)
    for channel in (5, 21):
        cos[..., channel], sin[..., channel] = 1.0, 0.0
    return own(*args, position_embeddings=(cos, sin), **options)


def larger_cosines(own: Any, *args: Any, position_embeddings: Any, **options: Any) -> Any:
    return own(*args, position_embeddings=tuple(1.2 * each for each in position_embeddings), **options)


def output_halved(own: Any, *args: Any, **options: Any) -> Any:
    out, *others = own(*args, **options)
    return 0.5 * out, *others


def sees_ahead(own: Any, *args: Any, attention_mask: Any = None, **options: Any) -> Any:
    t = args[0].shape[1] if args else options["hidden_states"].shape[1]
    return own(*args, attention_mask=torch.ones(1, 1, t, t, dtype=torch.bool), **options)


def attribute(path: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda made: setattr(made.get_submodule(path), name, value)


def t5_reversed(made: Any) -> None:
    for each in made.modules():
        if getattr(each, "has_relative_attention_bias", False):
            own = type(each)._relative_position_bucket
            each._relative_position_bucket = lambda distance, own=own, **given: own(-distance, **given)


def table_shifted(made: Any) -> None:
    table = made.embeddings.position_embeddings.weight
    table.data = table.data.roll(-1, 0)


def table_read_from_one(made: Any) -> None:
    made.embeddings.position_ids.add_(1)


def table_row_lost(made: Any) -> None:
    made.wpe.weight.data[7] = 0


def half_slopes(made: Any) -> None:
    own = made.build_alibi_tensor
    made.build_alibi_tensor = lambda *args, **options: own(*args, **options) / 2


def sinks_zero(made: Any) -> None:
    made.layers[1].self_attn.sinks.data.fill_(3.0)


def one_bias_lost(made: Any) -> None:
    made.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data[3] = 7.0


Pair = tuple[str, str, Callable[[], tuple[Any, Any]]]

PLANTED: dict[str, Pair] = {
    # Findings: what was silent, or named wrongly
    "Llama and BLOOM": ("position encoding", r"rotary: .*ALiBi", lambda: (model(), model("Bloom"))),
    "Llama's and BLOOM's configs": ("position encoding", r"rotary: .*ALiBi", lambda: (config(), config("Bloom"))),
    "RoBERTa and BERT": (
        "position table offset",
        "row 1.*row 0",
        lambda: (config("Roberta"), config("Bert", max_position_embeddings=64)),
    ),
    "a longer table": (
        "position table length",
        "64 positions.*128",
        lambda: (config("GPT2"), config("GPT2", n_positions=128, max_position_embeddings=128)),
    ),
    "a table read from row 1": (
        "position table offset",
        "row 0.*row 1",
        lambda: (model("Bert"), model("Bert", table_read_from_one)),
    ),
    "a table shifted by a row": (
        "values of the position table",
        "The same rows, shifted",
        lambda: (model("Bert"), model("Bert", table_shifted)),
    ),
    "cos and sin swapped": ("cos and sin", "cos first.*sin first", lambda: (model(), model(change=cos_for_sin))),
    "cos and sin swapped in a function": ("cos and sin", "sin first", lambda: (mp.Rope(32), swapped_function)),
    "one layer backwards": (
        "sign",
        r"\(layer 1\).*\+pθ.*−pθ.*forward\s+\(replaced\s+in\s+B\)",
        lambda: (model(), model(change=in_layer(1, angles_negated))),
    ),
    "one frequency zeroed": (
        "frequencies",
        r"0\.17783.*B  0$.*channels 3 and 19.*In all pair 3 of 16",
        lambda: (model(), model(change=frequency(3, 0.0))),
    ),
    "llama3's high_freq_factor": (
        "llama3 high_freq_factor",
        "high_freq_factor 4.*high_freq_factor 8",
        lambda: (rope(**LLAMA3), rope(**LLAMA3 | {"high_freq_factor": 8.0})),
    ),
    # Rotations
    "neighbours in a function": ("pairs", "halves.*neighbours", lambda: (mp.Rope(32), mp.Rope(32, pairs="neighbours"))),
    "a config without rope_interleave": ("pairs", "neighbours", lambda: (mla(), mla(rope_interleave=False))),
    "Cohere's code for a Llama": (
        "pairs",
        "halves.*neighbours",
        lambda: (model(), model("Cohere", rope_parameters={"rope_theta": 10000.0})),
    ),
    "rotated the other way": ("sign", r"\+pθ.*−pθ", lambda: (rotary(), rotary(sense=-1.0))),
    "a model and the other way": ("sign", r"\+pθ.*−pθ", lambda: (model(), rotary(sense=-1.0))),
    "half a million": ("base", "10,000.*500,000", lambda: (rope(), rope(rope_theta=500000.0))),
    "a base that is a little off": ("base", "10,000.*10,010", lambda: (rotary(), rotary(theta=10010.0))),
    "a model and the default base": (
        "base",
        "500,000.*10,000",
        lambda: (model(rope_parameters={"rope_theta": 5e5}), rotary()),
    ),
    "another base in a model's buffer": (
        "base",
        "10,000.*20,000",
        lambda: (
            model(),
            model(change=lambda made: made.rotary_emb.inv_freq.copy_(20000.0 ** (-torch.arange(16) / 16))),
        ),
    ),
    "all frequencies halved in a buffer": (
        "stretch",
        "none.*by 2",
        lambda: (model(), model(change=lambda made: made.rotary_emb.inv_freq.div_(2))),
    ),
    "a frequency a little off": (
        "frequencies",
        "channels 2 and 18",
        lambda: (model(), model(change=frequency(2, 0.3))),
    ),
    "a quarter of the channels": (
        "rotary width",
        "rotates 32 of 32.*rotates 8 of 32",
        lambda: (rotary(), rotary(width=8)),
    ),
    "neox with another share": (
        "rotary width",
        "rotates 8 of 32.*rotates 16 of 32",
        lambda: tuple(
            config(
                "GPTNeoX",
                rope_parameters={"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": share},
            )
            for share in (0.25, 0.5)
        ),
    ),
    "one layer without rotation": (
        "rotation",
        r"\(layer 0\).*rotates 32 of 32.*no rotation",
        lambda: (model(), model(change=in_layer(0, no_rotation))),
    ),
    "one pair still in one layer": (
        "frequencies",
        r"\(layer 1\).*0\.056.*B  0$.*channels 5 and 21",
        lambda: (model(), model(change=in_layer(1, one_pair_still))),
    ),
    "truncate": ("yarn truncate", "True.*False", lambda: (rope(**YARN), rope(**YARN, truncate=False))),
    "beta_fast": ("yarn beta_fast", "32.*16", lambda: (rope(**YARN), rope(**YARN, beta_fast=16.0))),
    "the paper's ramp": (
        "yarn ramp",
        "code.*paper",
        lambda: tuple(mp.Rope(64, stretch=mp.Yarn(4, 1024, ramp=ramp)) for ramp in ("code", "paper")),
    ),
    "another trained length": (
        "yarn original_max_position_embeddings",
        "1024.*2048",
        lambda: (rope(**YARN), rope(**YARN | {"original_max_position_embeddings": 2048})),
    ),
    "another factor": ("yarn factor", "4.*8", lambda: (rope(**YARN), rope(**YARN | {"factor": 8.0}))),
    "all pairs divided": ("stretch", r"none.*Interpolate\(4\)", lambda: (rope(), rope(rope_type="linear", factor=4.0))),
    "YaRN and Llama 3": ("stretch", "Yarn.*Llama3", lambda: (rope(**YARN, attention_factor=1.0), rope(**LLAMA3))),
    "a base that follows the text": (
        "stretch",
        "none.*DynamicNtk",
        lambda: (mp.Rope(32), mp.Rope(32, stretch=mp.DynamicNtk(64))),
    ),
    "a config that follows the text": (
        "stretch",
        "none.*DynamicNtk",
        lambda: (rope(), rope(rope_type="dynamic", factor=2.0)),
    ),
    "no magnitude": (
        "yarn attention_factor",
        r"attention_factor 1$",
        lambda: (rope(**YARN), rope(**YARN, attention_factor=1.0)),
    ),
    "larger cosines in one layer": (
        "magnitude",
        r"\(layer 0\).*× 1\n.*× 1\.2",
        lambda: (model(), model(change=in_layer(0, larger_cosines))),
    ),
    "a rotary module that is scaled": (
        "magnitude",
        r"× 1\n.*× 1\.5",
        lambda: (model(), model(change=attribute("rotary_emb", "attention_scaling", 1.5))),
    ),
    "a model in bfloat16": (
        "dtype of the angles",
        "float32 or better.*inv_freq in bfloat16",
        lambda: (model(), model(change=lambda made: made.bfloat16())),
    ),
    "positions in bfloat16": (
        "dtype of the angles",
        "B  positions in bfloat16",
        lambda: (rotary(), rotary(kept=lambda p, f: in_bf16(p) * f)),
    ),
    "phases in float16": (
        "dtype of the angles",
        "B  angles in float16",
        lambda: (rotary(), rotary(kept=lambda p, f: (p * f).half())),
    ),
    "phases in bfloat16": (
        "dtype of the angles",
        "B  positions and angles in bfloat16",
        lambda: (rotary(), rotary(kept=lambda p, f: in_bf16(p) * in_bf16(f))),
    ),
    "positions from one": ("first position", "A  0\n  B  1", lambda: (rotary(), counted_from(1))),
    "a model and positions from one": ("first position", "A  0\n  B  1", lambda: (model(), counted_from(1))),
    # Scores
    "one layer scaled otherwise": (
        "softmax scale",
        r"\(layer 1\).*× 1\.3.*scaling\s+\(0\.17678 in A",
        lambda: (
            model(),
            model(
                change=lambda made: setattr(made.layers[1].self_attn, "scaling", 1.3 * made.layers[1].self_attn.scaling)
            ),
        ),
    ),
    "a scale in the config": (
        "softmax scale",
        "B's scores are 0.5 times",
        lambda: (config("Gemma2", query_pre_attn_scalar=32), config("Gemma2", query_pre_attn_scalar=128)),
    ),
    "a scale of DeepSeek's": (
        "softmax scale",
        "× 0.176",
        lambda: (mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Rope(32), mp.DeepseekScale(4))),
    ),
    "a scale without a root": (
        "softmax scale",
        "× 1$",
        lambda: (mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Rope(32), mp.Scale(1.0))),
    ),
    "a temperature": (
        "softmax temperature",
        r"none.*LogN\(64\)",
        lambda: (mp.Scheme(mp.Rope(32)), mp.Scheme(mp.Rope(32), mp.LogN(64))),
    ),
    "a temperature in T5": ("softmax temperature", "LogN", lambda: (model("T5"), extend(model("T5"), mp.LogN(4096)))),
    "a soft cap": (
        "soft cap",
        r"SoftCap\(50\).*SoftCap\(30\)",
        lambda: (config("Gemma2"), config("Gemma2", attn_logit_softcapping=30.0)),
    ),
    "a soft cap in one layer": (
        "soft cap",
        r"\(layer 1\).*no cap.*cap 2",
        lambda: (
            model("Gemma2", attn_logit_softcapping=None, attn_implementation="eager"),
            model(
                "Gemma2",
                attribute("layers.1.self_attn", "attn_logit_softcapping", 2.0),
                attn_logit_softcapping=None,
                attn_implementation="eager",
            ),
        ),
    ),
    "a window": (
        "mask",
        r"causal & window\(8\).*B  causal",
        lambda: (config("Mistral", sliding_window=8), config("Mistral")),
    ),
    "a window put in": (
        "mask",
        r"B  causal & window\(64\)",
        lambda: (model(), extend(model(), mp.causal & mp.window(64))),
    ),
    "a layer that sees ahead": (
        "mask",
        r"\(layer 0\).*query 0 sees keys 0\n.*query 0 sees keys 0–95",
        lambda: (model(), model(change=in_layer(0, sees_ahead))),
    ),
    "other layers with a window": (
        "mask",
        r"\(layers 2, 5\)",
        lambda: tuple(
            config(
                "Gemma3Text",
                layer_types=["sliding_attention" if (n + 1) % each else "full_attention" for n in range(6)],
                rope_parameters={
                    kind: {"rope_type": "default", "rope_theta": 1e4}
                    for kind in ("full_attention", "sliding_attention")
                },
            )
            for each in (3, 7)
        ),
    ),
    "a local base": (
        "base",
        r"\(layers 0–4\).*10,000.*20,000",
        lambda: tuple(
            config(
                "Gemma3Text",
                rope_parameters={
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": each},
                },
            )
            for each in (1e4, 2e4)
        ),
    ),
    "layers without rotation": (
        "position encoding",
        r"\(layer 1\).*rotary.*none",
        lambda: (config("SmolLM3", no_rope_layers=[1, 1]), config("SmolLM3", no_rope_layers=[1, 0])),
    ),
    "QK norm": (
        "QK norm",
        r"none.*k_norm.weight \[32\], q_norm.weight \[32\]",
        lambda: (
            config(rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
            config("Qwen3", rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        ),
    ),
    "sinks of a layer": ("values of sinks", r"\(layer 1\)", lambda: (model("GptOss"), model("GptOss", sinks_zero))),
    "positions moved": ("position remapping", r"none.*Rerope\(64\)", lambda: (model(), extend(model(), mp.Rerope(64)))),
    "half of the output": (
        "attention output",
        r"\(layer 1\).*scores agree",
        lambda: (model(), model(change=in_layer(1, output_halved))),
    ),
    "one layer fewer": ("layers", "2 layers.*3 layers", lambda: (config(), config(num_hidden_layers=3))),
    # Slopes, buckets, tables
    "slopes in another order": (
        "ALiBi slopes",
        "another order of heads",
        lambda: (mp.Alibi(6), slopes(6).sort(descending=True).values),
    ),
    "slopes over the root": ("ALiBi slopes", "0.125 times", lambda: (slopes(8), slopes(8) / math.sqrt(64))),
    "slopes in bfloat16": (
        "ALiBi slopes",
        "B keeps them in bfloat16",
        lambda: (slopes(12), in_bf16(slopes(12)).double()),
    ),
    "slopes that are zero": ("ALiBi slopes", "4 of 4 heads differ", lambda: (torch.zeros(4), torch.ones(4))),
    "slopes of the other sign": ("ALiBi slopes", "The sign is reversed", lambda: (slopes(8), -slopes(8))),
    "one head's slope": (
        "ALiBi slopes",
        r"1 of 8 heads differ \(head 2",
        lambda: (slopes(8), slopes(8) * torch.tensor([1, 1, 2] + [1] * 5)),
    ),
    "half of BLOOM's slopes": (
        "ALiBi slopes",
        r"\(layers 0–1\).*m plus -0\.03125",
        lambda: (model("Bloom"), model("Bloom", half_slopes)),
    ),
    "a base one part in ten thousand higher": (
        "base",
        r"10,000$.*10,001$",
        lambda: (rotary(), rotary(10001.0)),
    ),
    "a base in a config, one part in ten thousand higher": (
        "base",
        r"10,000$.*10,001$",
        lambda: (rope(), rope(rope_theta=10001.0)),
    ),
    "MPT's alibi_bias_max": (
        "ALiBi slopes",
        "2 of 2 heads differ",
        lambda: tuple(config("Mpt", attn_config={"alibi_bias_max": each}) for each in (8, 16)),
    ),
    "a table for both sides": (
        "T5 buckets: bidirectional",
        "False.*True",
        lambda: (mp.T5Bias(4), mp.T5Bias(4, bidirectional=True)),
    ),
    "a model that counts the other way": (
        "T5 direction",
        "query − key",
        lambda: (model("T5"), model("T5", t5_reversed)),
    ),
    "fewer buckets": (
        "T5 buckets: relative_attention_num_buckets",
        "32.*16",
        lambda: (mp.T5Bias(4), mp.T5Bias(4, buckets=16)),
    ),
    "a longer reach": (
        "T5 buckets: relative_attention_max_distance",
        "128.*256",
        lambda: (config("T5"), config("T5", relative_attention_max_distance=256)),
    ),
    "a longer reach in umT5": (
        "T5 buckets: relative_attention_max_distance",
        "128.*256",
        lambda: (model("UMT5"), model("UMT5", relative_attention_max_distance=256)),
    ),
    "one bucket's bias": (
        "values of relative_attention_bias.weight",
        r"decoder layer 0.*1 of 32 rows",
        lambda: (model("T5"), model("T5", one_bias_lost)),
    ),
    "one row of a table": (
        "values of the position table",
        "1 of 64 rows",
        lambda: (model("GPT2"), model("GPT2", table_row_lost)),
    ),
    "OPT's offset": ("position table offset", "row 0.*row 2", lambda: (config("GPT2"), config("OPT"))),
    "GPT-2 and Llama": ("position encoding", "learned table.*rotary", lambda: (config("GPT2"), config())),
    "T5 and BART": (
        "position encoding",
        "T5 buckets.*learned table",
        lambda: (config("T5", d_kv=32, d_model=64, num_heads=2), config("Bart")),
    ),
}

BESIDES = {"T5 and BART": {"softmax scale"}, "a quarter of the channels": set()}
"""What else is true of a pair."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_named_and_nothing_else(name: str):
    convention, shown, make = PLANTED[name]
    found = check(*make(), dim=32)
    assert set(found.conventions) == {convention} | BESIDES.get(name, set()), str(found)
    assert re.search(shown, str(found), re.DOTALL | re.MULTILINE), str(found)
    assert max(map(len, str(found).splitlines())) <= 80


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", PLANTED)
def test_nothing_is_found_between_identical_pairs(name: str):
    for side in (0, 1):
        one, two = (PLANTED[name][2]()[side] for _ in range(2))
        found = check(one, two, dim=32)
        assert not found, str(found)
        assert "no difference found" in str(found)


@pytest.mark.sample(10)
@pytest.mark.parametrize("kind", SIZES)
def test_a_model_agrees_with_its_copy_and_its_config(kind: str):
    made = model(kind)
    for other in (copy.deepcopy(made), made.config, made.config.to_dict()):
        found = check(made, other)
        assert not found, str(found)
        assert any(each.startswith("attention outputs") for each in found.compared)
        assert not [each for each in found.not_compared if not each.startswith("values of ")], found.not_compared


# What is not compared is named


def test_a_config_has_no_values_to_compare():
    found = check(model("Bert"), config("Bert"))
    assert found.not_compared == ("values of the position table: BertConfig (config) has no weights",)
    assert "not compared: values of the position table" in str(found)
    assert found.to_dict()["not_compared"] == found.not_compared


def test_a_function_has_a_rotation_and_nothing_else():
    found = check(config(), rotary())
    assert not found
    assert any("everything but rotary: turn (function)" in each for each in found.not_compared)


def test_fields_that_no_scheme_reads_are_listed():
    found = check(config(), config(hidden_act="gelu", rms_norm_eps=1e-3))
    assert not found
    assert "hidden_act ('silu', 'gelu'), rms_norm_eps (1e-06, 0.001)" in " ".join(found.not_compared)


def test_other_architectures_are_not_said_to_agree():
    plain = {"rope_theta": 10000.0, "rope_type": "default"}
    found = check(config(rope_parameters=plain), config("Qwen2", rope_parameters=plain))
    assert not found, str(found)
    assert any("k_proj.bias" in each for each in found.not_compared)
    assert any("llama and qwen2 are different architectures" in each for each in found.not_compared)


def test_a_type_that_we_do_not_read_is_run():
    made = {"attention_type": "original_full", **TINY, "max_position_embeddings": 64}
    one, two = (transformers.BigBirdConfig(**made) for _ in range(2))
    found = check(one, two)
    assert not found
    assert any("model_type 'big_bird' cannot be read" in each for each in found.not_compared)


def test_a_layer_that_departs_from_its_config_is_found_where_outputs_cannot_be_compared():
    found = check(model(change=in_layer(1, angles_negated)), config("Bloom"))
    assert "sign: A against its own config (layer 1)" in str(found)


def test_a_model_that_cannot_be_run_is_named():
    def refuse(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no kernel for this chip")

    found = check(model(change=lambda made: setattr(made.layers[0].self_attn, "forward", refuse)), config())
    assert any("it could not be run (no kernel for this chip)" in each for each in found.not_compared)
    assert not found
    assert found.not_run == found.not_compared[-1:]
    assert "not known: a model could not be run" in str(found)
    assert "no difference found" not in str(found)


def test_a_config_of_which_transformers_builds_no_model_is_not_said_to_agree():
    wrong = config().to_dict() | {"hidden_act": "no such activation"}
    found = check(wrong, wrong)
    assert len(found.not_run) == 1
    assert "not known: a model could not be run" in str(found)


@pytest.mark.parametrize("edit", ["frequencies", "scale", "causality"])
def test_a_model_that_ends_texts_by_several_tokens_is_run(edit: str):
    made = {"eos_token_id": [1, 2], "pad_token_id": 0}
    one = model(**made)
    assert not check(one, copy.deepcopy(one)).not_compared
    two = copy.deepcopy(one)
    if edit == "frequencies":
        two.rotary_emb.inv_freq.mul_(0.5)
    elif edit == "scale":
        two.layers[0].self_attn.scaling *= 2
    else:
        two.layers[0].self_attn.is_causal = False
    assert check(one, two), edit


# Nothing is changed, and what was extended is compared by what it does now


def test_checking_leaves_a_model_as_it_is():
    made = model(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, max_position_embeddings=64
    )
    made.train()
    before = {name: each.clone() for name, each in made.state_dict().items()}
    inv_freq = made.rotary_emb.inv_freq.clone()
    state = {name: dict(each.__dict__) for name, each in made.named_modules()}
    assert not check(made, made.config)
    assert torch.equal(made.rotary_emb.inv_freq, inv_freq)
    assert all(torch.equal(each, before[name]) for name, each in made.state_dict().items())
    assert {name: dict(each.__dict__) for name, each in made.named_modules()} == state
    assert made.training


def test_a_magnitude_that_the_scale_makes_up_for_is_no_difference():
    size = 0.1 * math.log(4) + 1
    a = mp.Scheme(mp.Rope(32, stretch=mp.Yarn(4, 1024)))
    b = mp.Scheme(mp.Rope(32, stretch=mp.ByParts(4, 1024)), mp.Scale(size**2 / math.sqrt(32)))
    assert not check(a, b)
    c = mp.Scheme(mp.Rope(32, stretch=mp.ByParts(4, 1024)))
    assert check(a, c).conventions == ("stretch",)


def test_a_folder_that_was_saved_extended_is_read_as_such(tmp_path: Path):
    for name, part in (("plain", mp.Yarn(4, 4096)), ("rerope", mp.Rerope(64)), ("again", mp.Rerope(64))):
        extend(model(rope_parameters={"rope_theta": 1e4, "rope_type": "default"}), part).save_pretrained(
            tmp_path / name
        )
    plain, rerope, again = (tmp_path / name for name in ("plain", "rerope", "again"))
    assert not check(str(rerope), again)
    assert check(rope(), rerope).conventions == ("position remapping",)
    assert set(check(plain, rerope).conventions) == {"stretch", "position remapping"}
    extend(model("T5"), mp.LogN(4096)).save_pretrained(tmp_path / "t5")
    assert check(model("T5"), tmp_path / "t5").conventions == ("softmax temperature",)


@pytest.mark.parametrize("kind", ["rope", "T5"])
def test_a_saved_folder_whose_config_was_edited_is_refused(tmp_path: Path, kind: str):
    made, part = (model("T5"), mp.LogN(4096)) if kind == "T5" else (model(), mp.Rerope(64))
    extend(made, part).save_pretrained(tmp_path)
    stored = tmp_path / "config.json"
    config = json.loads(stored.read_text())
    stored.write_text(json.dumps(config | {"relative_attention_max_distance": 99, "partial_rotary_factor": 0.5}))
    if kind == "rope":
        config["rope_parameters"]["rope_theta"] = 5e5
        stored.write_text(json.dumps(config))
    for pair in ((tmp_path, made), (made, tmp_path)):
        with pytest.raises(ValueError, match="check: this config was changed after milepost stored an extension"):
            check(*pair)


@pytest.mark.parametrize("part", [mp.Yarn(4, 4096), mp.Rerope(64), mp.LogN(4096)], ids=["rotary", "place", "scale"])
def test_extended_models_are_compared_by_what_they_do(part: object):
    one, two = (extend(model(), part) for _ in range(2))
    found = check(one, two)
    assert not found, str(found)
    assert any(each.startswith("attention outputs") for each in found.compared)
    assert len(check(model(), one).conventions) == 1
    assert not check(model(), extend(model(), through="attend"))


# What is refused


def test_a_function_must_come_with_the_width_of_a_head():
    with pytest.raises(ValueError, match="pass dim=128"):
        check(rotary(), rotary())
    assert not check(rope(), rotary())


def test_what_rotates_nothing_as_asked_is_refused():
    with pytest.raises(TypeError, match=r"takes x .* and position .* and returns x rotated"):
        check(lambda x, position: None, rotary(), dim=32)
    with pytest.raises(ValueError, match=r"slopes, .heads.; slopes of 4 heads is .2, 2."):
        check(torch.ones(2, 2), slopes(4))
    with pytest.raises(ValueError, match="nothing in common that can be compared"):
        check(slopes(4), rotary(), dim=32)
    with pytest.raises(ValueError, match="no model_type"):
        check(3, rope())
    with pytest.raises(ValueError, match="mixes 32 channels otherwise than in pairs, so it is no rotation"):
        check(mp.Rope(32), lambda x, position: x.roll(1, -1) * position[:, None])


def test_a_schedule_is_compared_layer_by_layer():
    one, two = mp.Scheme(mp.Rope(32), mp.causal), mp.Scheme(mp.Rope(32), mp.causal & mp.window(8))
    assert not check(mp.Schedule([one, one]), one)
    found = check(mp.Schedule([one, two, one]), mp.Schedule([one, one, one]))
    assert [(each.convention, each.layers) for each in found.differences] == [("mask", ("layer 1",))]


def hybrid(*attending: int) -> Any:
    """A model of six layers, of which some attend."""
    kinds = ["full_attention" if n in attending else "conv" for n in range(6)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.Lfm2ForCausalLM(transformers.Lfm2Config(
            hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=64, max_position_embeddings=4096, layer_types=kinds,
        )).eval()  # fmt: skip


def test_layers_of_a_hybrid_are_compared_by_their_numbers(tmp_path: Path):
    numbers = [2, 4, 5]
    schemes = [mp.Scheme(mp.Rope(8, theta=1e6), mp.Rerope(2000 * n), mp.causal) for n in numbers]
    extended = extend(hybrid(*numbers), mp.Schedule(schemes, layers=numbers))
    extended.save_pretrained(tmp_path)
    for one in (extended, tmp_path, mp.Schedule(schemes, layers=numbers)):
        for other in (hybrid(*numbers), hybrid(*numbers).config):
            found = check(one, other)
            said = [(each.convention, each.layers, each.a) for each in found.differences]
            assert said == [("position remapping", (f"layer {n}",), f"Rerope({2000 * n})") for n in numbers], str(found)
        assert not check(one, extended)
    assert not check(hybrid(*numbers), hybrid(*numbers).config).not_compared


def test_layers_that_attend_elsewhere_are_a_difference():
    scheme = mp.Scheme(mp.Rope(8), mp.causal)
    pairs = [(hybrid(2, 4), hybrid(1, 4)), (mp.Schedule([scheme] * 2, layers=[2, 4]), hybrid(1, 4))]
    for pair in (*pairs, tuple(mp.Schedule([scheme] * 2, layers=[n, 4]) for n in (2, 1))):
        found = next(each for each in check(*pair).differences if each.convention == "layers that attend")
        assert (found.a, found.b) == ("layer 2", "layer 1")
    assert "layers" in check(hybrid(2, 4), hybrid(2, 3, 4)).conventions


# The command


def test_the_command_ends_with_1_where_something_differs(tmp_path: Path):
    for name, theta in (("a", 10000.0), ("b", 500000.0)):
        rope(rope_theta=theta).save_pretrained(tmp_path / name)
    done = CliRunner().invoke(app(), ["check", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 1
    assert re.search(r"base \(layers 0–1\)\n  A  rope_theta 10,000\n  B  rope_theta 500,000", done.stdout), done.stdout
    same = CliRunner().invoke(app(), ["check", str(tmp_path / "a"), str(tmp_path / "a"), "--json"])
    assert same.exit_code == 0, same.output
    assert json.loads(same.stdout)["differences"] == []
    broken = json.loads((tmp_path / "a" / "config.json").read_text()) | {"hidden_act": "no such activation"}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    failed = CliRunner().invoke(app(), ["check", *[str(tmp_path / "broken.json")] * 2])
    assert failed.exit_code == 2
    assert "not known: a model could not be run" in failed.stdout
    wrong = CliRunner().invoke(app(), ["check", str(tmp_path / "a"), str(tmp_path)])
    assert wrong.exit_code == 2
    assert "the folder has no config.json" in wrong.stderr
