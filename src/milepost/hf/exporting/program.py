"""One step of a model as a traced program: any batch, any number of new tokens, and a cache that goes in and out.

    logits, cache  =  step(input_ids [b t], attention_mask [b s + t], cache: keys and values [b g s d] of each layer)

The mask is 1 for every token that counts, those in the cache included; it gives the positions. A text begins with a
cache of no tokens (s = 0). Layers with a window keep all keys here, and their masks hide those behind it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.hf.exporting.source import Source
from milepost.hf.model.extension import extension_of
from milepost.hf.model.models import attentions_in, backbone_of
from milepost.hf.model.positions import Filled

Pairs = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer."""
CLOSE = 1e-4
"""How far the logits of a program may be from the model's, in units of the largest."""
LENGTHS = (7, 1, 5)
"""What a program is tried on before it is written: a text, a token, more of it."""


class Step(nn.Module):
    """A model that takes and returns its cache as tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        done = extension_of(model)
        self.by = None if done is None else f"{done.through} {done.schedule!r}"
        self.placed = done is not None and done.through == "attend"

    def forward(self, input_ids: Tensor, attention_mask: Tensor, cache: Pairs) -> tuple[Tensor, Pairs]:
        """Read some tokens behind those of the cache."""
        from transformers import DynamicCache

        past = cache[0][0].shape[2]
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        kept: Any = DynamicCache()
        for layer, (keys, values) in enumerate(cache):
            kept.update(keys, values, layer)
        if self.by is not None:
            # The marks of a cache that this model filled, which these keys come from.
            filled = kept.__dict__["update"] = Filled(kept, self.by)
            if self.placed:
                filled.keep(positions[:, :past])
        out = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions[:, past:],
            past_key_values=kept, use_cache=True,
        )  # fmt: skip
        layers = out.past_key_values.layers[: len(cache)]
        return out.logits, [(layer.keys, layer.values) for layer in layers]


def inputs_for(model: Any, b: int, t: int, s: int) -> tuple[Tensor, Tensor, Pairs]:
    """Return tokens and a cache of zeros for a model."""
    ids = torch.arange(b * t).reshape(b, t) % min(model.config.vocab_size, 64)
    pairs: Pairs = []
    for module in attentions_in(backbone_of(model)):
        weight = module.k_proj.weight
        width = module.head_dim
        shape = (b, weight.shape[0] // width, s, width)
        pairs.append((torch.zeros(shape, dtype=weight.dtype), torch.zeros(shape, dtype=weight.dtype)))
    return ids, torch.ones(b, s + t, dtype=torch.long), pairs


def traced(step: Step) -> Any:
    """Return the program of a step, by torch.export; b, t and s are free."""
    from torch.export import Dim, export

    ids, mask, cache = inputs_for(step.model, 2, 5, 7)
    free = Dim.DYNAMIC
    shapes: Any = ({0: free, 1: free}, {0: free, 1: free}, [({0: free, 2: free}, {0: free, 2: free})] * len(cache))
    with torch.no_grad(), sizes_of_none_and_one(), experts_in_batches(step.model):
        return export(step, (ids, mask, cache), dynamic_shapes=shapes, strict=False)


@contextmanager
def sizes_of_none_and_one() -> Generator[None]:
    """Let free sizes be 0 and 1 as well: a cache of no tokens, and one token at a time."""
    from torch.fx.experimental import _config

    with cast("Any", _config).patch(backed_size_oblivious=True):
        yield


@contextmanager
def experts_in_batches(model: Any) -> Generator[None]:
    """Run experts as batched products: grouped ones have no form in ONNX, and a loop over experts cannot be traced."""
    if not getattr(model, "_can_set_experts_implementation", lambda: False)():
        yield
        return
    own = model.config._experts_implementation
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(own)


@torch.no_grad()
def demand_same(step: Step, run: Any, called: str) -> float:
    """Refuse a program whose logits are not the model's, by steps with a cache; returns by how much they differ.

    run: takes and returns what a step does. Of two rows one is padded on the left.
    """
    model = step.model
    ids, mask, cache = inputs_for(model, 2, sum(LENGTHS), 0)
    mask[0, :2] = 0
    real = mask.bool()
    wanted = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    worst, at = 0.0, 0
    for n in LENGTHS:
        logits, cache = run(ids[:, at : at + n], mask[:, : at + n], cache)
        apart = (torch.as_tensor(logits) - wanted[:, at : at + n])[real[:, at : at + n]]
        worst, at = max(worst, float(apart.abs().max())), at + n
    largest = max(1.0, float(wanted[real].abs().max()))
    if not worst <= CLOSE * largest:
        raise ValueError(
            f"{called}: the program's logits differ from the model's by {worst:.2g}, of at most {largest:.3g}; nothing "
            f"was written"
        )
    return worst


def demand_exportable(source: Source) -> str | None:
    """Return why a model has no program here, or None."""
    if source.layers.places:
        return f"a {source.model_type} model makes its masks by itself, and its cache has a shape of its own"
    if any(not hasattr(each, "k_proj") or not hasattr(each, "head_dim") for each in source.layers.attentions):
        return f"the layers of a {source.model_type} model have no k_proj, which says how wide its cache is"
    listed = getattr(source.config, "num_hidden_layers", len(source.layers.own))
    if len(source.layers.own) != listed:
        return f"{listed - len(source.layers.own)} of its layers do not attend, and have a state of their own"
    return None
