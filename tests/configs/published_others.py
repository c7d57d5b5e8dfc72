"""The config.json of published models that do not turn: tables, slopes and buckets."""

from __future__ import annotations

from typing import Any

MPT = {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention", "softmax_scale": None}
DEBERTA = {"relative_attention": True, "position_biased_input": False, "max_position_embeddings": 512}
V3 = DEBERTA | {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p"}


def t5(model_type: str, width: int, heads: int, layers: int, head: int) -> dict[str, Any]:
    settings = {"d_model": width, "num_heads": heads, "num_layers": layers, "d_kv": head}
    return {"model_type": model_type, **settings, "relative_attention_num_buckets": 32, "is_encoder_decoder": True}


def encoder(model_type: str, width: int, heads: int, layers: int, **settings: Any) -> dict[str, Any]:
    usual = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    return {"model_type": model_type, **usual, **settings}


def gpt2(model_type: str, width: int, heads: int, layers: int, length: int) -> dict[str, Any]:
    return {"model_type": model_type, "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": length}


OTHERS: dict[str, dict[str, Any]] = {
    "bloom-560m": {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16},
    "bloom": {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112},
    "mpt-7b": {
        "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048, "attn_config": MPT,
    },
    "mpt-30b": {
        "model_type": "mpt", "d_model": 7168, "n_heads": 64, "n_layers": 48, "max_seq_len": 8192, "attn_config": MPT,
    },
    "falcon-rw-1b": encoder("falcon", 2048, 32, 24, alibi=True, transformers_version="4.27.4"),
    "t5-small": t5("t5", 512, 8, 6, 64),
    "t5-11b": t5("t5", 1024, 128, 24, 128),
    "t5-small, its decoder": t5("t5", 512, 8, 6, 64) | {"is_decoder": True, "is_encoder_decoder": False},
    "mt5-base": t5("mt5", 768, 12, 12, 64) | {"relative_attention_max_distance": 128},
    "umt5-small": t5("umt5", 512, 6, 8, 64) | {"relative_attention_max_distance": 128},
    "bert-base": encoder("bert", 768, 12, 12, max_position_embeddings=512, position_embedding_type="absolute"),
    "roberta-base": encoder("roberta", 768, 12, 12, max_position_embeddings=514, pad_token_id=1),
    "gpt2": gpt2("gpt2", 768, 12, 12, 1024),
    "gpt2-xl": gpt2("gpt2", 1600, 25, 48, 1024),
    "opt-125m": encoder("opt", 768, 12, 12, max_position_embeddings=2048),
    "gpt-neo-125m": {
        "model_type": "gpt_neo", "hidden_size": 768, "num_heads": 12, "num_layers": 12, "window_size": 256,
        "attention_types": [[["global", "local"], 6]], "max_position_embeddings": 2048,
    },
    "xlnet-base": {
        "model_type": "xlnet", "d_model": 768, "n_head": 12, "n_layer": 12, "d_head": 64, "attn_type": "bi",
        "clamp_len": -1, "bi_data": False, "same_length": False, "untie_r": True,
    },
    "deberta-base": encoder(
        "deberta", 768, 12, 12, **DEBERTA, max_relative_positions=-1, pos_att_type="c2p|p2c",
    ),
    "deberta-v3-base": encoder("deberta-v2", 768, 12, 12, **V3, max_relative_positions=-1),
    "deberta-v3-large": encoder("deberta-v2", 1024, 16, 24, **V3, max_relative_positions=-1),
}  # fmt: skip
