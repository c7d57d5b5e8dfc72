"""Extended with its own plain scheme, a model answers what stock transformers answers, along both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from milepost.hf import extend, restore
from milepost.hf.model import attention
from milepost.hf.model.models import KNOWN
from milepost.hf.model.rotary import Turned
from tests.hf.tiny import continued, padded, tiny, tokens

CLOSE = 1e-5
NAMED = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3", "gpt_neox", "smollm3", "gemma2", "gemma3_text", "olmo2",
    "gpt_oss", "deepseek_v3",
)  # fmt: skip
"""The architectures that are tried in every way; the others in one pass."""
WAYS = ("rotary", "attend")


class Counted:
    """Counts the calls of attend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, inner = 0, attention.attend

        def attend(*args: Any, **options: Any) -> Tensor:
            self.calls += 1
            return inner(*args, **options)

        monkeypatch.setattr(attention, "attend", attend)


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() < CLOSE)


@pytest.mark.parametrize("model_type", sorted(KNOWN))
def test_one_pass_is_stock_along_both_ways(model_type: str, monkeypatch: pytest.MonkeyPatch):
    model, counted = tiny(model_type), Counted(monkeypatch)
    texts, mask = padded()
    whole, with_padding = model(tokens()).logits, model(texts, attention_mask=mask).logits[mask.bool()]
    for way in WAYS:
        extend(model, through=way)
        before = counted.calls
        assert near(model(tokens()).logits, whole), way
        assert near(model(texts, attention_mask=mask).logits[mask.bool()], with_padding), way
        assert counted.calls - before == (4 if way == "attend" else 0), "two passes through two layers"
    restore(model)
    assert torch.equal(model(tokens()).logits, whole)


def test_a_scale_that_a_module_was_given_is_kept():
    model = tiny("llama")
    model.model.layers[0].self_attn.scaling *= 1.7
    stock = model(tokens()).logits
    assert near(extend(model, through="attend")(tokens()).logits, stock)


@pytest.mark.parametrize("model_type", NAMED)
def test_the_hook_without_turning_is_something_else(model_type: str):
    model = tiny(model_type)
    stock = model(tokens()).logits
    extend(model, through="rotary")
    for module in model.modules():
        if isinstance(module, Turned):
            module.turns = dict.fromkeys(module.turns)
    assert (model(tokens()).logits - stock).abs().max() > 0.01


@pytest.mark.sample(13)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("model_type", NAMED)
def test_greedy_and_beams_go_on_as_stock_does(model_type: str, cache: str, monkeypatch: pytest.MonkeyPatch):
    model, counted = tiny(model_type), Counted(monkeypatch)
    texts, mask = padded(t=14)
    ways: list[dict[str, Any]] = [{}, {"num_beams": 3}]
    stock = [continued(model, texts, mask, cache_implementation=cache, **way) for way in ways]
    for through in WAYS:
        extend(model, through=through)
        before = counted.calls
        for way, (said, logits) in zip(ways, stock, strict=True):
            ours = continued(model, texts, mask, cache_implementation=cache, **way)
            assert torch.equal(ours[0], said), (through, way)
            assert near(ours[1], logits), (through, way)
        # Six steps, greedily and with beams, through two layers.
        assert counted.calls - before == (24 if through == "attend" else 0)
