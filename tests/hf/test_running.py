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
    model, (texts, mask) = tiny("llama", max_position_embeddings=12), padded(t=14)
    said, logits = continued(model, texts, mask, cache_implementation=kind)
    for through in ("rotary", "attend"):
        ours = continued(extend(model, through=through), texts, mask, cache_implementation=kind)
        assert torch.equal(ours[0], said)
        assert (ours[1] - logits).abs().max() < CLOSE


@torch.no_grad()
def test_a_cache_that_drops_keys_shows_the_others_where_they_stood():
    model, texts = tiny("llama", max_position_embeddings=12), tokens(2, 20)

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


def test_quantised_caches_are_refused_by_name():
    class QuantizedLayer:
        pass

    cache = DynamicCache()
    cache.layers = [QuantizedLayer()]  # type: ignore[list-item]
    model = extend(tiny("llama", max_position_embeddings=12), mp.Rerope(8))
    with pytest.raises(ValueError, match="QuantizedLayer keeps keys in a few bits"):
        model(tokens(), past_key_values=cache)


@torch.no_grad()
def test_an_assistant_changes_nothing():
    model, helper, text = (
        tiny("llama", max_position_embeddings=12),
        tiny("llama", max_position_embeddings=12, seed=3),
        tokens(1, 14),
    )
    options: dict[str, Any] = {"attention_mask": torch.ones_like(text), "max_new_tokens": 8, "do_sample": False}
    stock = model.generate(text, **options)
    for through in ("rotary", "attend"):
        assert torch.equal(extend(model, through=through).generate(text, assistant_model=helper, **options), stock)
    for given in ((), (PIVOT,), (mp.Yarn(4, trained=12),)):
        extend(model, *given, through=None if given else "rotary")
        alone = model.generate(text, **options)
        assert torch.equal(model.generate(text, assistant_model=restore(helper), **options), alone)
        assert torch.equal(model.generate(text, assistant_model=extend(helper, PIVOT), **options), alone)


@torch.no_grad()
def test_guesses_from_the_text_itself_change_nothing():
    model, text = tiny("llama", max_position_embeddings=12), tokens(1, 7).repeat(1, 3)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(text), "max_new_tokens": 8, "do_sample": False}
    stock = model.generate(text, **options)
    for through in ("rotary", "attend"):
        assert torch.equal(extend(model, through=through).generate(text, prompt_lookup_num_tokens=3, **options), stock)
    extend(model, PIVOT)
    alone = model.generate(text, **options)
    assert torch.equal(model.generate(text, prompt_lookup_num_tokens=3, **options), alone)


@torch.no_grad()
def test_a_chat_goes_on_where_it_stopped():
    model, text = extend(tiny("llama", max_position_embeddings=12), PIVOT, mp.LogN(12)), tokens(2, 20)
    cache = DynamicCache(config=model.config)
    parts = [model(text[:, a:b], past_key_values=cache).logits for a, b in ((0, 9), (9, 16), (16, 20))]
    assert (torch.cat(parts, 1) - model(text, use_cache=False).logits).abs().max() < CLOSE


@torch.no_grad()
def test_packed_texts_are_each_their_own():
    model, row = tiny("llama", max_position_embeddings=12), tokens(1, 24)
    position = torch.cat((torch.arange(10), torch.arange(14)))[None]
    stock = model(row, position_ids=position, use_cache=False).logits
    extend(model, through="attend")
    assert (model(row, position_ids=position, use_cache=False).logits - stock).abs().max() < CLOSE
    extend(model, mp.DynamicNtk(12), PIVOT, mp.LogN(12))
    packed = model(row, position_ids=position, use_cache=False).logits
    for part in (slice(0, 10), slice(10, 24)):
        assert (packed[:, part] - model(row[:, part], use_cache=False).logits).abs().max() < CLOSE


def gradients(model: Any, texts: Tensor | None = None, **options: Any) -> Tensor:
    """The gradient of the loss on some texts, all weights in a row."""
    model.zero_grad()
    texts = tokens() if texts is None else texts
    model(texts, use_cache=False, **({"labels": texts} | options)).loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_oss"])
def test_training_with_and_without_checkpointing_has_the_gradients_of_stock(model_type: str):
    model = tiny(model_type, max_position_embeddings=12).train()
    stock = gradients(model)
    extend(model, through="attend")
    assert (gradients(model) - stock).abs().max() < CLOSE
    model.gradient_checkpointing_enable()
    assert (gradients(model) - stock).abs().max() < CLOSE
    extend(model, PIVOT)
    kept = gradients(model)
    model.gradient_checkpointing_disable()
    assert (gradients(model) - kept).abs().max() < CLOSE


@pytest.mark.parametrize("through", ["rotary", "attend"])
def test_training_on_packed_texts_has_the_gradients_of_stock(through: str):
    # What transformers' DataCollatorWithFlattening makes of three texts: one row, positions that start over, and no
    # label for the first token of each.
    position = torch.cat([torch.arange(n) for n in (7, 12, 5)])[None]
    row, first = tokens(1, 24), position == 0
    packed = {"position_ids": position, "labels": row.masked_fill(first, -100)}
    model = tiny("llama", max_position_embeddings=12).train()
    stock = gradients(model, row, **packed)
    assert (gradients(model, row, labels=packed["labels"]) - stock).abs().max() > 1e-3, "packing makes no difference"
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable()
        extend(model, through=through)
        assert (gradients(model, row, **packed) - stock).abs().max() < CLOSE


def test_training_on_packed_texts_under_a_method_is_training_on_each():
    model = extend(tiny("llama", max_position_embeddings=12), PIVOT, mp.LogN(12)).train()
    row, sizes = tokens(1, 24), (7, 12, 5)
    position = torch.cat([torch.arange(n) for n in sizes])[None]
    labels = row.masked_fill(position == 0, -100)
    packed = gradients(model, row, position_ids=position, labels=labels)
    alone = [gradients(model, each, labels=each) * (each.shape[1] - 1) for each in row.split(sizes, 1)]
    # The loss is the mean over the tokens that have a label, all but the first of each text.
    assert (packed - sum(alone) / (24 - 3)).abs().max() < CLOSE


@pytest.mark.slow
@torch.no_grad()
def test_generation_compiles_into_one_graph():
    model, (texts, mask) = tiny("llama", max_position_embeddings=12, num_hidden_layers=1), padded(t=14)
    options: dict[str, Any] = {"cache_implementation": "static", "n": 3}
    eager = continued(extend(model, PIVOT, through="attend"), texts, mask, **options)
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    compiled = continued(model, texts, mask, **options)
    assert torch.equal(compiled[0], eager[0])
    assert (compiled[1] - eager[1]).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["falcon", "gptj"])
def test_texts_of_any_length_run_in_one_graph(name: str):
    model = extend(tiny(name), mp.LogN(64))
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for n in (12, 9):
        text, mask = tokens(2, n), torch.ones(2, n, dtype=torch.long)
        mask[0, :3] = 0
        for given in ({}, {"attention_mask": mask}):
            real = mask.bool() if given else slice(None)
            wanted = model(text, use_cache=False, **given).logits[real]
            assert (compiled(text, use_cache=False, **given).logits[real] - wanted).abs().max() < CLOSE
