"""Whether the weights of a model are there, and are those that its config describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from milepost.hf.model.models import Layers, as_built, attentions_in
from milepost.hf.model.settings import without


def demand_loaded(layers: Layers) -> None:
    """Refuse attention whose weights are on the meta device, unless accelerate brings them when they are needed."""
    if any("_hf_hook" in vars(each) for each in layers.backbone.modules()):
        return
    empty = [
        str(module.layer_idx)
        for module in layers.attentions
        if any(each.device.type == "meta" for each in module.parameters())
    ]
    if empty:
        raise ValueError(
            f"extend: the attention of layer {', '.join(empty)} of this {layers.model_type} model is on the meta "
            f"device, without weights and without the hooks of accelerate that would load them; load the whole model "
            f"first, or give from_pretrained a device_map"
        )


def demand_heads(layers: Layers) -> None:
    """Refuse projections of other sizes than the config says: heads are counted, and the config is saved, by it."""
    built = attentions_in(as_built(layers.backbone, without(layers.config)))
    for module, its in zip(layers.attentions, built, strict=True):
        has = dict(sizes(module))
        for name, says in sizes(its):
            if has.get(name, says) != says:
                raise ValueError(
                    f"extend: {name} of {type(module).__name__} {module.layer_idx} is {has[name][0]} → {has[name][1]}, "
                    f"and by its config, with {said(layers.config)}, it would be {says[0]} → {says[1]}; correct "
                    f"model.config, which heads are counted by"
                )


def sizes(module: nn.Module) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield how many channels each projection reads and writes; those of quantised ones are not in their weights."""
    for name, child in module.named_children():
        found = tuple(getattr(child, each, None) for each in ("in_features", "out_features"))
        if all(type(each) is int for each in found):
            yield name, cast("tuple[int, int]", found)


def said(config: Any) -> str:
    """What a config says of its heads."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
    return ", ".join(f"{name} {each}" for name in names if (each := getattr(config, name, None)) is not None)
