"""What makes a tiny model of each type itself: short windows, heads of two widths, layers that are not attention."""

from __future__ import annotations

from typing import Any

from tests.configs.attended import EXPERTS

LATENT = {"q_lora_rank": 12, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6, "v_head_dim": 10}
LATENT |= EXPERTS | {"num_key_value_heads": 4, "first_k_dense_replace": 1}
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
MAMBA |= {"mamba_expand": 1, "mamba_chunk_size": 8}
THREE = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [2, 1, 1]}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 8}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0}
INDEXED = {"index_topk": 64, "index_head_dim": 12, "index_n_heads": 2, "rope_parameters": YARN}
# The last two layers have the keys of the two before them.
SHARED = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "head_dim": 8, "sliding_window": 5}
SHARED |= {
    "layer_types": WINDOWED["layer_types"] * 2,
    "vocab_size_per_layer_input": 40,
    "hidden_size_per_layer_input": 8,
}
QWEN35 = LINEAR | HYBRID | {"head_dim": 32, "rope_parameters": THREE | {"partial_rotary_factor": 0.25}}

MODELS: dict[str, dict[str, Any]] = {
    "qwen3_next": LINEAR | HYBRID | EXPERTS | {"head_dim": 16},
    "qwen3_5_text": QWEN35,
    "qwen3_5_moe_text": QWEN35 | EXPERTS,
    "qwen3_vl_text": {"head_dim": 8, "rope_parameters": THREE},
    "qwen3_vl_moe_text": {"head_dim": 8, "rope_parameters": THREE} | EXPERTS,
    "qwen3_omni_moe_text": {"head_dim": 8, "rope_parameters": THREE} | EXPERTS,
    "qwen2_5_omni_text": {"rope_parameters": THREE},
    "glm4_moe": EXPERTS | {"head_dim": 16, "use_qk_norm": True},
    "glm4_moe_lite": LATENT | {"rope_parameters": YARN},
    "glm_moe_dsa": LATENT | INDEXED,
    "glm4v_text": {"hidden_size": 64, "rope_parameters": THREE | {"partial_rotary_factor": 0.5}},
    "glm4v_moe_text": {"head_dim": 16, "rope_parameters": THREE | {"partial_rotary_factor": 0.5}} | EXPERTS,
    "gemma3n_text": SHARED,
    "gemma4_text": SHARED | {"global_head_dim": 16},
    "deepseek_v32": LATENT | INDEXED,
    "minimax": {"layer_types": ["full_attention", "linear_attention"], "head_dim": 8} | EXPERTS,
    "minimax_m2": {"head_dim": 16, "rotary_dim": 8} | EXPERTS,
    "mistral4": LATENT | {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.5}},
    "kimi_linear": LATENT | HYBRID | {"linear_num_heads": 2, "linear_head_dim": 8},
    "ernie4_5_moe": EXPERTS,
    "granitemoe": EXPERTS | {"attention_multiplier": 0.2},
    "granitemoeshared": EXPERTS | {"attention_multiplier": 0.2},
    "granitemoehybrid": HYBRID | MAMBA | EXPERTS | {"attention_multiplier": 0.2, "position_embedding_type": "rope"},
    "falcon_h1": MAMBA | {"key_multiplier": 0.7},
    "nemotron_h": {"layers_block_type": ["mlp", "full_attention"], "head_dim": 8} | EXPERTS,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]} | EXPERTS,
    "nomic_bert": {},
    "gte": {},
    "jina_embeddings_v3": {},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3},
    "modernbert-decoder": {"local_attention": 8, "layer_types": WINDOWED["layer_types"]},
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 24},
    "albert": {"embedding_size": 16},
    "clip_text_model": {},
}

