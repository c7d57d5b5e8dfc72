"""The attention function that is registered: raw queries and keys go to `attend`, under the scheme of their layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from milepost.attend import attend
from milepost.call.options import Options
from milepost.hf.slots import read, slots
from milepost.methods.deepseek_scale import DeepseekScale
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.scheme import Scheme
from milepost.seams.verbs import answers

NAME = "milepost"
"""What the two functions are called in transformers' registries, and where a layer keeps its scheme."""


@dataclass(frozen=True)
class Layer:
    """What the attention of one layer is given."""

    scheme: Scheme
    scale: float
    """The softmax scale that the model's own scheme has; where the module says another, the ratio is kept."""
    still: int = 0
    """How many channels without position stand before those that turn (DeepSeek); a scheme has them after."""


class Sinks:
    """The logits of attending to nothing that a module of gpt-oss has: its own weights, wherever they are moved."""

    relative = True

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def rest(self) -> Tensor:
        return self.module.sinks  # pyright: ignore

    def __repr__(self) -> str:
        return "Sinks(of its layer)"


def bound(scheme: Scheme, module: nn.Module) -> Scheme:
    """The scheme with the module's own sinks in place of new ones, and channels where the module leaves them."""
    if getattr(getattr(module, "config", None), "rope_interleave", False):
        # DeepSeek's turn brings neighbouring channels half a head apart, whatever the angle.
        scheme = Scheme(*(halved(part) for part in scheme.parts))
    if not scheme.answering("rest"):
        return scheme
    return Scheme(*(Sinks(module) if isinstance(part, nn.Module) and answers(part, "rest") else part
                    for part in scheme.parts))  # fmt: skip


def halved(part: Any) -> Any:
    """A rotation of neighbours as one of halves; anything else as it is."""
    if isinstance(part, Partial):
        return replace(part, method=halved(part.method))
    return replace(part, pairs="halves") if isinstance(part, Rope) else part


def layer_for(scheme: Scheme, own: Scheme, module: Any, width: int) -> Layer:
    """What the attention of a module is given; what DeepSeek folds into its scale is in the own scheme already."""
    folded = [part for part in own.parts if isinstance(part, DeepseekScale)]
    scale = own.scale(width)
    for part in folded:
        scale *= float(part.sharpen(torch.zeros(1, 1), torch.ones(1, 1)))
    return Layer(bound(scheme, module), scale, getattr(module, "qk_nope_head_dim", 0))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """query: [b h t d], key: [b g s d], value: [b g s dv], raw. Returns [b t h dv], and no weights.

    Caps, windows and sinks that the module passes on as well (`softcap`, `sliding_window`, `s_aux`) are in the scheme.
    """
    layer: Layer | None = module.__dict__.get(NAME)
    if layer is None:
        raise RuntimeError(
            f"milepost: {type(module).__name__} is asked to attend by {NAME!r}, but its model was not extended; "
            f"use milepost.hf.extend(model, …), or model.set_attn_implementation('sdpa')"
        )
    refuse(others)
    if scaling is not None and scaling != layer.scale:
        query = query * (scaling / layer.scale)
    if layer.still:
        query, key = (torch.cat((x[..., layer.still :], x[..., : layer.still]), -1) for x in (query, key))
    where = read(attention_mask, query.shape[2], key.shape[2])
    return attended(layer.scheme, query, key, value, where, dropout), None


def attended(scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, where: Options, dropout: float) -> Tensor:
    """Attention over raw queries and keys, heads last but one: [b t h dv]."""
    where["dropout"] = dropout
    return attend(q, k, v, scheme, **where).transpose(1, 2).contiguous()


def refuse(others: dict[str, Any]) -> None:
    """Say what `attend` cannot do, rather than leave it out."""
    if others.get("output_attentions"):
        raise ValueError(
            "milepost: output_attentions=True asks for attention weights, which attend does not make; leave it out"
        )
    if others.get("position_bias") is not None:
        raise ValueError("milepost: this model adds a position_bias of its own, which an extended model does not read")
    if others.get("cache") is not None:
        raise ValueError("milepost: paged caches (continuous batching) are not read; generate with a dynamic cache")


def register() -> None:
    """Give transformers' two registries one name each."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, slots)
