"""What a small causal model of a served type is asked, extended as it is and under three methods."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import milepost as mp
from milepost.hf.model.extension import by_itself, extended, restore
from milepost.hf.model.models import Layers, own_schedule
from milepost.hf.model.proof import apart, sizes_of
from milepost.hf.model.twin import draw, shrunk, twin_of

COMPILED = frozenset({
    "deepseek_v3", "gemma3_text", "granite_swa", "hunyuan_v1_dense", "lfm2", "llama", "mimo_v2_flash", "nanochat",
})  # fmt: skip
"""The types that are compiled besides: compiling takes longer than everything else together."""
TOKENS, PROMPT, NEW, GAIN = 40, 9, 6, 1.0
TRAINED = 16
"""The trained length of a small model."""
NEAR = mp.causal & (mp.window(24) | mp.sinks(2))


def methods(served: Sequence[str], trained: int) -> dict[str, tuple[object, ...]]:
    """Three methods: for models that can have all, whose cosines alone are changed, or that have no positions."""
    stretch, sharp = mp.Yarn(4, trained=trained, scaled=1.0), mp.LogN(trained=trained)
    if set(served) == {"rotary", "attend"}:
        return {"ReRoPE": (mp.Rerope(12),), "YaRN": (stretch,), "log-n, window, sinks": (sharp, NEAR)}
    if "rotary" in served:
        return {"YaRN": (stretch,), "interpolation": (mp.Interpolate(4.0),), "NTK": (mp.Ntk(4.0),)}
    return {"log-n": (sharp,), "window, sinks": (NEAR,), "log-n, window": (sharp, mp.causal & mp.window(24))}


@torch.no_grad()
def checks(layers: Layers, served: Sequence[str], compiled: bool) -> dict[str, str]:
    """Return what came of each check: how far off, or yes, or what went wrong."""
    try:
        model = causal(layers)
    except Exception as error:
        return {"logits": f"no causal model of it: {type(error).__name__}: {error}"[:120]}
    found: dict[str, str] = {}
    ids = torch.randint(1, 128, (2, TOKENS), generator=torch.Generator().manual_seed(5))
    before, config = {name: each.clone() for name, each in model.state_dict().items()}, model.config.to_dict()
    calls = {"logits": whole, "padded": padded, "packed": packed}
    stock, said = {name: call(model, ids) for name, call in calls.items()}, generated(model, ids)
    off = dict.fromkeys(calls, 0.0)
    same, equal = True, True
    for way in served:
        by_itself(model, way)
        for name, call in calls.items():
            off[name] = max(off[name], attempt(partial(off_by, model, call, ids, stock[name])))
        same = same and attempt(lambda: float(not torch.equal(generated(model, ids), said))) == 0
        if compiled:
            torch._dynamo.reset()
            run = cast("Any", torch.compile(model, backend="aot_eager"))
            ours = attempt(partial(off_by, run, whole, ids, stock["logits"]))
            found["compiled"] = f"{max(ours, float(found.get('compiled', 0))):.1g}"
        restore(model)
        equal = equal and torch.equal(whole(model, ids), stock["logits"])
    found |= {name: f"{each:.1g}" for name, each in off.items()} | {"generated": "yes" if same else "no"}
    given = methods(served, own_schedule(model.config).trained or TRAINED)
    found["methods"] = "; ".join(f"{name}: {method(model, ids, parts)}" for name, parts in given.items())
    now = model.state_dict()
    equal = equal and all(torch.equal(each, now[name]) for name, each in before.items())
    found["restored"] = "yes" if equal and model.config.to_dict() == config else "no"
    return found


def causal(layers: Layers) -> Any:
    """A small causal model of the type."""
    config = shrunk(*sizes_of(layers))
    if hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = TRAINED
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = cast("Any", twin_of(cast("Any", kind), copy.deepcopy(config)))
    draw(model, GAIN)
    model.__dict__.pop("milepost_begun")
    return model


def off_by(model: Any, call: Callable[[Any, Tensor], Tensor], ids: Tensor, stock: Tensor) -> float:
    """How far what a model puts out is from stock."""
    return apart(call(model, ids), stock)


def attempt(run: Callable[[], float]) -> float:
    """Return how far off something is; infinitely where it fails, or has no numbers."""
    try:
        found = run()
    except Exception:
        return math.inf
    return math.inf if math.isnan(found) else found


def method(model: nn.Module, ids: Tensor, parts: Sequence[object]) -> str:
    """Return how far a text by a cache is from the text at once under a method, or why the method is refused."""
    try:
        # The proof was asked before, with the lengths of the type's own config.
        with patch("milepost.hf.model.extension.demand_proof"):
            extended(model, parts)
    except ValueError as error:
        return f"refused, {str(error).split('. ')[0][:120]}"
    try:
        fresh, kept = whole(model, ids), by_steps(model, ids)
        return f"{apart(kept, fresh):.1g}"
    except Exception as error:
        return f"fails, {type(error).__name__}: {error}"[:160]
    finally:
        restore(model)


def whole(model: Any, ids: Tensor) -> Tensor:
    """The logits of a text at once."""
    return model(input_ids=ids, use_cache=False).logits.double()


def padded(model: Any, ids: Tensor) -> Tensor:
    """The logits of texts one of which is padded on the left; those of padding left out."""
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return model(input_ids=ids, attention_mask=mask, use_cache=False).logits.double()[mask.bool()]


def packed(model: Any, ids: Tensor) -> Tensor:
    """The logits of two texts in a row."""
    position = torch.cat((torch.arange(15), torch.arange(ids.shape[1] - 15)))[None].expand(2, -1)
    return model(input_ids=ids, position_ids=position, use_cache=False).logits.double()


def by_steps(model: Any, ids: Tensor) -> Tensor:
    """The logits of a text by a cache, piece by piece."""
    cache, outs, start = DynamicCache(config=model.config), list[Tensor](), 0
    # Jamba forgets its state where several tokens come behind a cache.
    for step in (TOKENS - 8, *[1] * 8):
        end = start + step
        at = torch.arange(start, end)[None].expand(2, -1)
        given = {"input_ids": ids[:, start:end], "position_ids": at, "past_key_values": cache, "use_cache": True}
        outs.append(model(**given).logits.double())
        start = end
    return torch.cat(outs, 1)


def generated(model: Any, ids: Tensor) -> Tensor:
    """What the model goes on with, of two prompts one of which is padded."""
    mask = torch.ones_like(ids[:, :PROMPT])
    mask[0, :3] = 0
    given = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    return model.generate(input_ids=ids[:, :PROMPT], attention_mask=mask, **given)
