"""What transformers itself computes from a config: the turned queries and keys, the masks and the scales."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.masking_utils import create_masks_for_generate

Plain = dict[str, Any]


def config_of(plain: Plain) -> Any:
    """The config object, that of the text where there are several."""
    return AutoConfig.for_model(**copy.deepcopy(plain)).get_text_config()


def modeling(config: Any) -> Any:
    return importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))


def kind_of(config: Any, layer: int) -> str | None:
    """The layer type, where the rotation goes by it."""
    nested = any(isinstance(each, dict) for each in (getattr(config, "rope_parameters", None) or {}).values())
    return config.layer_types[layer] if nested else None


def embedding(config: Any) -> Any:
    """The module that makes cosines and sines."""
    module = modeling(config)
    made = [
        each
        for name, each in vars(module).items()
        if name.endswith("RotaryEmbedding") and "Vision" not in name and each.__module__ == module.__name__
    ]
    return made[0](config)


def turned(config: Any, q: Tensor, k: Tensor, position: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
    """Queries and keys [b h t d] as transformers turns them, at positions [t]; the channels that turn stand first."""
    module, kind = modeling(config), kind_of(config, layer)
    if hasattr(module, "create_sinusoidal_positions"):
        return tuple(_by_table(module, x, position, config.rotary_dim) for x in (q, k))
    if config.model_type == "roformer":
        table = module.RoFormerSinusoidalPositionalEmbedding(int(position.max()) + 1, q.shape[-1])
        table.weight.data = table.create_weight()
        at = table.weight[position][None, None]
        return module.RoFormerSelfAttention.apply_rotary_position_embeddings(at, q, k)
    made = embedding(config)
    dim = 2 * (made.inv_freq if kind is None else getattr(made, f"{kind}_inv_freq")).numel()
    ids = position[None] if not hasattr(made, "mrope_section") else position[None, None].expand(3, 1, -1)
    table = made(q, ids) if kind is None else made(q, ids, kind)
    parts = [x[..., :dim] for x in (q, k)]
    if hasattr(module, "apply_rotary_emb") and "cis" in str(inspect.signature(module.apply_rotary_emb)):
        back = config.model_type == "llama4_text"
        parts = [x.transpose(1, 2) for x in parts] if back else parts
        parts = module.apply_rotary_emb(*parts, table)
        parts = [x.transpose(1, 2) for x in parts] if back else parts
    elif getattr(config, "rope_interleave", False):
        parts = module.apply_rotary_pos_emb_interleave(*parts, *table)
    else:
        parts = module.apply_rotary_pos_emb(*parts, *table)
    return tuple(torch.cat((part, x[..., dim:]), -1) for part, x in zip(parts, (q, k), strict=True))


def _by_table(module: Any, x: Tensor, position: Tensor, dim: int) -> Tensor:
    sin, cos = module.create_sinusoidal_positions(int(position.max()) + 1, dim)[position][None].chunk(2, -1)
    part = module.apply_rotary_pos_emb(x[..., :dim].transpose(1, 2), sin, cos).transpose(1, 2)
    return torch.cat((part, x[..., dim:]), -1)


def frequencies(config: Any, layer: int = 0, length: int = 1) -> tuple[Tensor, float]:
    """inv_freq and the factor on cos and sin, after a text of this length."""
    made, kind = embedding(config), kind_of(config, layer)
    ids = torch.arange(length)[None]
    ids = ids if not hasattr(made, "mrope_section") else ids[None].expand(3, 1, -1)
    made(torch.zeros(1), ids) if kind is None else made(torch.zeros(1), ids, kind)
    prefix = "" if kind is None else f"{kind}_"
    return getattr(made, f"{prefix}inv_freq").double(), float(getattr(made, f"{prefix}attention_scaling"))


def attention(config: Any, layer: int) -> Any:
    """The attention module of a layer, without memory of its own."""
    module = modeling(config)
    made = [
        each
        for name, each in vars(module).items()
        if name.endswith("Attention") and "Vision" not in name and each.__module__ == module.__name__
    ]
    with torch.device("meta"):
        return made[0](config, layer)


def mask(config: Any, layer: int, length: int) -> Tensor:
    """Which keys each query sees in a layer, [t s]."""
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    made = create_masks_for_generate(config, torch.zeros(1, length, 1), None, None)
    made = made[config.layer_types[layer]] if isinstance(made, dict) else made
    return torch.ones(length, length, dtype=torch.bool) if made is None else made[0, 0] == 0


def rounding(theta: float, factor: float = 1.0, dim: int = 0) -> float:
    """How far float32 takes a frequency from its value, as a ratio.

    Rounding the exponent 2n/d costs ln θ units of 2⁻²⁴, and a handful of operations one each. Where a frequency is
    blended from f and f/factor, an error of the blend weighs up to factor times as much; the ends of YaRN's ramp are
    numbers up to d.
    """
    return 2.0**-24 * (math.log(theta) + 12 + dim) * factor
