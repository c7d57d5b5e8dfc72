"""The config.json of published models that turn queries and keys: every key that positions depend on."""

from __future__ import annotations

from typing import Any

from tests.configs.published_others import OTHERS

Plain = dict[str, Any]

# Phi-3.5-mini's searched factors, to the two decimals they have.
SHORT = [
    1.0, 1.02, 1.03, 1.03, 1.05, 1.05, 1.05, 1.05, 1.05, 1.07, 1.1, 1.11, 1.16, 1.16, 1.17, 1.29,
    1.34, 1.68, 1.79, 1.82, 1.85, 1.88, 1.91, 1.94, 1.99, 2.02, 2.02, 2.02, 2.02, 2.02, 2.02, 2.03,
    2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.08, 2.09, 2.19, 2.22, 2.59, 2.73, 2.75, 2.84,
]  # fmt: skip
LONG = [
    1.08, 1.11, 1.14, 1.34, 1.59, 1.6, 1.62, 2.62, 3.23, 3.23, 4.79, 7.4, 7.7, 9.09, 12.2, 17.67,
    24.46, 28.57, 30.42, 30.84, 32.59, 32.93, 42.32, 44.96, 50.34, 50.45, 57.55, 57.93, 58.21, 60.14, 62.61, 62.62,
    62.71, 63.14, 63.14, 63.77, 63.93, 63.96, 63.97, 64.03, 64.07, 64.08, 64.12, 64.41, 64.48, 64.51, 64.53, 64.84,
]  # fmt: skip


def model(model_type: str, width: int, heads: int, layers: int, longest: int, **settings: Any) -> Plain:
    """A config.json with the usual keys."""
    usual = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    return {"model_type": model_type, **usual, "max_position_embeddings": longest, **settings}


def llama31(factor: float, low: float = 1.0, high: float = 4.0) -> Plain:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }


def deepseek_yarn(mscale: float) -> Plain:
    settings = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
    return settings | {"mscale": mscale, "mscale_all_dim": mscale}


def mla(model_type: str, width: int, heads: int, layers: int, mscale: float) -> Plain:
    latent = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}
    settings = model(model_type, width, heads, layers, 163840, rope_theta=10000, rope_scaling=deepseek_yarn(mscale))
    return settings | latent


