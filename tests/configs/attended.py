"""What the attention layers of a tiny model of transformers are given before they turn it, and what they answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel

from tests.configs import theirs

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "use_cache": False,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "num_experts_per_tok": 1}
EXPERTS |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1}
TURNERS = (
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_interleave",
    "apply_rotary_emb",
    "apply_rotary_partial_pos_emb",
)
INNER = {
    "mllama_text_model": "MllamaTextModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "siglip_text_model": "SiglipTextModel",
    "step3p5": "Step3p7TextModel",
}
"""Models that transformers makes only inside others, by the class of theirs."""


@dataclass
class Call:
    """One layer's attention: queries, keys and values as its projections make them, and what came out, [b h t d]."""

    module: Any
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor


@dataclass
class Noted(Call):
    """The same as it goes into the product of queries and keys, with what the module was called with."""

    arguments: Any


def tiny(model_type: str, **settings: Any) -> Any:
    """A model of that type whose weights are large enough for positions to count."""
    config = AutoConfig.for_model(model_type, **SMALL | settings)
    kind = getattr(theirs.modeling(config), INNER[model_type]) if model_type in INNER else AutoModel
    # AutoModel has a way to make a model from a config, and the classes inside others the same under another name.
    make = kind.from_config if kind is AutoModel else kind._from_config
    model = make(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue  # Waves are fixed.
        if weight.dim() > 1 and "norm" not in name.lower():
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * 1.5 * weight.shape[-1] ** -0.5)
        elif "norm" in name.lower():
            # Weights of 1 would hide a norm that comes after the rotation.
            weight.data.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.eval()


@torch.no_grad()
def attended(model: Any, t: int = 14, **given: Any) -> list[Call]:
    """Every call of attention in one pass over a text of t tokens, in the order of the layers."""
    ids = torch.randint(3, 40, (2, t), generator=torch.Generator().manual_seed(1))
    turned: list[Noted] = []
    raw: list[Noted] = []
    arguments: dict[Any, Any] = {}

    def remember(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments[module] = args, kwargs

    hooks = [
        each.register_forward_pre_hook(remember, with_kwargs=True)
        for each in model.modules()
        if "Attention" in type(each).__name__ or "MLA" in type(each).__name__
    ]
    with recording(model, turned, arguments):
        model(**given if "input_features" in given else {"input_ids": ids} | given)
    for hook in hooks:
        hook.remove()
    with recording(model, raw, {}), without_turning(model):
        for each in turned:
            each.module(*each.arguments[0], **each.arguments[1])
    return [Call(one.module, other.q, other.k, other.v, one.out) for one, other in zip(turned, raw, strict=True)]


def beside(model: Any) -> set[Any]:
    """The modules of Python that a model's classes stand in."""
    return {sys.modules[type(each).__module__] for each in model.modules()}


@contextmanager
def recording(model: Any, calls: list[Noted], arguments: dict[Any, Any]) -> Iterator[None]:
    """Note what goes into the models' plain attention and what comes out of it."""
    name = "eager_attention_forward"
    plain = [each for each in beside(model) if hasattr(each, name)]
    with many([patch.object(each, name, noting(getattr(each, name), calls, arguments)) for each in plain]):
        yield


def noting(attention: Callable[..., Any], calls: list[Noted], arguments: dict[Any, Any]) -> Callable[..., Any]:
    def noted(module: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = attention(module, q, k, v, *args, **kwargs)
        calls.append(Noted(module, q, k, v, found[0].transpose(1, 2), arguments.get(module)))
        return found

    return noted


@contextmanager
def without_turning(model: Any) -> Iterator[None]:
    """Let the functions that turn queries and keys, or sharpen them by position, leave them as they are."""

    def still(*given: Any, **named: Any) -> Any:
        # Queries and keys have heads, cosines and sines have none.
        kept = tuple(takewhile(lambda x: x.dim() == 4, given))
        return kept[0] if len(kept) == 1 else kept

    ways = dict.fromkeys(TURNERS, still) | {"get_llama_4_attn_scale": lambda *given: torch.ones(())}
    patches = [
        patch.object(each, name, by) for each in beside(model) for name, by in ways.items() if hasattr(each, name)
    ]
    # HunYuan's norms come after the rotation, so they are a part of its scheme.
    patches += [
        patch.object(norm, "forward", lambda x: x)
        for name, norm in model.named_modules()
        if name.endswith(("query_layernorm", "key_layernorm"))
    ]
    with many(patches):
        yield


@contextmanager
def many(patches: list[Any]) -> Iterator[None]:
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