# Types that are read as others are.
MODELS |= {
    "afmoe": WINDOWED | EXPERTS | {"head_dim": 8, "num_dense_layers": 1},
    "aria_text": {"moe_num_experts": 2, "moe_topk": 1, "moe_num_shared_experts": 1},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "bert-generation": {},
    "biogpt": {},
    "cwm": WINDOWED | {"head_dim": 8},
    "data2vec-text": {},
    "dots1": WINDOWED | EXPERTS | {"head_dim": 8, "n_shared_experts": 1},
    "ernie": {},
    "eurobert": {},
    "exaone_moe": WINDOWED | EXPERTS | {"head_dim": 8},
    "flex_olmo": EXPERTS,
    "glm_image_text": {"hidden_size": 64, "rope_parameters": THREE | {"partial_rotary_factor": 0.5}},
    "glm_ocr_text": {"head_dim": 16, "rope_parameters": THREE | {"partial_rotary_factor": 0.5}},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": EXPERTS | {"head_dim": 8, "moe_topk": 1},
    "hyperclovax": {"attention_multiplier": 0.2, "head_dim": 8},
    "jais2": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "use_mamba_kernels": False} | EXPERTS,
    "mllama_text_model": {"cross_attention_layers": []},
    "roberta-prelayernorm": {},
    "siglip_text_model": {},
    "solar_open": EXPERTS | {"head_dim": 8},
    "vaultgemma": WINDOWED | {"head_dim": 8, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0},
    "xlm-roberta-xl": {},
    "youtu": LATENT | {"rope_parameters": YARN},
}

DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
BY_TYPE = {"full_attention": DEFAULT | {"rope_theta": 5e5}, "sliding_attention": DEFAULT}
HALVES = {kind: each | {"partial_rotary_factor": 0.5} for kind, each in BY_TYPE.items()}
BY_LAYER = WINDOWED | {"attention_multiplier": 0.2, "layer_rope_theta": [1e4, 5e5]}

TWICE = {"head_dim": 8, "num_layers": 1, "num_experts_per_tok": 2, "expert_ffn_hidden_size": 16}

MODELS |= {
    "axk1": LATENT | {"rope_parameters": YARN},
    "axk2": LATENT | INDEXED | {"n_shared_experts": 1},
    "bailing_hybrid": LATENT | {"layer_types": HYBRID["layer_types"], "head_dim": 8, "num_shared_experts": 1},
    "cohere2_moe": WINDOWED | EXPERTS | {"head_dim": 8},
    "flint": WINDOWED | EXPERTS | {"head_dim": 8},
    "gemma4_unified_text": {"head_dim": 8, "global_head_dim": 16} | WINDOWED,
    "granite_swa": BY_LAYER,
    "granitemoe_swa": BY_LAYER | EXPERTS,
    "hy_v3": EXPERTS | {"head_dim": 8},
    "hy_v4": LATENT | INDEXED | {"n_shared_experts": 1, "hc_mult": 2},
    "jetmoe": {"kv_channels": 8, "num_local_experts": 2, "num_experts_per_tok": 2},
    "kolibri1": WINDOWED | EXPERTS | {"head_dim": 8},
    "laguna": WINDOWED | EXPERTS | {"head_dim": 8, "rope_parameters": HALVES},
    "longcat_flash": LATENT | TWICE | {"rope_parameters": YARN},
    "mellum": WINDOWED | EXPERTS | {"head_dim": 8, "rope_parameters": BY_TYPE},
    "mimo_v2_flash": WINDOWED | EXPERTS | {"head_dim": 12, "v_head_dim": 8, "rope_parameters": HALVES},
    "minimax_m3_vl_text": EXPERTS | {"head_dim": 16, "rotary_dim": 8, "rope_parameters": HALVES["full_attention"]},
    "muse_spark_text": WINDOWED | EXPERTS | {"head_dim": 8, "layer_rope_theta": [1e4, 0]},
    "nanochat": {},
    "olmo_hybrid": HYBRID | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "phi4_multimodal": {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
    "phimoe": EXPERTS | {"sliding_window": 5},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "attention_window_size": 5, "lru_width": 32},
    "step3p5": WINDOWED | EXPERTS | {"head_dim": 8, "rope_parameters": HALVES, "query_pre_attn_scalar": 12},
    "zaya": {
        "layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 5, "head_dim": 16, "num_experts": 2,
        "router_hidden_size": 8,
        "rope_parameters": dict(zip(("hybrid", "hybrid_sliding"), HALVES.values(), strict=True)),
    },
}  # fmt: skip

WITH_IMAGES = (
    "glm4v_moe_text", "glm4v_text", "glm_image_text", "glm_ocr_text", "qwen2_5_omni_text", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text",
)  # fmt: skip
"""Types whose tokens stand at a time, a height and a width."""
