"""Where attention goes: its share on the first tokens (the sinks), and how many keys it is spread over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.configs.source import text_of
from milepost.hf.config.source import first_line
from milepost.hf.measuring.judged import AsItWas, Row
from milepost.hf.model.attention import adds_slopes_twice
from milepost.hf.model.extension import as_it_was
from milepost.hf.model.models import device_of

GIVES_WEIGHTS = "eager"
SWITCHED = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Implementations that compute what eager does, so that the model may be asked with eager instead."""


@dataclass(frozen=True)
class Mass:
    """Means over the last quarter of the queries, one for each layer: the share of the first tokens, and nats."""

    length: int
    sinks: int
    mass: tuple[float, ...]
    entropy: tuple[float, ...]


def attention_mass(row: Row, ids: Tensor, sinks: int) -> Mass | str:
    """What a model attends to in texts ids [b t], or why that cannot be seen. The model is left as it was."""
    if isinstance(row.model, AsItWas):
        with as_it_was(row.model.model) as plain:
            return attention_mass(replace(row, model=plain), ids, sinks)
    model = row.model
    if not isinstance(model, nn.Module) or getattr(model, "config", None) is None:
        return "a function returns logits alone"
    if row.trivial:
        return "the same as stock, within its window"
    own: Any = model
    before = str(getattr(text_of(own.config) or own.config, "_attn_implementation", "") or GIVES_WEIGHTS)
    if before not in (GIVES_WEIGHTS, *SWITCHED):
        return f"its attention is {before!r}, which forms no matrix of weights; only eager attention does"
    if adds_slopes_twice(text_of(own.config) or own.config):
        return "only eager attention gives weights, and transformers' eager Falcon adds ALiBi's slopes twice"
    try:
        if before != GIVES_WEIGHTS:
            own.set_attn_implementation(GIVES_WEIGHTS)
        with torch.no_grad():
            out = own(input_ids=ids.to(device_of(model)), output_attentions=True, use_cache=False)
        weights = cast("tuple[Tensor | None, ...] | None", getattr(out, "attentions", None))
    except (ValueError, NotImplementedError) as error:
        return f"the model gives no attention weights: {first_line(error)}"
    finally:
        if before != GIVES_WEIGHTS:
            own.set_attn_implementation(before)
    formed = [each for each in weights or () if each is not None and each.dim() == 4]
    if not formed or len(formed) != len(weights or ()):
        return "the model gives no attention weights, though it was asked for them"
    late = [each[:, :, -max(1, ids.shape[1] // 4) :].float() for each in formed]
    mass = tuple(float(each[..., :sinks].sum(-1).mean()) for each in late)
    nats = tuple(float(-(each * each.clamp(min=1e-30).log()).sum(-1).mean()) for each in late)
    return Mass(ids.shape[1], sinks, mass, nats)
