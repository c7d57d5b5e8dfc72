"""Parts of single model types next to the rotation: scales, soft caps, sinks, temperatures, and their exceptions."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from milepost.configs import without_rotation
from milepost.configs.layer_types import FULL, SLIDING, WINDOW, any_type, seen, unless_in_no_rope_layers
from milepost.configs.reader import Reader, look_up
from milepost.configs.rope_types import BASE, ratio, rope_type, settings_given, trained
from milepost.configs.rotation import family_of, parameters, parts_of, rotated_share, rotation
from milepost.methods.partial import Partial
from milepost.methods.qk_norm import QkNorm
from milepost.methods.rope import Rope, TwoPartRope
from milepost.methods.softmax import DeepseekScale, Llama4Scale, Scale, SinkLogit, SoftCap


def gemma(reader: Reader, layer: int) -> list[object]:
    """Gemma 2: a scale of its own, and a cap on scores."""
    cap = reader.get("attn_logit_softcapping")
    return [*own_scale(reader), *([] if cap is None else [SoftCap(cap)])]


def gemma3(reader: Reader, layer: int) -> list[object]:
    """Gemma 3: a scale of its own; transformers has a setting for a cap, and caps nothing."""
    if reader.get("attn_logit_softcapping") is not None:
        raise ValueError(
            f"{reader.called}: attn_logit_softcapping is set, which transformers does not apply to Gemma 3; remove it "
            f"from the config"
        )
    return own_scale(reader)


def own_scale(reader: Reader) -> list[object]:
    """Return the softmax scale of Gemma, where it is not that of the head's width."""
    by = reader.get("query_pre_attn_scalar")
    return [] if by in (None, reader.head_width) else [Scale(1 / math.sqrt(by))]


def granite(reader: Reader, layer: int) -> list[object]:
    """Granite: a scale of its own."""
    return [Scale(reader.need("the softmax scale", "attention_multiplier"))]


def granite_if_given(reader: Reader, layer: int) -> list[object]:
    """HyperCLOVA X: a scale of its own, where it has one."""
    by = reader.get("attention_multiplier")
    return [] if by in (None, reader.head_width**-0.5) else [Scale(by)]


def qk_norm(reader: Reader, layer: int) -> list[object]:
    """HunYuan: queries and keys are normalized after the rotation."""
    if reader.get("use_qk_norm") is False:
        return []
    return [reader.learned(QkNorm, reader.head_width, eps=reader.need("what is added to squares", "rms_norm_eps"))]


def gpt_oss_rotation(reader: Reader, layer: int) -> Any:
    """gpt-oss rotates every pair: where its settings leave one, transformers turns all of them by that one's angle."""
    made = rotation(reader, layer)
    if isinstance(made, Partial) and made.method.head_dim == 2:
        raise reader.refuse(
            "partial_rotary_factor",
            made.method.head_dim / made.of,
            "which leaves one pair, and gpt-oss then turns all pairs by its angle; remove it",
        )
    return made


def sink(reader: Reader, layer: int) -> list[object]:
    """gpt-oss: each head may attend to nothing."""
    return [reader.learned(SinkLogit, reader.heads)]


def sink_where_windowed(reader: Reader, layer: int) -> list[object]:
    """MiMo-V2: each head of a layer with a window may attend to nothing."""
    return sink(reader, layer) if any_type(reader, layer, family_of(reader).rule) == SLIDING else []


def granite_with_sinks(reader: Reader, layer: int) -> list[object]:
    """Granite with windows: a scale of its own, and each head may attend to nothing."""
    return [*granite(reader, layer), *sink(reader, layer)]


def hy_v4(reader: Reader, layer: int) -> list[object]:
    """Hunyuan 4: DeepSeek's half of YaRN's temperature, and each head may attend to nothing."""
    return [*deepseek(reader, layer), *sink(reader, layer)]


def deepseek(reader: Reader, layer: int) -> list[object]:
    """DeepSeek: the half of YaRN's temperature that sharpens the softmax."""
    settings = parameters(reader, FULL)
    weight = settings.get("mscale_all_dim")
    if not weight or rope_type(reader, settings) == "default":
        return []
    return [DeepseekScale(ratio(reader, settings), weight=weight)]


def llama4(reader: Reader, layer: int) -> list[object]:
    """Llama 4: layers without positions grow sharper with every chunk behind them."""
    if unless_in_no_rope_layers(reader, layer) or not reader.get("attn_temperature_tuning"):
        return []
    return [Llama4Scale(reader.get("floor_scale"), weight=reader.get("attn_scale"), offset=1)]


def ministral3(reader: Reader, layer: int) -> list[object]:
    """Ministral 3: every layer grows sharper with every trained length behind it."""
    settings = parameters(reader, FULL)
    weight = settings.get("llama_4_scaling_beta")
    return [] if weight is None else [Llama4Scale(trained(reader, settings), weight=weight, offset=0)]


def falcon(reader: Reader, layer: int) -> list[object]:
    """Falcon rotates; Falcon-RW has ALiBi instead."""
    return without_rotation.falcon_alibi(reader) if reader.get("alibi") else parts_of(reader, layer)


