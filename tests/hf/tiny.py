"""Models of transformers with a few random weights, one of each architecture, and the tokens that they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "num_local_experts": 2, "moe_intermediate_size": 16}
SLIDING = {"sliding_window": 8, "use_sliding_window": True}
TYPES = {"layer_types": ["sliding_attention", "full_attention"]}
OWN: dict[str, dict[str, Any]] = {
    "apertus": {"hidden_act": "xielu"},
    "bloom": {"n_head": 4, "n_layer": 2},
    "cohere": {"use_qk_norm": True, "logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0} | SLIDING | TYPES,
    "deepseek_v3": EXPERTS | {
        "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6,
        "v_head_dim": 10, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    },
    "exaone4": SLIDING | TYPES,
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0} | SLIDING | TYPES,
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 12} | SLIDING | TYPES,
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_oss": {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    | EXPERTS | SLIDING | TYPES,
    "gptj": {"rotary_dim": 4, "n_inner": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "granite": {"attention_multiplier": 0.2},
    "helium": {"head_dim": 8},
    "ministral": {"head_dim": 8} | SLIDING | TYPES,
    "mistral": {"head_dim": 8} | SLIDING,
    "mixtral": {"head_dim": 8} | EXPERTS | SLIDING,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "olmo3": SLIDING | TYPES,
    "olmoe": EXPERTS,
    "phi3": SLIDING,
    "qwen2": {"max_window_layers": 1} | SLIDING,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3": {"max_window_layers": 1, "head_dim": 8} | SLIDING,
    "qwen3_moe": EXPERTS | {"head_dim": 8},
    "seed_oss": {"head_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "starcoder2": SLIDING,
}  # fmt: skip
"""What makes each architecture itself: windows shorter than the texts, caps, sinks, layers without positions."""


def tiny(model_type: str, seed: int = 0, **more: Any) -> Any:
    """A model of that type in float32, whose logits tell where tokens stand."""
    config = AutoConfig.for_model(model_type, **(SMALL | OWN.get(model_type, {}) | more))
    torch.manual_seed(seed)
    # Some releases of transformers run Gemma 2 by a function that leaves its cap out.
    how = {"attn_implementation": "eager"} if model_type == "gemma2" else {}
    model = AutoModelForCausalLM.from_config(config, **how).eval()
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            weight.data.normal_()
    return model


def trained_at(n: int, model: Any) -> Any:
    """A model whose config says that it was trained at n tokens."""
    for name in ("max_position_embeddings", "max_seq_len"):
        if hasattr(model.config, name):
            setattr(model.config, name, n)
    return model


def tokens(b: int = 2, t: int = 24, seed: int = 1) -> Tensor:
    """Texts without padding."""
    return torch.randint(2, 48, (b, t), generator=torch.Generator().manual_seed(seed))


def padded(b: int = 2, t: int = 24) -> tuple[Tensor, Tensor]:
    """Texts of which the first is padded on the left, and the mask that says so."""
    texts, mask = tokens(b, t), torch.ones(b, t, dtype=torch.long)
    texts[0, :5], mask[0, :5] = 0, 0
    return texts, mask


def continued(
    model: Any, texts: Tensor, mask: Tensor | None = None, n: int = 6, **options: Any
) -> tuple[Tensor, Tensor]:
    """What a model goes on with, and the logits of every step, [b n] and [n b vocabulary]."""
    mask = torch.ones_like(texts) if mask is None else mask
    given = {"max_new_tokens": n, "min_new_tokens": n, "do_sample": False, "disable_compile": True} | options
    made = model.generate(texts, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **given)
    return made.sequences[:, texts.shape[1] :], torch.stack(made.logits)
