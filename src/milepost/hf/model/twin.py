"""A small model of the same class and the same config, sizes apart: what a model does can be tried on it in a second.

Sizes are made small by the names that configs have for them; a config whose sizes have other names gives a large model,
which is refused. Widths of heads stay, for frequencies are listed by them. Of the layers as many are kept, from the
first on, as hold one of every kind, or all; of layers that do not attend one of a kind. Nothing is dropped in training.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

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
    r".*intermediate_size(_mlp|_shared)?|.*ffn_hidden_size|ffn_dim|n_inner|.*_mlp_dim|lru_width": 64,
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
BESIDE: dict[str, int] = {
    "num_hidden_layers": 1, "num_blocks": 1, "hidden_size": SMALL, "intermediate_size": SMALL,
    "ext_pw_out_channel": SMALL, "depthwise_separable_out_channel": SMALL, "nemo_conv_channels": SMALL,
}  # fmt: skip
"""The sizes of towers beside the text, by their names in the configs of those."""
WINDOWS = re.compile(r"sliding_window|attention_chunk_size|.*_window_size")
BOTH_SIDES = "local_attention"
"""The name of a window that counts keys on both sides (ModernBERT)."""
DRAWN = frozenset({
    "kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_",
})  # fmt: skip
"""What classes draw weights by."""
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_global_key_value_heads")
DROPPED = re.compile(r".*(dropout|dropout_rate|dropout_prob|layerdrop|_pdrop)")
OF_LAYERS = "per_layer_config"
"""Where a config has what is otherwise in single layers (Gemma 4)."""
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
    if fields.get("layer_types") and not deep:
        keep = idle_once(keep, kinds)
    heads = next(each for name in HEADS if isinstance(each := fields.get(name), int))
    width = next(each for name in WIDTH if isinstance(each := fields.get(name), int))
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list) and len(cast("list[Any]", value)) == count and name not in ("architectures",):
            kept = [cast("list[Any]", value)[layer] for layer in keep]
            to = small(name)
            changes[name] = kept if to is None else [to if each else 0 for each in kept]
        else:
            changes |= smaller(name, cast("object", value), heads, few)
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
    if OF_LAYERS in fields:
        own = {int(layer): given for layer, given in fields[OF_LAYERS].items()}
        config.per_layer_config = {
            n: {name: smaller(name, each, heads, few).get(name, each) for name, each in own[layer].items()}
            for n, layer in enumerate(keep)
            if layer in own
        }
    # What hears and sees beside the text (Phi-4 multimodal) is in no text.
    for beside in (each for each in cast("dict[str, Any]", vars(config)).values() if hasattr(each, "to_dict")):
        for name, value in BESIDE.items():
            if hasattr(beside, name):
                setattr(beside, name, value)
    return config


def smaller(name: str, value: object, heads: int, few: Sequence[str]) -> dict[str, object]:
    """Return what one field of a config is in a twin, by its name; nothing where it stays. heads: of the model."""
    to = small(name)
    if isinstance(value, float) and DROPPED.fullmatch(name):
        return {name: 0.0}
    if isinstance(value, bool) or not isinstance(value, int):
        return {}
    if WINDOWS.fullmatch(name) or name in few:
        return {name: min(value, WINDOW)}
    if name == BOTH_SIDES:
        return {name: min(value, 2 * WINDOW)}
    if to is not None:
        # ZAYA runs with one expert for a token alone.
        return {name: min(value, to) if name.startswith("num_experts_per") else to if value else 0}
    if TOKENS.fullmatch(name):
        return {name: min(value, 0)}
    if name in GROUPS:
        return {name: 1 if value == 1 else 4 if value == heads else 2}
    return {}


def shared_in(fields: dict[str, Any]) -> int:
    """Return how many layers, the last ones, use keys of layers before them (Gemma 3n, Gemma 4)."""
    return fields.get("num_kv_shared_layers") or 0


def layers_kept(kinds: Sequence[object], shared: int = 0) -> list[int]:
    """Return which layers a twin has: the first ones until there is one of every kind, of the last `shared` as well."""
    first = len(kinds) - shared
    parts = [kinds[:first], kinds[first:]]
    kept = [next((n for n in range(len(part) + 1) if set(part[:n]) == set(part)), 0) for part in parts]
    return [*range(kept[0]), *range(first, first + kept[1])]


def idle_once(keep: Sequence[int], kinds: Sequence[Any]) -> list[int]:
    """Return the same layers, of those that do not attend one of each kind: they are slow, and it says nothing of them.

    kinds: what each layer is, its scheme first, None where it does not attend.
    """
    return [
        layer for n, layer in enumerate(keep) if kinds[layer][0] or kinds[layer] not in [kinds[k] for k in keep[:n]]
    ]


def twin_of(kind: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    """Build a model by its config in float32, in evaluation; the random state is left as it was."""
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config.dtype = torch.float32
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with undrawn(), Empty():
            torch.manual_seed(0)
            model = kind(config).float().eval()
    finally:
        torch.set_default_dtype(default)
    demand_small(sum(each.numel() for each in model.parameters()))
    return model


class Empty(TorchFunctionMode):
    """Let matrices begin with zeros: `draw` fills them, and a class draws longer than a twin runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict[int, int]()
        """Of the matrices that were begun, by where they are: a class that is too large is left while it is built."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = kwargs.get("tensor", args[0] if args else None)
        if getattr(func, "__name__", "") in DRAWN and isinstance(given, torch.Tensor) and given.dim() > 1:
            self.counts[given.data_ptr()] = given.numel()
            demand_small(sum(self.counts.values()))
            return given.detach().zero_()
        return func(*args, **kwargs)


def demand_small(count: int) -> None:
    """Refuse a twin with more weights than one may have."""
    if count > MOST:
        raise ValueError(
            f"a small model of its class has more than {MOST // 10**6} million weights: sizes in its config have names "
            f"that are not known"
        )


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
