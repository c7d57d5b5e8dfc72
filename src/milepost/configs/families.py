"""Every model type that can be read, and what is true of its models."""

from __future__ import annotations

import math
from typing import Any

from milepost.configs import tables
from milepost.configs.layers import (
    FULL,
    SLIDING,
    chunked_where_turned,
    every,
    first_of,
    listed_to_turn,
    unless_alibi,
    where_windowed,
    windowed,
    windowed_by_turns,
    windowed_if_enabled,
    windowed_late,
    windowed_where_not_turned,
)
from milepost.configs.reader import Family, Reader
from milepost.configs.rotary import Rotary, parameters, parts_of
from milepost.configs.stretches import ratio, rope_type, trained
from milepost.methods.deepseek_scale import DeepseekScale
from milepost.methods.llama4_scale import Llama4Scale
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.methods.scale import Scale
from milepost.methods.sink_logit import SinkLogit
from milepost.methods.soft_cap import SoftCap
from milepost.methods.two_part_rope import TwoPartRope

# Parts that stand beside the rotation


def gemma(reader: Reader, layer: int) -> list[object]:
    """Gemma 2 and 3: a scale of their own, and a cap on scores."""
    by, cap = reader.get("query_pre_attn_scalar"), reader.get("attn_logit_softcapping")
    scale = [] if by in (None, reader.head_width) else [Scale(1 / math.sqrt(by))]
    return [*scale, *([] if cap is None else [SoftCap(cap)])]


def granite(reader: Reader, layer: int) -> list[object]:
    """Granite: a scale of its own."""
    return [Scale(reader.need("the softmax scale", "attention_multiplier"))]


def sink(reader: Reader, layer: int) -> list[object]:
    """gpt-oss: each head may attend to nothing."""
    return [reader.learned(SinkLogit, reader.heads)]


def deepseek(reader: Reader, layer: int) -> list[object]:
    """DeepSeek: the half of YaRN's temperature that sharpens the softmax."""
    settings = parameters(reader, FULL)
    weight = settings.get("mscale_all_dim")
    if not weight or rope_type(reader, settings) == "default":
        return []
    return [DeepseekScale(ratio(reader, settings), weight)]


def llama4(reader: Reader, layer: int) -> list[object]:
    """Llama 4: layers without positions grow sharper with every chunk behind them."""
    if listed_to_turn(reader, layer) or not reader.get("attn_temperature_tuning"):
        return []
    return [Llama4Scale(reader.get("floor_scale"), reader.get("attn_scale"), offset=1)]


def ministral3(reader: Reader, layer: int) -> list[object]:
    """Ministral 3: every layer grows sharper with every trained length behind it."""
    settings = parameters(reader, FULL)
    weight = settings.get("llama_4_scaling_beta")
    return [] if weight is None else [Llama4Scale(trained(reader, settings), weight, offset=0)]


def falcon(reader: Reader, layer: int) -> list[object]:
    """Falcon turns; Falcon-RW has ALiBi instead."""
    return tables.falcon_alibi(reader) if reader.get("alibi") else parts_of(reader, layer)


