"""Every model type that can be read, and what is true of its models."""

from milepost.configs import layer_types as layers
from milepost.configs import model_specific as own
from milepost.configs import without_rotation as tables
from milepost.configs.layer_types import FULL, SLIDING
from milepost.configs.reader import Family
from milepost.configs.rotation import Rotary

# The base is in the code of these models, not in their configs.
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
MROPE = ("mrope_section", "mrope_interleaved")
QWEN35 = QUARTER | {"mrope_section": (11, 11, 10), "mrope_interleaved": True}
QWEN2_VL = {"mrope_section": (16, 24, 24)}
QWEN3_VL = {"mrope_section": (24, 20, 20), "mrope_interleaved": True}
GLM_VL = {"mrope_section": (8, 12, 12)}
MIMO = {"partial_rotary_factor": 0.334}
DEEPSEEK = ("mscale_all_dim",)
MINISTRAL = ("llama_4_scaling_beta", "max_position_embeddings")
SIGLIP = {"max_position_embeddings": 64, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
CLIP = {"max_position_embeddings": 77, "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 12}
T5 = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
PAD = {"pad_token_id": 1}
LOCAL_BASE = {SLIDING: "rope_local_base_freq"}
ATTENDING = layers.listed_by("full_attn_idxs", outside="conv", without=FULL)
CROSSING = layers.listed_by("cross_attention_layers", inside="cross_attention", outside=FULL)


def alike(family: Family, *names: str) -> dict[str, Family]:
    """Return the same family under several names."""
    return dict.fromkeys(names, family)


ROTARY: dict[str, Family] = {
    **alike(
        Rotary(),
        *(
            "apertus",
            "arcee",
            "aria_text",
            "bitnet",
            "diffllama",
            "emu3_text_model",
            "falcon_h1",
            "flex_olmo",
            "gemma",
            "hy_v3",
            "internlm3",
            "iquestcoder",
        ),
        *("jais2", "jetmoe", "olmo", "olmo2", "olmoe", "seed_oss", "solar_open"),
        "step3_text",
    ),
    "minicpm": Rotary(parts=own.minicpm, defaults=FIXED),
    "baichuan": Rotary(parts=own.baichuan, rotates=layers.if_width_is(4096), defaults=FIXED),
    "nanochat": Rotary(turned_back=True),
    "llama": Rotary(once_fixed=True),
    "falcon": Rotary(parts=own.falcon, rotates=layers.unless_alibi, once_fixed=True),
    # Pairs of neighbouring channels
    **alike(Rotary(pairs="neighbours"), "cohere", "ernie4_5", "ernie4_5_moe", "helium"),
    **alike(Rotary(pairs="neighbours", defaults=FIXED), "codegen", "gptj"),
    "chatglm": Rotary(parts=own.chatglm, rotation=own.chatglm_rotation, defaults=FIXED),
    "roformer": Rotary(parts=own.roformer, pairs="neighbours", encodes=True, defaults=FIXED),
    # A share of the channels
    "gpt_neox": Rotary(partial=True, base=("rotary_emb_base",), defaults={"rotary_pct": 0.25}),
    "gpt_neox_japanese": Rotary(partial=True, base=("rotary_emb_base",), defaults={"rotary_pct": 1.0}),
    **alike(Rotary(partial=True), "bailing_moe_v2", "minimax_m2"),
    "minimax_m3_vl_text": Rotary(partial=True, rotation=own.minimax_m3_rotation),
    **alike(Rotary(partial=True, defaults=HALF), "glm4_moe", "nemotron", "persimmon", "phi"),
    **alike(Rotary(pairs="neighbours", partial=True, defaults=HALF), "glm", "glm4"),
    **alike(Rotary(rule=layers.windowed, partial=True), "phi3", "phi4_multimodal"),
    "phimoe": Rotary(rule=layers.windowed, rotation=own.phimoe_rotation),
    "stablelm": Rotary(partial=True, defaults=QUARTER),
    # Latent keys
    **alike(
        Rotary(pairs="neighbours", latent=True, extra=own.deepseek, settings=DEEPSEEK),
        *("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "youtu"),
    ),
    "bailing_hybrid": Rotary(
        pairs="neighbours",
        rule=layers.last_of,
        hybrid=True,
        latent=True,
        extra=own.deepseek,
        settings=DEEPSEEK,
        defaults={"layer_group_size": 6},
    ),
    "hy_v4": Rotary(latent=True, extra=own.hy_v4, settings=DEEPSEEK, shares=False),
    "longcat_flash": Rotary(pairs="neighbours", latent=True, extra=own.deepseek, settings=DEEPSEEK, twice=True),
    "minicpm3": Rotary(latent=True, extra=own.deepseek, settings=DEEPSEEK),
    "mistral4": Rotary(pairs="neighbours", latent=True, extra=own.mistral4, settings=(*MINISTRAL, *DEEPSEEK)),
    # Windows
    **alike(Rotary(rule=layers.windowed), "mistral", "mixtral", "starcoder2"),
    "ministral": Rotary(rule=layers.windowed_unless_listed),
    **alike(Rotary(rule=layers.every(4), rotates=layers.where_windowed), "afmoe", "exaone4", "exaone_moe"),
    "kolibri1": Rotary(rule=layers.every(5), rotates=layers.where_windowed),
    "flint": Rotary(rule=layers.flint, rotates=layers.only_where_windowed, extra=own.sink, shares=False),
    **alike(Rotary(rule=layers.full_unless_listed, typed=True, partial=True), "laguna", "mellum", "zaya"),
    "muse_spark_text": Rotary(rule=layers.counted_from_the_last(4), rotates=layers.by_layer_rope_theta),
    **alike(
        Rotary(
            rule=layers.first_of,
            rotates=layers.by_layer_rope_theta,
            rotation=own.granite_rotation,
            extra=own.granite_with_sinks,
            defaults={"global_attn_every_n_layers": 4},
            shares=False,
        ),
        *("granite_swa", "granitemoe_swa"),
    ),
    "mimo_v2_flash": Rotary(
        rule=layers.first_and_every(6),
        typed=True,
        partial=True,
        extra=own.sink_where_windowed,
        defaults=MIMO,
        shares=False,
    ),
    "step3p5": Rotary(rule=layers.full_unless_listed, typed=True, partial=True, extra=own.gemma),
    "cohere2_moe": Rotary(
        pairs="neighbours", rule=layers.after_the_first(layers.every(4)), rotates=layers.windowed_or_dense
    ),
    **alike(Rotary(rule=layers.if_enabled(layers.windowed_from)), "qwen2", "qwen3"),
    "cohere2": Rotary(pairs="neighbours", rule=layers.every(4), rotates=layers.where_windowed),
    "cwm": Rotary(rule=layers.first_of, defaults={"global_attn_every_n_layers": 4}),
    "dots1": Rotary(rule=layers.windowed_from),
    "llama4_text": Rotary(
        pairs="neighbours",
        rule=layers.chunked_where_rotated,
        rotates=layers.unless_in_no_rope_layers,
        extra=own.llama4,
        defaults=LLAMA4,
    ),
    "ministral3": Rotary(rule=layers.windowed, extra=own.ministral3, settings=MINISTRAL),
    "olmo3": Rotary(rule=layers.every(4), stretched=(FULL,)),
    "qwen2_moe": Rotary(rule=layers.if_enabled(layers.windowed_by_turns)),
    "qwen3_moe": Rotary(rule=layers.if_enabled(layers.windowed)),
    "smollm3": Rotary(rule=layers.windowed_where_not_rotated, rotates=layers.unless_in_no_rope_layers),
    # Scales, caps and sinks of their own
    **alike(Rotary(rule=layers.every(2), extra=own.gemma), "gemma2", "vaultgemma"),
    "gemma3_text": Rotary(rule=layers.every(6), extra=own.gemma3, bases=LOCAL_BASE, stretched=(FULL,), defaults=GEMMA3),
    # It has the key use_bidirectional_attention, and transformers' masks do not read it.
    "gemma3n_text": Rotary(
        rule=layers.every(5), extra=own.unscaled, bases=LOCAL_BASE, stretched=(FULL,), prefixed=True, defaults=GEMMA3N
    ),
    **alike(
        Rotary(
            rule=layers.every(6, last=True), extra=own.unscaled, width=own.gemma4_width, defaults=GEMMA4, typed=True
        ),
        *("gemma4_text", "gemma4_unified_text"),
    ),
    "gpt_oss": Rotary(rule=layers.every(2), rotation=own.gpt_oss_rotation, extra=own.sink, shares=False),
    **alike(Rotary(extra=own.granite), "granite", "granitemoe", "granitemoeshared"),
    **alike(Rotary(extra=own.qk_norm, shares=False), "hunyuan_v1_dense", "hunyuan_v1_moe"),
    "hyperclovax": Rotary(extra=own.granite_if_given),
    # Images next to the text
    **alike(
        Rotary(rule=layers.if_enabled(layers.windowed_from), defaults=QWEN2_VL, settings=MROPE),
        *("qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text"),
    ),
    **alike(Rotary(defaults=QWEN3_VL, settings=MROPE), "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text"),
    **alike(
        Rotary(rule=layers.last_of, partial=True, hybrid=True, defaults=QWEN35, settings=MROPE),
        *("qwen3_5_moe_text", "qwen3_5_text"),
    ),
    "glm4v_moe_text": Rotary(partial=True, defaults=HALF | GLM_VL, settings=MROPE),
    **alike(Rotary(pairs="neighbours", partial=True, defaults=GLM_VL, settings=MROPE), "glm4v_text", "glm_ocr_text"),
    "glm_image_text": Rotary(partial=True, defaults=GLM_VL, settings=MROPE),
    "mllama_text_model": Rotary(rule=CROSSING, hybrid=True),
    # Hybrids
    "bamba": Rotary(rule=layers.listed_by("attn_layer_indices"), partial=True, hybrid=True, defaults=HALF),
    "granitemoehybrid": Rotary(
        rule=layers.all_linear, rotates=layers.if_embedding_is("rope"), extra=own.granite, hybrid=True
    ),
    "jamba": Rotary(rule=layers.one_a_period, rotates=layers.never, hybrid=True),
    "kimi_linear": Rotary(rule=layers.listed_from_one, rotates=layers.never, hybrid=True, latent=True),
    **alike(Rotary(rule=ATTENDING, hybrid=True), "lfm2", "lfm2_moe"),
    "lfm3": Rotary(rule=layers.full_unless_listed, typed=True, partial=True, hybrid=True),
    "minimax": Rotary(parts=own.windowed, rule=layers.by_turns, hybrid=True),
    "nemotron_h": Rotary(rule=layers.spelled, rotates=layers.never, hybrid=True),
    "olmo_hybrid": Rotary(rule=layers.last_of, rotates=own.has_a_base, hybrid=True),
    "qwen3_next": Rotary(rule=layers.last_of, partial=True, hybrid=True, defaults=QUARTER),
    "recurrent_gemma": Rotary(parts=own.windowed, rule=layers.blocks, partial=True, hybrid=True, defaults=HALF),
    # Encoders
    **alike(Rotary(encodes=True), "eurobert", "gte", "jina_embeddings_v3"),
    "esm": Rotary(parts=own.esm, rotates=layers.if_embedding_is("rotary"), encodes=True, defaults=FIXED | PAD),
    "modernbert": Rotary(rule=layers.first_of, encodes=True, bases=MODERN_BASES, defaults=MODERN),
    "modernbert-decoder": Rotary(rule=layers.first_of, bases=MODERN_BASES, defaults=MODERN),
    "nomic_bert": Rotary(parts=own.nomic, encodes=True),
    "t5_gemma_module": Rotary(rule=layers.every(2), extra=own.gemma, encodes=True),
}

OTHERS: dict[str, Family] = {
    **alike(
        Family(tables.encoder),
        *("bart", "bert", "bert-generation", "blenderbot", "blenderbot-small", "distilbert", "electra", "ernie"),
        *("mbart", "mvp", "plbart"),
    ),
    "albert": Family(tables.encoder, {"embedding_size": 128}),
    "siglip_text_model": Family(tables.encoder, SIGLIP),
    **alike(
        Family(tables.padded_encoder, PAD),
        *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"),
    ),
    **alike(Family(tables.decoder), "biogpt", "gpt2", "gpt_bigcode", "opt"),
    "clip_text_model": Family(tables.decoder, CLIP),
    "gpt_neo": Family(tables.gpt_neo),
    "led": Family(tables.led),
    "whisper": Family(tables.whisper),
    **alike(Family(tables.m2m, PAD), "m2m_100", "nllb-moe"),
    **alike(Family(tables.marian), "marian", "pegasus"),
    "xglm": Family(tables.xglm),
    **alike(Family(tables.t5, T5), "mt5", "t5"),
    "umt5": Family(tables.t5, T5, shares=False),
    "longt5": Family(tables.longt5, T5),
    "mpnet": Family(tables.mpnet, {"relative_attention_num_buckets": 32}),
    "bloom": Family(tables.bloom),
    "mpt": Family(tables.mpt),
    **alike(Family(tables.deberta), "deberta", "deberta-v2"),
    "transfo-xl": Family(tables.transformer_xl, shares=False),
    "xlnet": Family(tables.xlnet, shares=False),
}

FAMILIES: dict[str, Family] = ROTARY | OTHERS

# What the published configs of PaliGemma leave to transformers' Gemma and Gemma 2.
PALIGEMMA1 = {"rope_theta": 1e4, "head_dim": 256}
PALIGEMMA2 = PALIGEMMA1 | {"sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0}

PALIGEMMA: dict[str, Family] = {
    "gemma": Rotary(prefixed=True, defaults=PALIGEMMA1),
    "gemma2": Rotary(rule=layers.every(2), extra=own.gemma, prefixed=True, defaults=PALIGEMMA2),
}
"""The two PaliGemmas, by the model type of their text.

Read as transformers' masks have it. Its SDPA path (5.22) leaves a plainly causal mask out, and since these layers have
is_causal=False, then sees everything; its eager path does not.
"""

SAME = {"kimi_k2": "deepseek_v3", "t5gemma": "t5_gemma_module", "clip": "clip_text_model"} | {
    name: f"{name}_text_model" for name in ("mllama", "siglip")
} | {
    name: f"{name}_text"
    for name in (
        "aria", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "muse_spark",
        "glm4v", "glm4v_moe", "glm_image", "glm_ocr", "llama4", "qwen2_vl",
        "qwen2_5_omni", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe",
    )
}  # fmt: skip
"""Model types whose text is read as another's, where the config is not split in two."""

NOT_READ = {
    "beam": "its layers without rotation multiply a query by (1 + (i + 1)/2048)^0.1, for which there is no part",
    "dbrx": "its base is in attn_config, where transformers' rotary module does not look",
    "deepseek_v4": "its values are its keys, turned with them and turned back behind attention, and most layers attend "
    "to keys that a learned module compresses; no scheme describes either",
    "blt": "it has several transformers inside, over bytes and over patches of them; give the one that is meant",
    "moshi": "it has two transformers inside, over time and over codebooks, with a rotary module in every layer",
    "doge": "its layers hide keys by a mask that they learn from the values, which no scheme describes",
    "hrm_text": "its layers are run several times over, each time with keys of its own, and may see a prefix both ways",
    **dict.fromkeys(
        ("dots3_note", "dots3_note_text"),
        "the widths of its latent heads differ from layer to layer, and some layers attend to the keys that an indexer "
        "picks of them, which is not read yet",
    ),
    **dict.fromkeys(
        ("inkling_text", "inkling2_text"),
        "its layers add learned numbers for every distance to the scores, made from the hidden states",
    ),
    **dict.fromkeys(
        ("mistral_large4", "mistral_large4_text"),
        "its frequencies are learned: the rotary module multiplies each by exp(alpha), which is in no config, and its "
        "heads have learned temperatures",
    ),
    "nezha": "it adds waves of the distance to keys and to values, and no part adds to values",
    "cohere_compass_text": "transformers builds no model of its default config to compare with, and it is not read yet",
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        "it drafts with the keys of the model that it drafts for; extend that one",
    ),
    **dict.fromkeys(
        ("musicgen", "musicgen_melody"),
        "its decoder adds waves to the embeddings, which no method of attention changes",
    ),
    "trocr": "its positions are rows of a table that are added to the embeddings, and its table is not grown",
    **dict.fromkeys(
        ("qwen4_exp", "qwen4_exp_text"),
        "its layers attend to the keys that an indexer picks of compressed ones, at positions of the whole text, and "
        "transformers builds no model of its default config to compare with",
    ),
    **dict.fromkeys(
        ("zamba", "zamba2"),
        "its attention modules are shared by several layers, on two hidden states joined; schemes go by layers",
    ),
    "longformer": "its layers see a window of attention_window // 2 keys on each side and, besides it, the tokens that "
    "each call names as global, by projections of their own. Where no token is global, a layer is "
    "Scheme(window(n // 2 + 1, ahead=n // 2))",
    "big_bird": "its layers see random blocks of keys next to a window, which no scheme describes",
    "reformer": "its layers see the keys that a hash groups with the query, which no scheme describes",
    **dict.fromkeys(
        ("falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm"),
        "it has no attention over tokens, so there is no scheme to read",
    ),
}
"""Model types that are known and that no scheme can describe, with the reason."""