KIMI_YARN = deepseek_yarn(1.0) | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}
QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
GPT_OSS_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
OLMO3_YARN = {
    "rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
SCOUT = {"head_dim": 128, "rope_theta": 500000.0, "no_rope_layers": [], "attention_chunk_size": 8192}
GEMMA2 = {"rope_theta": 10000.0, "sliding_window": 4096, "attn_logit_softcapping": 50.0}
GEMMA3_LINEAR = {"factor": 8.0, "rope_type": "linear"}

LLAMAS: dict[str, Plain] = {
    # Written before the base was a key.
    "Llama-2-7b": model("llama", 4096, 32, 32, 4096, rope_scaling=None, transformers_version="4.31.0.dev0"),
    "Llama-2-70b": model("llama", 8192, 64, 80, 4096, rope_scaling=None, transformers_version="4.31.0.dev0"),
    "CodeLlama-7b": model("llama", 4096, 32, 32, 16384, rope_theta=1000000, transformers_version="4.33.0.dev0"),
    "Llama-3-8B": model("llama", 4096, 32, 32, 8192, rope_theta=500000.0, rope_scaling=None),
    "Llama-3-70B": model("llama", 8192, 64, 80, 8192, rope_theta=500000.0, rope_scaling=None),
    "Llama-3.1-8B": model("llama", 4096, 32, 32, 131072, rope_theta=500000.0, rope_scaling=llama31(8.0)),
    "Llama-3.1-405B": model("llama", 16384, 128, 126, 131072, rope_theta=500000.0, rope_scaling=llama31(8.0)),
    "Llama-3.2-1B": model("llama", 2048, 32, 16, 131072, head_dim=64, rope_theta=500000.0, rope_scaling=llama31(32.0)),
    "Llama-4-Scout": {
        "model_type": "llama4",
        "text_config": model(
            "llama4_text", 5120, 40, 48, 10485760, rope_scaling=llama31(16.0, 1.0, 1.0),
            attn_temperature_tuning=True, floor_scale=8192, attn_scale=0.1, **SCOUT,
        ),
    },
    "Llama-4-Maverick": {
        "model_type": "llama4",
        "text_config": model("llama4_text", 5120, 40, 48, 1048576, rope_scaling=None, **SCOUT),
    },
    "SmolLM3-3B": model(
        "smollm3", 2048, 16, 36, 65536, rope_theta=5000000.0, rope_scaling=None, use_sliding_window=False,
        no_rope_layers=[1, 1, 1, 0] * 9, no_rope_layer_interval=4,
    ),
}  # fmt: skip

MISTRALS: dict[str, Plain] = {
    "Mistral-7B-v0.1": model("mistral", 4096, 32, 32, 32768, rope_theta=10000.0, sliding_window=4096),
    "Mistral-7B-v0.3": model("mistral", 4096, 32, 32, 32768, rope_theta=1000000.0, sliding_window=None),
    "Mistral-Nemo": model("mistral", 5120, 32, 40, 131072, head_dim=128, rope_theta=1000000.0, sliding_window=None),
    "Mixtral-8x7B": model("mixtral", 4096, 32, 32, 32768, rope_theta=1000000.0, sliding_window=None),
    "Qwen2-7B": model("qwen2", 3584, 28, 28, 131072, rope_theta=1000000.0, **QWEN_WINDOW),
    "Qwen2.5-0.5B": model("qwen2", 896, 14, 24, 32768, rope_theta=1000000.0, **QWEN_WINDOW),
    "Qwen2.5-7B with YaRN": model(
        "qwen2", 3584, 28, 28, 32768, rope_theta=1000000.0,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, **QWEN_WINDOW,
    ),
    "Qwen3-8B": model("qwen3", 4096, 32, 36, 40960, head_dim=128, rope_theta=1000000, rope_scaling=None),
    "Qwen3-0.6B": model("qwen3", 1024, 16, 28, 40960, head_dim=128, rope_theta=1000000, rope_scaling=None),
    "Qwen3-30B-A3B": model(
        "qwen3_moe", 2048, 32, 48, 40960, head_dim=128, rope_theta=1000000.0, use_sliding_window=False,
        sliding_window=None, max_window_layers=48,
    ),
    "Phi-3-mini-4k": model("phi3", 3072, 32, 32, 4096, rope_theta=10000.0, rope_scaling=None, sliding_window=2047),
    "Phi-3.5-mini": model(
        "phi3", 3072, 32, 32, 131072, rope_theta=10000.0, sliding_window=262144, original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    ),
    "phi-2": model("phi", 2560, 32, 32, 2048, rope_theta=10000.0, rope_scaling=None, partial_rotary_factor=0.4),
    "OLMo-7B": model("olmo", 4096, 32, 32, 2048, rope_theta=10000.0),
    "OLMo-2-7B": model("olmo2", 4096, 32, 32, 4096, rope_theta=500000),
    "Olmo-3-7B": model(
        "olmo3", 4096, 32, 32, 65536, rope_theta=500000, sliding_window=4096, rope_scaling=OLMO3_YARN,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
    ),
}  # fmt: skip

REST: dict[str, Plain] = {
    "gpt-neox-20b": model("gpt_neox", 6144, 64, 44, 2048, rotary_pct=0.25, rotary_emb_base=10000),
    "pythia-1.4b": model("gpt_neox", 2048, 16, 24, 2048, rotary_pct=0.25, rotary_emb_base=10000),
    "gpt-j-6b": {
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
    },
    "codegen-350M": {
        "model_type": "codegen", "n_embd": 1024, "n_head": 16, "n_layer": 20, "n_positions": 2048, "rotary_dim": 32,
    },
    "gemma-2b": model("gemma", 2048, 8, 18, 8192, head_dim=256, rope_theta=10000.0),
    "gemma-2-2b": model("gemma2", 2304, 8, 26, 8192, head_dim=256, query_pre_attn_scalar=256, **GEMMA2),
    "gemma-2-27b": model("gemma2", 4608, 32, 46, 8192, head_dim=128, query_pre_attn_scalar=144, **GEMMA2),
    "gemma-3-1b": model(
        "gemma3_text", 1152, 4, 26, 32768, head_dim=256, query_pre_attn_scalar=256, rope_theta=1000000,
        rope_local_base_freq=10000, rope_scaling=None, sliding_window=512, sliding_window_pattern=6,
    ),
    # This one leaves heads, head_dim and both bases to transformers.
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": GEMMA3_LINEAR,
        },
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "sliding_window": 1024,
            "num_attention_heads": 32, "head_dim": 128, "query_pre_attn_scalar": 168, "rope_scaling": GEMMA3_LINEAR,
        },
    },
    "embeddinggemma-300m": model(
        "gemma3_text", 768, 3, 24, 2048, head_dim=256, query_pre_attn_scalar=256, rope_theta=1000000.0,
        rope_local_base_freq=10000.0, sliding_window=512, use_bidirectional_attention=True,
    ),
    "DeepSeek-V2-Lite": mla("deepseek_v2", 2048, 16, 27, 0.707) | {"q_lora_rank": None},
    "DeepSeek-V2": mla("deepseek_v2", 5120, 128, 60, 0.707) | {"q_lora_rank": 1536},
    "DeepSeek-V3": mla("deepseek_v3", 7168, 128, 61, 1.0) | {"q_lora_rank": 1536},
    # Its config.json says kimi_k2, which is read as deepseek_v3; both ends of YaRN's ramp are at one turn.
    "Kimi-K2": mla("deepseek_v3", 7168, 64, 61, 1.0)
    | {"rope_theta": 50000.0, "max_position_embeddings": 131072, "rope_scaling": KIMI_YARN, "q_lora_rank": 1536},
    "gpt-oss-20b": model(
        "gpt_oss", 2880, 64, 24, 131072, head_dim=64, rope_theta=150000, sliding_window=128, rope_scaling=GPT_OSS_YARN,
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
    "gpt-oss-120b": model(
        "gpt_oss", 2880, 64, 36, 131072, head_dim=64, rope_theta=150000, sliding_window=128, rope_scaling=GPT_OSS_YARN,
        layer_types=["sliding_attention", "full_attention"] * 18,
    ),
    "falcon-7b": model("falcon", 4544, 71, 32, 2048, alibi=False, transformers_version="4.27.4"),
    "falcon-40b": model("falcon", 8192, 128, 60, 2048, alibi=False, transformers_version="4.27.4"),
    "command-r": model("cohere", 8192, 64, 40, 131072, rope_theta=8000000.0),
    "command-r7b": model("cohere2", 4096, 32, 32, 8192, rope_theta=50000, sliding_window=4096),
    "starcoder2-15b": model("starcoder2", 6144, 48, 40, 16384, rope_theta=100000, sliding_window=4096),
    "stablelm-2-1_6b": model("stablelm", 2048, 32, 24, 4096, rope_theta=10000, partial_rotary_factor=0.25),
    "ModernBERT-base": model(
        "modernbert", 768, 12, 22, 8192, global_rope_theta=160000.0, local_rope_theta=10000.0, local_attention=128,
        global_attn_every_n_layers=3,
    ),
    "Qwen2-VL-7B": model(
        "qwen2_vl", 3584, 28, 28, 32768, rope_theta=1000000.0, use_sliding_window=False,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
    ),
    "Qwen3-VL-8B": {
        "model_type": "qwen3_vl",
        "text_config": model(
            "qwen3_vl_text", 4096, 32, 36, 262144, head_dim=128, rope_theta=5000000,
            rope_scaling={"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        ),
    },
}  # fmt: skip

ROTARY = LLAMAS | MISTRALS | REST
PUBLISHED = ROTARY | OTHERS
