"""What people do with a model besides one pass: caches of every kind, chats, packing, training, compiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

import milepost as mp
from milepost.hf import extend, restore
from tests.hf.tiny import continued, padded, tiny, tokens

CLOSE = 1e-5
PIVOT = mp.Pivot(mp.Rerope(6), 12)


@pytest.mark.parametrize("kind", ["sliding_window", "hybrid"])
@torch.no_grad()
def test_other_caches_of_generate_go_on_as_stock_does(kind: str):
    model, (texts, mask) = tiny("llama"), padded(t=14)
    said, logits = continued(model, texts, mask, cache_implementation=kind)
    for through in ("rotary", "attend"):
        ours = continued(extend(model, through=through), texts, mask, cache_implementation=kind)
        assert torch.equal(ours[0], said)
        assert (ours[1] - logits).abs().max() < CLOSE


@torch.no_grad()
def test_a_cache_that_drops_keys_shows_the_others_where_they_stood():
    model, texts = tiny("llama"), tokens(2, 20)

    def steps() -> Tensor:
        cache = DynamicCache()
        cache.layers = [DynamicSlidingWindowLayer(sliding_window=6) for _ in range(2)]
        blocks = [(0, 9), *((n, n + 1) for n in range(9, 20))]
        return torch.cat([model(texts[:, a:b], past_key_values=cache).logits for a, b in blocks], 1)

    stock = steps()
    extend(model, through="attend")
    assert (steps() - stock).abs().max() < CLOSE
    extend(model, mp.causal & (mp.window(6) | mp.sinks(2)))
    extend(model, mp.causal & mp.window(6))
    assert (steps() - model(texts).logits).abs().max() < CLOSE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
@torch.no_grad()
def test_offloaded_caches_go_on_as_stock_does(kind: str):
    model, (texts, mask) = tiny("llama").cuda(), (each.cuda() for each in padded(t=14))
    said, _ = continued(model, texts, mask, cache_implementation=kind)
    assert torch.equal(continued(extend(model, through="attend"), texts, mask, cache_implementation=kind)[0], said)


def test_quantised_caches_are_refused_by_name():
    class QuantizedLayer:
        pass

    cache = DynamicCache()
    cache.layers = [QuantizedLayer()]  # type: ignore[list-item]
    model = extend(tiny("llama"), mp.Rerope(8))
    with pytest.raises(ValueError, match="QuantizedLayer keeps keys in a few bits"):
        model(tokens(), past_key_values=cache)


@torch.no_grad()
def test_an_assistant_changes_nothing():
    model, helper, text = tiny("llama"), tiny("llama", seed=3), tokens(1, 14)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(text), "max_new_tokens": 8, "do_sample": False}
    for given in ((), (PIVOT,)):
        extend(model, *given, through="attend")
        alone = model.generate(text, **options)
        assert torch.equal(model.generate(text, assistant_model=restore(helper), **options), alone)
        assert torch.equal(model.generate(text, assistant_model=extend(helper, PIVOT), **options), alone)


@torch.no_grad()
def test_a_chat_goes_on_where_it_stopped():
    model, text = extend(tiny("llama"), PIVOT, mp.LogN(8)), tokens(2, 20)
    cache = DynamicCache(config=model.config)
    parts = [model(text[:, a:b], past_key_values=cache).logits for a, b in ((0, 9), (9, 16), (16, 20))]
    assert (torch.cat(parts, 1) - model(text, use_cache=False).logits).abs().max() < CLOSE


@torch.no_grad()
def test_packed_texts_are_each_their_own():
    model, row = tiny("llama"), tokens(1, 24)
    position = torch.cat((torch.arange(10), torch.arange(14)))[None]
    stock = model(row, position_ids=position, use_cache=False).logits
    extend(model, through="attend")
    assert (model(row, position_ids=position, use_cache=False).logits - stock).abs().max() < CLOSE
    extend(model, mp.DynamicNtk(8), PIVOT, mp.LogN(8))
    packed = model(row, position_ids=position, use_cache=False).logits
    for part in (slice(0, 10), slice(10, 24)):
        assert (packed[:, part] - model(row[:, part], use_cache=False).logits).abs().max() < CLOSE


def gradients(model: Any, **options: Any) -> Tensor:
    """The gradient of the loss on one text, all weights in a row."""
    model.zero_grad()
    model(tokens(), labels=tokens(), use_cache=False, **options).loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_oss"])
def test_training_with_and_without_checkpointing_has_the_gradients_of_stock(model_type: str):
    model = tiny(model_type).train()
    stock = gradients(model)
    extend(model, through="attend")
    assert (gradients(model) - stock).abs().max() < CLOSE
    model.gradient_checkpointing_enable()
    assert (gradients(model) - stock).abs().max() < CLOSE
    extend(model, PIVOT)
    kept = gradients(model)
    model.gradient_checkpointing_disable()
    assert (gradients(model) - kept).abs().max() < CLOSE


def test_low_rank_weights_are_trained_on_an_extended_model():
    peft = pytest.importorskip("peft")
    model = extend(tiny("llama"), PIVOT)
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    tuned(tokens(), labels=tokens()).loss.backward()
    assert any(weight.grad is not None and weight.grad.abs().max() > 0 for weight in tuned.parameters())


@pytest.mark.slow
@torch.no_grad()
def test_generation_compiles_into_one_graph():
    model, text = extend(tiny("llama"), PIVOT), tokens(1, 14)
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(text), "max_new_tokens": 6, "do_sample": False,
        "cache_implementation": "static", "disable_compile": True,
    }  # fmt: skip
    eager = model.generate(text, **options)
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    assert torch.equal(model.generate(text, **options), eager)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_bfloat16_on_a_gpu_is_as_near_to_float32_as_stock_is():
    model, texts = tiny("llama").cuda(), tokens().cuda()
    exact = model(texts).logits
    model.bfloat16()
    stock = (model(texts).logits.float() - exact).abs().max()
    for through in ("rotary", "attend"):
        assert (extend(model, through=through)(texts).logits.float() - exact).abs().max() < 2 * stock + 1e-3
