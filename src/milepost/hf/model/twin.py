"""A small model of the same class and the same config, sizes apart: what a model does can be tried on it in a second.

Sizes are made small by the names that configs have for them; a config whose sizes have other names gives a large model,
which is refused. Widths of heads stay, for frequencies are listed by them. Of the layers as many are kept, from the
first on, as hold one of every kind, or all. Nothing is dropped in training.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn

from milepost.configs.reader import HEADS, LAYERS, WIDTH
from milepost.hf.model.models import undrawn

MOST = 90_000_000
"""Weights that a twin may have; one of a second has about one million."""
WINDOW = 6
"""Keys of a window or a chunk in a twin: the texts it reads are longer."""
SMALL = 64
"""The width of a twin, where heads have a width of their own."""
SIZES: dict[str, int] = {
    r".*vocab_size.*": 128,
    r".*intermediate_size(_mlp|_shared)?|.*ffn_hidden_size|ffn_dim|n_inner|.*_mlp_dim": 64,
    r"(moe_)?num(_local|_routed)?_experts|n_routed_experts|moe_num_experts|zero_expert_num": 4,
    r"num_experts_per_tok(en)?|moe_(top_?k|k)|top_k_experts|num_selected_experts": 2,
    r"(n|num_expert|topk)_groups?": 1,
    r"(q|kv|o)_lora_rank|laurel_rank": 16,
    r"hidden_size_per_layer_input|.*d_state|.*state_size": 16,
    r"(mamba_)?chunk_size": 8,
    r"linear_((key|value)_)?head_dim": 16,
    r"linear_num_key_heads": 2,
    r"linear_num_(value_)?heads": 4,
}
"""Patterns of the names of sizes, and what each is in a twin; 0 stays 0."""
BESIDE = ("num_hidden_layers", "num_blocks")
"""What the configs of towers beside the text call their layers."""
WINDOWS = re.compile(r"sliding_window|attention_chunk_size|.*_window_size")
BOTH_SIDES = "local_attention"
"""The name of a window that counts keys on both sides (ModernBERT)."""
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_global_key_value_heads")
DROPPED = re.compile(r".*(dropout|dropout_rate|dropout_prob|layerdrop|_pdrop)")
TOKENS = re.compile(r".*_(token|token_id|token_ids|index)|.*_id|.*_ids")
"""Names of tokens: a twin has other ones."""
KINDLESS = (*HEADS, *WIDTH, *LAYERS, *GROUPS)


def is_size(name: str) -> bool:
    """Whether a field of a config is a size, which a twin has smaller."""
    return name in KINDLESS or TOKENS.fullmatch(name) is not None or small(name) is not None


def small(name: str) -> int | None:
    """Return what a size is in a twin; None for what is no size."""
    return next((each for pattern, each in SIZES.items() if re.fullmatch(pattern, name)), None)


def shrunk(
    config: Any, kinds: Sequence[object], few: Sequence[str] = (), narrow: bool = True, deep: bool = False
) -> Any:
    """Return a config with the sizes of a twin. kinds: one for each layer; few: fields that count tokens besides.

    narrow: whether the width of the model is free; else it is that of its heads together. deep: whether it has as many
    layers as the model.
    """
    config = copy.deepcopy(config)
    fields = cast("dict[str, Any]", config.to_dict())
    count = len(kinds)
    keep = list(range(count)) if deep else layers_kept(kinds, shared_in(fields))
    heads = next(each for name in HEADS if isinstance(each := fields.get(name), int))
    width = next(each for name in WIDTH if isinstance(each := fields.get(name), int))
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list) and len(cast("list[Any]", value)) == count and name not in ("architectures",):
            kept = [cast("list[Any]", value)[layer] for layer in keep]
            to = small(name)
            changes[name] = kept if to is None else [to if each else 0 for each in kept]
        elif isinstance(value, float) and DROPPED.fullmatch(name):
            changes[name] = 0.0
        elif isinstance(value, bool) or not isinstance(value, int):
            continue
        elif WINDOWS.fullmatch(name) or name in few:
            changes[name] = min(value, WINDOW)
        elif name == BOTH_SIDES:
            changes[name] = min(value, 2 * WINDOW)
        elif (to := small(name)) is not None:
            changes[name] = to if value else 0
        elif TOKENS.fullmatch(name):
            changes[name] = min(value, 0)
        elif name in GROUPS:
            changes[name] = 1 if value == 1 else 4 if value == heads else 2
    whole = {HEADS: 4, WIDTH: SMALL if narrow else 4 * (width // heads), LAYERS: len(keep)}
    for names, value in whole.items():
        changes.update({name: value for name in names if isinstance(fields.get(name), int)})
    if fields.get("mamba_n_heads"):
        # Its heads together are as wide as the mixer.
        wide = (fields.get("mamba_expand") or 1) * changes[next(name for name in WIDTH if name in changes)]
        changes |= {"mamba_d_head": 16, "mamba_n_heads": wide // 16, "mamba_n_groups": 1}
        changes |= {"mamba_d_ssm": wide} if fields.get("mamba_d_ssm") else {}
    if shared_in(fields):
        changes["num_kv_shared_layers"] = sum(layer >= count - shared_in(fields) for layer in keep)
    for name, value in changes.items():
        setattr(config, name, value)
    # What hears and sees beside the text (Phi-4 multimodal) is in no text.
    for beside in (each for each in cast("dict[str, Any]", vars(config)).values() if hasattr(each, "to_dict")):
        for name in BESIDE:
            if hasattr(beside, name):
                setattr(beside, name, 1)
    return config


def shared_in(fields: dict[str, Any]) -> int:
    """Return how many layers, the last ones, use keys of layers before them (Gemma 3n, Gemma 4)."""
    return fields.get("num_kv_shared_layers") or 0


def layers_kept(kinds: Sequence[object], shared: int = 0) -> list[int]:
    """Return which layers a twin has: the first ones until there is one of every kind, of the last `shared` as well."""
    first = len(kinds) - shared
    parts = [kinds[:first], kinds[first:]]
    kept = [next((n for n in range(len(part) + 1) if set(part[:n]) == set(part)), 0) for part in parts]
    return [*range(kept[0]), *range(first, first + kept[1])]


def twin_of(kind: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    """Build a model by its config in float32, in evaluation; the random state is left as it was."""
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config.dtype = torch.float32
    with undrawn("meta"):
        count = sum(each.numel() for each in kind(copy.deepcopy(config)).parameters())
    if count > MOST:
        raise ValueError(
            f"a small model of its class has {count / 1e6:.0f} million weights: sizes in its config have names that "
            f"are not known"
        )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with undrawn():
            torch.manual_seed(0)
            return kind(config).float().eval()
    finally:
        torch.set_default_dtype(default)


@torch.no_grad()
def draw(model: nn.Module, gain: float, seed: int = 0) -> None:
    """Give a model random weights: matrices of a gain, everything else near what the class begins with.

    Buffers that checkpoints have, and that the class begins with zeros, are drawn as well.
    """
    random = torch.Generator().manual_seed(seed)
    begun: dict[str, torch.Tensor] = model.__dict__.setdefault("milepost_begun", {})
    for name, each in model.state_dict(keep_vars=True).items():
        empty = each.is_floating_point() and (name in begun or not each.any())
        if not (isinstance(each, nn.Parameter) or empty):
            continue
        first = begun.setdefault(name, each.detach().clone() if each.dim() < 2 else each.new_empty(0))
        noise = torch.randn(each.shape, generator=random)
        if each.dim() < 2:
            each.copy_(first + 0.1 * noise)
        elif "embed" in name:
            each.copy_(noise)
        else:
            each.copy_(noise * gain / each[0].numel() ** 0.5)