def chatglm_turn(reader: Reader, layer: int) -> Any:
    """ChatGLM-6B turns by two positions; its successors turn half of the channels."""
    if reader.get("position_encoding_2d"):
        return TwoPartRope(reader.head_width, reader.get("rope_theta"))
    grown = reader.get("rope_ratio")
    if grown not in (None, 1):
        raise reader.refuse(
            "rope_ratio", grown, "by which ChatGLM2 divides positions and ChatGLM3 multiplies the base; build either"
        )
    return Partial(Rope(reader.head_width // 2, reader.get("rope_theta"), "neighbours"), of=reader.head_width)


def chatglm(reader: Reader, layer: int) -> list[object]:
    """ChatGLM2 and 3; ChatGLM-6B sees its whole prompt, whose length is not in the config."""
    if reader.get("position_encoding_2d"):
        raise reader.refuse(
            "position_encoding_2d",
            True,
            "and such a model sees all of its prompt: Scheme(Rope.of(config), causal | sinks(length_of_the_prompt))",
        )
    return parts_of(reader, layer)


def roformer(reader: Reader, layer: int) -> list[object]:
    """RoFormer; turning the values as well is something else."""
    if reader.get("rotary_value"):
        raise reader.refuse("rotary_value", True, "and values that are turned and never turned back cannot be built")
    return parts_of(reader, layer)


# The base stands in the code of these models, not in their configs.
FIXED = {"rope_theta": 10000.0}
HALF = {"partial_rotary_factor": 0.5}
LLAMA4 = {"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4}
# What the published configs of Gemma 3 leave to transformers.
GEMMA3 = {
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "num_attention_heads": 8,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
}
QWEN_VL = Rotary(rule=windowed_late)
QWEN3_VL = Rotary(defaults={"mrope_section": (24, 20, 20), "mrope_interleaved": True})
GEMMA3_FAMILY = Rotary(
    rule=every(6), also=gemma, bases={SLIDING: "rope_local_base_freq"}, stretched=(FULL,), defaults=GEMMA3
)
MLA = Rotary(pairs="neighbours", latent=True, also=deepseek)
T5 = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}

ROTARY: dict[str, Family] = {
    "apertus": Rotary(),
    "arcee": Rotary(),
    "bitnet": Rotary(),
    "chatglm": Rotary(parts=chatglm, turn=chatglm_turn, defaults=FIXED),
    "codegen": Rotary(pairs="neighbours", defaults=FIXED),
    "cohere": Rotary(pairs="neighbours"),
    "cohere2": Rotary(pairs="neighbours", rule=every(4), turned=where_windowed),
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "ernie4_5": Rotary(pairs="neighbours"),
    "exaone4": Rotary(rule=every(4), turned=where_windowed),
    "falcon": Rotary(parts=falcon, turned=unless_alibi, once_fixed=True),
    "gemma": Rotary(),
    "gemma2": Rotary(rule=every(2), also=gemma),
    "gemma3_text": GEMMA3_FAMILY,
    "glm": Rotary(pairs="neighbours", partial=True, defaults=HALF),
    "glm4": Rotary(pairs="neighbours", partial=True, defaults=HALF),
    "gpt_neox": Rotary(partial=True),
    "gpt_oss": Rotary(rule=every(2), also=sink, shares=False),
    "gptj": Rotary(pairs="neighbours", defaults=FIXED),
    "granite": Rotary(also=granite),
    "helium": Rotary(pairs="neighbours"),
    "hunyuan_v1_dense": Rotary(),
    "llama": Rotary(once_fixed=True),
    "llama4_text": Rotary(
        pairs="neighbours", rule=chunked_where_turned, turned=listed_to_turn, also=llama4, defaults=LLAMA4
    ),
    "minicpm3": Rotary(latent=True, also=deepseek),
    "ministral": Rotary(rule=windowed),
    "ministral3": Rotary(rule=windowed, also=ministral3),
    "mistral": Rotary(rule=windowed),
    "mixtral": Rotary(rule=windowed),
    "modernbert": Rotary(
        rule=first_of,
        encodes=True,
        bases={FULL: "global_rope_theta", SLIDING: "local_rope_theta"},
        defaults={"global_attn_every_n_layers": 3},
    ),
    "nemotron": Rotary(partial=True, defaults=HALF),
    "olmo": Rotary(),
    "olmo2": Rotary(),
    "olmo3": Rotary(rule=every(4), stretched=(FULL,)),
    "olmoe": Rotary(),
    "persimmon": Rotary(partial=True, defaults=HALF),
    "phi": Rotary(partial=True, defaults=HALF),
    "phi3": Rotary(rule=windowed, partial=True),
    "qwen2": Rotary(rule=windowed_late),
    "qwen2_5_vl_text": QWEN_VL,
    "qwen2_moe": Rotary(rule=windowed_by_turns),
    "qwen2_vl_text": QWEN_VL,
    "qwen3": Rotary(rule=windowed_late),
    "qwen3_moe": Rotary(rule=windowed_if_enabled),
    "qwen3_vl_text": QWEN3_VL,
    "roformer": Rotary(parts=roformer, pairs="neighbours", encodes=True, defaults=FIXED),
    "seed_oss": Rotary(),
    "smollm3": Rotary(rule=windowed_where_not_turned, turned=listed_to_turn),
    "stablelm": Rotary(partial=True, defaults={"partial_rotary_factor": 0.25}),
    "starcoder2": Rotary(rule=windowed),
}

OTHERS: dict[str, Family] = {
    "bert": Family(tables.encoder),
    "bloom": Family(tables.bloom),
    "camembert": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "deberta": Family(tables.deberta),
    "deberta-v2": Family(tables.deberta),
    "electra": Family(tables.encoder),
    "gpt2": Family(tables.decoder),
    "gpt_bigcode": Family(tables.decoder),
    "gpt_neo": Family(tables.gpt_neo),
    "mpt": Family(tables.mpt),
    "mt5": Family(tables.t5, T5),
    "opt": Family(tables.decoder),
    "roberta": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "t5": Family(tables.t5, T5),
    "transfo-xl": Family(tables.transformer_xl, shares=False),
    "umt5": Family(tables.t5, T5, shares=False),
    "xlm-roberta": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "xlnet": Family(tables.xlnet, shares=False),
}

FAMILIES: dict[str, Family] = ROTARY | OTHERS

# What the published configs of PaliGemma leave to transformers' Gemma and Gemma 2.
PALIGEMMA1 = {"rope_theta": 1e4, "head_dim": 256}
PALIGEMMA2 = PALIGEMMA1 | {"sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0}

PALIGEMMA: dict[str, Family] = {
    "gemma": Rotary(prefixed=True, defaults=PALIGEMMA1),
    "gemma2": Rotary(rule=every(2), also=gemma, prefixed=True, defaults=PALIGEMMA2),
}
"""The two PaliGemmas, by the model type of their text.

Read as transformers' masks have it. Its SDPA path (5.22) leaves a plainly causal mask out, and since these layers say
is_causal=False, then sees everything; its eager path does not.
"""

SAME = {"gemma3": "gemma3_text", "kimi_k2": "deepseek_v3", "llama4": "llama4_text"} | {
    name: f"{name}_text" for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
}
"""Model types whose text is read as another's, where the config is not split in two."""
