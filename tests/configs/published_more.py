"""Configurations shaped as those of more published models: hybrids, encoders and others.

Every key that positions depend on is there. The numbers were not compared with the files of the hub; what is tested is
that a dict, an object and a saved file are read alike.
"""

from __future__ import annotations

from typing import Any

from tests.configs.published import mla, model

# Nemotron-H-8B: M is Mamba, - a network, * attention.
NEMOTRON = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
KIMI = {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}
KIMI["kda_layers"] = [n for n in range(1, 28) if n not in KIMI["full_attn_layers"]]
GRANITE4 = ["attention" if n in (5, 15, 25, 35) else "mamba" for n in range(40)]
MROPE = {"mrope_section": [8, 12, 12], "rope_type": "default"}
GEMMA4_ROPE = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
T5GEMMA = {
    "model_type": "t5_gemma_module", "hidden_size": 2304, "num_attention_heads": 8, "num_hidden_layers": 26,
    "head_dim": 256, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "sliding_window": 4096,
    "rope_theta": 10000.0, "max_position_embeddings": 8192,
}  # fmt: skip


def stacks(model_type: str, width: int, heads: int, layers: int, **settings: Any) -> dict[str, Any]:
    """A config.json of an encoder and a decoder alike."""
    both = {
        f"{stack}_{key}": n
        for stack in ("encoder", "decoder")
        for key, n in (("layers", layers), ("attention_heads", heads))
    }
    return {"model_type": model_type, "d_model": width, **both, **settings}


HYBRIDS: dict[str, dict[str, Any]] = {
    "Qwen3-Next-80B-A3B": model(
        "qwen3_next", 2048, 16, 48, 262144, head_dim=256, rope_theta=10000000, partial_rotary_factor=0.25,
        full_attention_interval=4,
    ),
    "Kimi-Linear-48B-A3B": model(
        "kimi_linear", 2304, 32, 27, 1048576, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        kv_lora_rank=512, linear_attn_config=KIMI,
    ),
    "Nemotron-H-8B": model("nemotron_h", 4096, 32, 52, 8192, head_dim=128, hybrid_override_pattern=NEMOTRON),
    "granite-4.0-h-tiny": model(
        "granitemoehybrid", 1536, 12, 40, 131072, attention_multiplier=0.0078125, position_embedding_type="nope",
        rope_theta=10000, layer_types=GRANITE4,
    ),
    "LFM2-1.2B": model("lfm2", 2048, 32, 16, 128000, rope_theta=1000000.0, full_attn_idxs=[2, 5, 8, 10, 12, 14]),
}  # fmt: skip

WHOLE: dict[str, dict[str, Any]] = {
    "GLM-4.5-Air": model("glm4_moe", 4096, 96, 46, 131072, head_dim=128, rope_theta=1000000, partial_rotary_factor=0.5),
    "GLM-4.1V-9B": {
        "model_type": "glm4v",
        "text_config": model(
            "glm4v_text", 4096, 32, 40, 65536, rope_theta=10000.0, partial_rotary_factor=0.5, rope_scaling=MROPE,
        ),
    },
    "gemma-3n-E4B": {
        "model_type": "gemma3n",
        "text_config": model(
            "gemma3n_text", 2048, 8, 35, 32768, head_dim=256, rope_theta=1000000.0, rope_local_base_freq=10000.0,
            sliding_window=512, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7,
        ),
    },
    "gemma-4, twelve layers": {
        "model_type": "gemma4",
        "text_config": model(
            "gemma4_text", 2304, 8, 12, 131072, head_dim=256, global_head_dim=512, sliding_window=512,
            rope_parameters=GEMMA4_ROPE, layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 2,
        ),
    },
    "DeepSeek-V3.2": mla("deepseek_v32", 7168, 128, 61, 1.0) | {"q_lora_rank": 1536, "index_topk": 2048},
    "MiniMax-M2": model("minimax_m2", 3072, 48, 62, 196608, head_dim=128, rotary_dim=64, rope_theta=5000000),
    "ERNIE-4.5-21B-A3B": model("ernie4_5_moe", 2560, 20, 28, 131072, head_dim=128, rope_theta=500000.0),
    "Falcon-H1-1.5B": model("falcon_h1", 2048, 8, 24, 131072, head_dim=128, rope_theta=100000000000.0),
    "esm2_t33_650M": model("esm", 1280, 20, 33, 1026, position_embedding_type="rotary", pad_token_id=1, vocab_size=33),
    "esm1b_t33_650M": model("esm", 1280, 20, 33, 1026, position_embedding_type="absolute", pad_token_id=1),
    "ettin-decoder-150m": model(
        "modernbert-decoder", 768, 12, 22, 8192, global_rope_theta=160000.0, local_rope_theta=160000.0,
        local_attention=128, global_attn_every_n_layers=3,
    ),
    "t5gemma-2b-2b": {"model_type": "t5gemma", "encoder": T5GEMMA, "decoder": T5GEMMA | {"is_decoder": True}},
    "distilbert-base": {
        "model_type": "distilbert", "dim": 768, "n_heads": 12, "n_layers": 6, "max_position_embeddings": 512,
    },
    "mpnet-base": model("mpnet", 768, 12, 12, 514, relative_attention_num_buckets=32, pad_token_id=1),
    "albert-base-v2": model("albert", 768, 12, 12, 512, embedding_size=128),
    "clip-vit-base-patch32": {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}},
    "whisper-small": stacks("whisper", 768, 12, 12, max_source_positions=1500, max_target_positions=448),
    "bart-large": stacks("bart", 1024, 16, 12, max_position_embeddings=1024),
    "opus-mt-en-de": stacks("marian", 512, 8, 6, max_position_embeddings=512),
    "m2m100_418M": stacks("m2m_100", 1024, 16, 12, max_position_embeddings=1024, pad_token_id=1),
    "xglm-564M": {
        "model_type": "xglm", "d_model": 1024, "attention_heads": 16, "num_layers": 24, "max_position_embeddings": 2048,
    },
    "long-t5-local-base": {
        "model_type": "longt5", "d_model": 768, "num_heads": 12, "num_layers": 12, "d_kv": 64, "local_radius": 127,
        "encoder_attention_type": "local", "relative_attention_num_buckets": 32, "is_encoder_decoder": True,
    },
}  # fmt: skip

MORE = HYBRIDS | WHOLE
