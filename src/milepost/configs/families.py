"""Every model type that can be read, and what is true of its models."""

from __future__ import annotations

from milepost.configs import tables
from milepost.configs.beside import (
    chatglm,
    chatglm_turn,
    deepseek,
    esm,
    falcon,
    gemma,
    gemma4_width,
    granite,
    granite_if_given,
    llama4,
    minimax,
    ministral3,
    mistral4,
    nomic,
    qk_norm,
    roformer,
    sink,
    unscaled,
)
from milepost.configs.layers import (
    FULL,
    SLIDING,
    all_linear,
    by_turns,
    chunked_where_turned,
    every,
    first_of,
    if_rope,
    if_rotary,
    last_of,
    last_sees_all,
    listed_by_index,
    listed_from_one,
    listed_to_attend,
    listed_to_cross,
    listed_to_turn,
    never,
    one_a_period,
    spelled,
    unless_alibi,
    where_windowed,
    windowed,
    windowed_by_turns,
    windowed_from,
    windowed_if_enabled,
    windowed_late,
    windowed_where_not_turned,
)
from milepost.configs.reader import Family
from milepost.configs.rotary import Rotary

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
GEMMA3N = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "num_attention_heads": 8, "head_dim": 256}
GEMMA4 = {"num_attention_heads": 8, "head_dim": 256, "global_head_dim": 512}
MODERN = {"global_attn_every_n_layers": 3}
MODERN_BASES = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
QUARTER = {"partial_rotary_factor": 0.25}
QWEN35 = QUARTER | {"mrope_section": (11, 11, 10), "mrope_interleaved": True}
SIGLIP = {"max_position_embeddings": 64, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
CLIP = {"max_position_embeddings": 77, "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 12}
QWEN_VL = Rotary(rule=windowed_late)
QWEN3_VL = Rotary(defaults={"mrope_section": (24, 20, 20), "mrope_interleaved": True})
GEMMA3_FAMILY = Rotary(
    rule=every(6), also=gemma, bases={SLIDING: "rope_local_base_freq"}, stretched=(FULL,), defaults=GEMMA3
)
QWEN35_FAMILY = Rotary(rule=last_of, partial=True, hybrid=True, defaults=QWEN35)
MLA = Rotary(pairs="neighbours", latent=True, also=deepseek)
T5 = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}

ROTARY: dict[str, Family] = {
    "afmoe": Rotary(rule=every(4), turned=where_windowed),
    "apertus": Rotary(),
    "arcee": Rotary(),
    "aria_text": Rotary(),
    "bamba": Rotary(rule=listed_by_index, partial=True, hybrid=True, defaults=HALF),
    "bitnet": Rotary(),
    "chatglm": Rotary(parts=chatglm, turn=chatglm_turn, defaults=FIXED),
    "codegen": Rotary(pairs="neighbours", defaults=FIXED),
    "cohere": Rotary(pairs="neighbours"),
    "cohere2": Rotary(pairs="neighbours", rule=every(4), turned=where_windowed),
    "cwm": Rotary(rule=first_of, defaults={"global_attn_every_n_layers": 4}),
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "deepseek_v32": MLA,
    "dots1": Rotary(rule=windowed_from),
    "ernie4_5": Rotary(pairs="neighbours"),
    "ernie4_5_moe": Rotary(pairs="neighbours"),
    "esm": Rotary(parts=esm, turned=if_rotary, encodes=True, defaults=FIXED | {"pad_token_id": 1}),
    "eurobert": Rotary(encodes=True),
    "exaone4": Rotary(rule=every(4), turned=where_windowed),
    "exaone_moe": Rotary(rule=every(4), turned=where_windowed),
    "falcon": Rotary(parts=falcon, turned=unless_alibi, once_fixed=True),
    "falcon_h1": Rotary(),
    "flex_olmo": Rotary(),
    "gemma": Rotary(),
    "gemma2": Rotary(rule=every(2), also=gemma),
    "gemma3_text": GEMMA3_FAMILY,
    # It has the key use_bidirectional_attention, and transformers' masks do not read it.
    "gemma3n_text": Rotary(
        rule=every(5),
        also=unscaled,
        bases={SLIDING: "rope_local_base_freq"},
        stretched=(FULL,),
        prefixed=True,
        defaults=GEMMA3N,
    ),
    "gemma4_text": Rotary(rule=last_sees_all, also=unscaled, width=gemma4_width, defaults=GEMMA4),
    "glm": Rotary(pairs="neighbours", partial=True, defaults=HALF),
    "glm4": Rotary(pairs="neighbours", partial=True, defaults=HALF),
    "glm4_moe": Rotary(partial=True, defaults=HALF),
    "glm4_moe_lite": MLA,
    "glm4v_moe_text": Rotary(partial=True, defaults=HALF | {"mrope_section": (8, 12, 12)}),
    "glm4v_text": Rotary(pairs="neighbours", partial=True, defaults={"mrope_section": (8, 12, 12)}),
    "glm_image_text": Rotary(partial=True, defaults={"mrope_section": (8, 12, 12)}),
    "glm_moe_dsa": MLA,
    "glm_ocr_text": Rotary(pairs="neighbours", partial=True, defaults={"mrope_section": (8, 12, 12)}),
    "gpt_neox": Rotary(partial=True),
    "gpt_oss": Rotary(rule=every(2), also=sink, shares=False),
    "gptj": Rotary(pairs="neighbours", defaults=FIXED),
    "granite": Rotary(also=granite),
    "granitemoe": Rotary(also=granite),
    "granitemoehybrid": Rotary(rule=all_linear, turned=if_rope, also=granite, hybrid=True),
    "granitemoeshared": Rotary(also=granite),
    "gte": Rotary(encodes=True),
    "helium": Rotary(pairs="neighbours"),
    "hunyuan_v1_dense": Rotary(also=qk_norm, shares=False),
    "hunyuan_v1_moe": Rotary(also=qk_norm, shares=False),
    "hyperclovax": Rotary(also=granite_if_given),
    "jais2": Rotary(),
    "jamba": Rotary(rule=one_a_period, turned=never, hybrid=True),
    "jina_embeddings_v3": Rotary(encodes=True),
    "kimi_linear": Rotary(rule=listed_from_one, turned=never, hybrid=True, latent=True),
    "lfm2": Rotary(rule=listed_to_attend, hybrid=True),
    "lfm2_moe": Rotary(rule=listed_to_attend, hybrid=True),
    "llama": Rotary(once_fixed=True),
    "llama4_text": Rotary(
        pairs="neighbours", rule=chunked_where_turned, turned=listed_to_turn, also=llama4, defaults=LLAMA4
    ),
    "minicpm3": Rotary(latent=True, also=deepseek),
    "minimax": Rotary(parts=minimax, rule=by_turns, hybrid=True),
    "minimax_m2": Rotary(partial=True),
    "ministral": Rotary(rule=windowed),
    "ministral3": Rotary(rule=windowed, also=ministral3),
    "mistral": Rotary(rule=windowed),
    "mistral4": Rotary(pairs="neighbours", latent=True, also=mistral4),
    "mixtral": Rotary(rule=windowed),
    "mllama_text_model": Rotary(rule=listed_to_cross, hybrid=True),
    "modernbert": Rotary(rule=first_of, encodes=True, bases=MODERN_BASES, defaults=MODERN),
    "modernbert-decoder": Rotary(rule=first_of, bases=MODERN_BASES, defaults=MODERN),
    "nemotron": Rotary(partial=True, defaults=HALF),
    "nemotron_h": Rotary(rule=spelled, turned=never, hybrid=True),
    "nomic_bert": Rotary(parts=nomic, encodes=True),
    "olmo": Rotary(),
    "olmo2": Rotary(),
    "olmo3": Rotary(rule=every(4), stretched=(FULL,)),
    "olmoe": Rotary(),
    "persimmon": Rotary(partial=True, defaults=HALF),
    "phi": Rotary(partial=True, defaults=HALF),
    "phi3": Rotary(rule=windowed, partial=True),
    "qwen2": Rotary(rule=windowed_late),
    "qwen2_5_omni_text": QWEN_VL,
    "qwen2_5_vl_text": QWEN_VL,
    "qwen2_moe": Rotary(rule=windowed_by_turns),
    "qwen2_vl_text": QWEN_VL,
    "qwen3": Rotary(rule=windowed_late),
    "qwen3_5_moe_text": QWEN35_FAMILY,
    "qwen3_5_text": QWEN35_FAMILY,
    "qwen3_moe": Rotary(rule=windowed_if_enabled),
    "qwen3_next": Rotary(rule=last_of, partial=True, hybrid=True, defaults=QUARTER),
    "qwen3_omni_moe_text": QWEN3_VL,
    "qwen3_vl_moe_text": QWEN3_VL,
    "qwen3_vl_text": QWEN3_VL,
    "roformer": Rotary(parts=roformer, pairs="neighbours", encodes=True, defaults=FIXED),
    "seed_oss": Rotary(),
    "smollm3": Rotary(rule=windowed_where_not_turned, turned=listed_to_turn),
    "solar_open": Rotary(),
    "stablelm": Rotary(partial=True, defaults=QUARTER),
    "starcoder2": Rotary(rule=windowed),
    "t5_gemma_module": Rotary(rule=every(2), also=gemma, encodes=True),
    "vaultgemma": Rotary(rule=every(2), also=gemma),
    "youtu": MLA,
}

OTHERS: dict[str, Family] = {
    "albert": Family(tables.encoder, {"embedding_size": 128}),
    "bart": Family(tables.encoder),
    "bert": Family(tables.encoder),
    "bert-generation": Family(tables.encoder),
    "biogpt": Family(tables.decoder),
    "blenderbot": Family(tables.encoder),
    "blenderbot-small": Family(tables.encoder),
    "bloom": Family(tables.bloom),
    "camembert": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "clip_text_model": Family(tables.decoder, CLIP),
    "data2vec-text": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "deberta": Family(tables.deberta),
    "deberta-v2": Family(tables.deberta),
    "distilbert": Family(tables.encoder),
    "electra": Family(tables.encoder),
    "ernie": Family(tables.encoder),
    "gpt2": Family(tables.decoder),
    "gpt_bigcode": Family(tables.decoder),
    "gpt_neo": Family(tables.gpt_neo),
    "led": Family(tables.led),
    "longt5": Family(tables.longt5, T5),
    "m2m_100": Family(tables.m2m, {"pad_token_id": 1}),
    "marian": Family(tables.marian),
    "mbart": Family(tables.encoder),
    "mpnet": Family(tables.mpnet, {"relative_attention_num_buckets": 32}),
    "mpt": Family(tables.mpt),
    "mt5": Family(tables.t5, T5),
    "mvp": Family(tables.encoder),
    "nllb-moe": Family(tables.m2m, {"pad_token_id": 1}),
    "opt": Family(tables.decoder),
    "pegasus": Family(tables.marian),
    "plbart": Family(tables.encoder),
    "roberta": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "roberta-prelayernorm": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "siglip_text_model": Family(tables.encoder, SIGLIP),
    "t5": Family(tables.t5, T5),
    "transfo-xl": Family(tables.transformer_xl, shares=False),
    "umt5": Family(tables.t5, T5, shares=False),
    "whisper": Family(tables.whisper),
    "xglm": Family(tables.xglm),
    "xlm-roberta": Family(tables.padded_encoder, {"pad_token_id": 1}),
    "xlm-roberta-xl": Family(tables.padded_encoder, {"pad_token_id": 1}),
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

SAME = {"kimi_k2": "deepseek_v3", "t5gemma": "t5_gemma_module", "clip": "clip_text_model"} | {
    name: f"{name}_text_model" for name in ("mllama", "siglip")
} | {
    name: f"{name}_text"
    for name in (
        "aria", "gemma3", "gemma3n", "gemma4", "glm4v", "glm4v_moe", "glm_image", "glm_ocr", "llama4", "qwen2_vl",
        "qwen2_5_omni", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe",
    )
}  # fmt: skip
"""Model types whose text is read as another's, where the config is not split in two."""

NOT_READ = {
    "longformer": "its layers see a window of attention_window // 2 keys on each side and, besides it, the tokens that "
    "each call names as global, by projections of their own. Where no token is global, a layer is "
    "Scheme(window(n // 2 + 1, ahead=n // 2))",
    "big_bird": "its layers see random blocks of keys besides a window, which no scheme says",
    "reformer": "its layers see the keys that a hash puts beside the query, which no scheme says",
    **dict.fromkeys(
        ("falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm"),
        "it has no attention over tokens, so there is no scheme to read",
    ),
}
"""Model types that are known and that no scheme can say, with the reason."""