def chatglm_rotation(reader: Reader, layer: int) -> Any:
    """ChatGLM-6B rotates by two positions; its successors rotate half of the channels."""
    if reader.get("position_encoding_2d"):
        return TwoPartRope(reader.head_width, theta=reader.get("rope_theta"))
    grown = reader.get("rope_ratio")
    if grown not in (None, 1):
        raise reader.refuse(
            "rope_ratio", grown, "by which ChatGLM2 divides positions and ChatGLM3 multiplies the base; build either"
        )
    return Partial(
        Rope(reader.head_width // 2, theta=reader.get("rope_theta"), pairs="neighbours"), of=reader.head_width
    )


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
    """RoFormer; rotated values are refused."""
    if reader.get("rotary_value"):
        raise reader.refuse("rotary_value", True, "which rotates the values as well and never back; no part does that")
    return parts_of(reader, layer)


def unscaled(reader: Reader, layer: int) -> list[object]:
    """Gemma 3n and 4: queries and keys are normalized, and scores are not divided by √d."""
    return [Scale(1.0)]


def mistral4(reader: Reader, layer: int) -> list[object]:
    """Mistral 4: DeepSeek's half of YaRN's temperature, and Ministral 3's growing one."""
    return [*deepseek(reader, layer), *ministral3(reader, layer)]


def gemma4_width(reader: Reader, layer: int) -> int:
    """Gemma 4: layers that see everything have wider heads; transformers writes the width of each layer."""
    own: Any = reader.given("per_layer_config")
    if isinstance(own, Mapping):
        # Layers are strings there, padded with zeros.
        named = {int(key): each for key, each in cast("Mapping[Any, Any]", own).items()}
        return look_up(named.get(layer, {}), "head_dim") or reader.head_width
    if own is not None:
        return own[layer].head_dim
    if any_type(reader, layer, family_of(reader).rule) == FULL:
        return reader.need("the channels of a head that sees everything", "global_head_dim")
    return reader.head_width


def windowed(reader: Reader, layer: int) -> list[object]:
    """MiniMax-Text, RecurrentGemma: the layers that are called full have the window, where the config has one."""
    parts = parts_of(reader, layer)
    return parts if reader.get(*WINDOW) is None else [*parts[:-1], *seen(reader, SLIDING)]


def baichuan(reader: Reader, layer: int) -> list[object]:
    """Baichuan rotates where it is 4096 wide (7B), and has ALiBi elsewhere (13B); its code knows it by the class."""
    if reader.width == 4096:
        return parts_of(reader, layer)
    return [without_rotation.slopes(reader), *without_rotation.behind(reader)]


def minicpm(reader: Reader, layer: int) -> list[object]:
    """MiniCPM; the fourth may attend to blocks of keys that it picks."""
    if reader.given("sparse_config") is not None:
        raise reader.refuse(
            "sparse_config",
            reader.given("sparse_config"),
            "by which its layers attend to the blocks of keys that they pick, which no scheme describes",
        )
    return parts_of(reader, layer)


def phimoe_rotation(reader: Reader, layer: int) -> Any:
    """Phi-3.5-MoE: transformers turns by the short factors of LongRoPE at every length."""
    settings = parameters(reader, FULL)
    if rope_type(reader, settings) != "default":
        raise reader.refuse(
            "rope_type",
            rope_type(reader, settings),
            "and transformers' Phi-3.5-MoE then turns by the short factors at every length, with a magnitude that "
            "changes with it, which no stretch does; only 'default' can be read",
        )
    return rotation(reader, layer)


def minimax_m3_rotation(reader: Reader, layer: int) -> Any:
    """MiniMax-M3: transformers goes by partial_rotary_factor, and has a rotary_dim that it does not read."""
    dim, share = reader.given("rotary_dim"), rotated_share(reader, parameters(reader, FULL))
    if dim not in (None, int(reader.head_width * share)):
        raise reader.refuse(
            "rotary_dim",
            dim,
            f"and partial_rotary_factor is {share}, by which transformers rotates {int(reader.head_width * share)} of "
            f"{reader.head_width} channels; let them agree",
        )
    return rotation(reader, layer)


def granite_rotation(reader: Reader, layer: int) -> Any:
    """Granite with windows: layer_rope_theta has the base of each layer."""
    made, listed = rotation(reader, layer), reader.given("layer_rope_theta")
    return made if not listed else replace(made, theta=float(listed[layer]))


def has_a_base(reader: Reader, layer: int, kind: str) -> bool:
    """OLMo Hybrid rotates where its config has a base."""
    return reader.given(*BASE) is not None or settings_given(reader)[0].get("rope_theta") is not None


def nomic(reader: Reader, layer: int) -> list[object]:
    """Nomic-BERT; its own code has rotations that transformers' does not."""
    for key, plain in (("rotary_emb_fraction", 1.0), ("rotary_emb_interleaved", False)):
        if reader.given(key) not in (None, plain):
            raise reader.refuse(key, reader.given(key), f"and only {plain} can be read")
    factor = reader.given("rotary_scaling_factor")
    if factor is not None:
        raise reader.refuse(
            "rotary_scaling_factor",
            factor,
            "by which Nomic's own code stretches long texts; build that with "
            "Rope(…, stretch=DynamicNtk(max_trained_positions, factor))",
        )
    return parts_of(reader, layer)


def esm(reader: Reader, layer: int) -> list[object]:
    """ESM-2 rotates; ESM-1b has a table instead."""
    kind = reader.get("position_embedding_type")
    if kind == "rotary":
        return parts_of(reader, layer)
    if kind not in (None, "absolute"):
        raise reader.refuse("position_embedding_type", kind, "and only 'rotary' and 'absolute' can be read")
    return without_rotation.padded_encoder(reader, layer)
