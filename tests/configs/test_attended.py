"""Tiny models of many types: what every attention layer of theirs answers, its scheme answers too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from milepost import AxialRope, Nope, Partial, QkNorm, Rope, Scheme, SinkLogit, attend, causal
from milepost.configs.reader import look_up
from milepost.seams.visible import Visible
from tests.configs.attended import Call, attended, tiny
from tests.configs.tiny_models import MODELS, WITH_IMAGES, YARN
from tests.oracles import assert_same

CLOSE = 1e-5
"""Their cosines and softmax are float32."""
FAR = 1e-3
"""What a reading that is wrong in one thing is off by at least."""


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_every_layer_attends_as_transformers_does(model_type: str):
    model = tiny(model_type, **MODELS[model_type])
    calls = attended(model)
    assert calls
    for number, call in enumerate(calls):
        layer = getattr(call.module, "layer_idx", None)
        compare(model.config, number if layer is None else layer, call)


CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3n_text, both ways": ("gemma3n_text", {"is_causal": False}),
    "gemma4_text, both ways": ("gemma4_text", {"use_bidirectional_attention": "all"}),
    "gemma4_text, images both ways": ("gemma4_text", {"use_bidirectional_attention": "vision"}),
    "glm4_moe, both ways": ("glm4_moe", {"is_causal": False}),
    "lfm2, both ways": ("lfm2", {"is_causal": False}),
    "mistral4, both ways": ("mistral4", {"is_causal": False}),
    "esm, a decoder": ("esm", {"is_decoder": True}),
    "esm, a table": ("esm", {"position_embedding_type": "absolute"}),
    "granitemoehybrid, no positions": ("granitemoehybrid", {"position_embedding_type": None}),
    "minimax, a window": ("minimax", {"sliding_window": 5}),
    "qwen3_next, stretched": ("qwen3_next", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}),
    "glm4_moe, stretched": ("glm4_moe", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}),
}


@pytest.mark.parametrize("name", CHANGED)
def test_settings_that_change_a_family(name: str):
    model_type, settings = CHANGED[name]
    model = tiny(model_type, **MODELS[model_type] | settings)
    for number, call in enumerate(attended(model)):
        layer = getattr(call.module, "layer_idx", None)
        for config in (model.config, model.config.to_dict()):
            compare(config, number if layer is None else layer, call)


def test_deepseek_v32_is_dense_up_to_index_topk():
    model = tiny("deepseek_v32", **MODELS["deepseek_v32"] | {"index_topk": 6})
    call = attended(model)[0]
    q, k = (turned_first(x.double(), 8) for x in (call.q, call.k))
    apart = (attend(q, k, call.v.double(), Scheme.of(model.config)) - call.out).abs().amax((0, 1, 3))
    assert apart[:6].max() < CLOSE
    assert apart[6:].max() > FAR


@pytest.mark.parametrize("model_type", WITH_IMAGES)
def test_coordinates_of_images_turn_their_own_pairs(model_type: str):
    model = tiny(model_type, **MODELS[model_type])
    position = torch.randint(12, (3, 2, 14), generator=torch.Generator().manual_seed(3))
    where = position.permute(1, 2, 0)
    for call in attended(model, position_ids=position):
        scheme = Scheme.of(model.config, layer=call.module.layer_idx)
        q, k, v = (x.double() for x in (call.q, call.k, call.v))
        assert_same(attend(q, k, v, scheme, position=where, key_position=where), call.out, CLOSE)
        other = Scheme(*(swapped(part) for part in scheme.parts))
        assert (attend(q, k, v, other, position=where, key_position=where) - call.out).abs().max() > FAR


def swapped(part: Any) -> Any:
    """The same rotation with its sections dealt out the other way."""
    if isinstance(part, Partial):
        return Partial(swapped(part.method), of=part.of)
    if not isinstance(part, AxialRope):
        return part
    return replace(part, order="blocks" if part.order == "interleaved" else "interleaved")


def compare(config: Any, layer: int, call: Call) -> None:
    """Demand what the layer answered, and that every part of its scheme counts."""
    scheme = with_weights(Scheme.of(config, layer=layer), call.module)
    q, k, v = (x.double() for x in (call.q, call.k, call.v))
    if look_up(config, "qk_rope_head_dim"):
        q, k = (turned_first(x, look_up(config, "qk_rope_head_dim")) for x in (q, k))
    if look_up(config, "model_type") == "nanochat":
        # Its second half turns into its first.
        q, k = (turned_first(x, x.shape[-1] // 2) for x in (q, k))
    if look_up(config, "model_type") == "esm":
        # It divides its queries by √d before it turns them.
        q = q * q.shape[-1] ** 0.5
    assert_same(attend(q, k, v, scheme), call.out, CLOSE)
    for other in wrong(scheme, q.shape[-1]):
        assert (attend(q, k, v, other) - call.out).abs().max() > FAR, other


def with_weights(scheme: Scheme, module: Any) -> Scheme:
    """The scheme as attention needs it, with the norms and the sinks of the module."""
    for part in scheme.parts:
        if isinstance(part, SinkLogit):
            part.logit.data.copy_(module.sinks)
        if isinstance(part, QkNorm):
            part.query_weight.data.copy_(module.query_layernorm.weight)
            part.key_weight.data.copy_(module.key_layernorm.weight)
    return scheme.attention


def turned_first(x: torch.Tensor, n: int) -> torch.Tensor:
    """The last n channels, which turn, before the others."""
    return torch.cat((x[..., -n:], x[..., :-n]), -1)


def wrong(scheme: Scheme, width: int) -> Iterator[Scheme]:
    """Schemes that are wrong in one thing: a part left out, another base, another width, a rotation too many."""
    for n, part in enumerate(scheme.parts):
        others = [*scheme.parts[:n], *scheme.parts[n + 1 :]]
        if isinstance(part, Nope):
            yield Scheme(Rope(width), *others)
            continue
        yield Scheme(*others)
        if isinstance(part, Visible) and part != causal and "causal" in repr(part):
            yield Scheme(causal, *others)
        if isinstance(part, (Rope, AxialRope)):
            yield Scheme(replace(part, theta=part.theta * 3), *others)
            yield Scheme(replace(part, pairs="halves" if part.pairs == "neighbours" else "neighbours"), *others)
        if isinstance(part, Partial):
            yield Scheme(Partial(replace(part.method, theta=part.method.theta * 3), of=part.of), *others)
            yield Scheme(Rope(width, theta=part.method.theta, pairs=part.method.pairs), *others)
