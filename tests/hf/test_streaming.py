"""Endless generation: a cache of constant size, whose keys are turned by the place they have in it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import StreamingCache, extend, restore
from tests.hf.tiny import continued, padded, tiny, tokens

SINKS, WINDOW = 3, 9
STREAM = mp.Stream(SINKS, WINDOW)
CLOSE = 1e-5


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def turned(x: Tensor, position: int) -> Tensor:
    """x: [h d] of one token, each channel n with n + d/2, by position · 10000^(−2n/d)."""
    half = x.shape[-1] // 2
    angle = position * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:, :half], x[:, half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def in_the_paper(model: Any, text: Tensor, window: int = WINDOW, sinks: int = SINKS) -> Tensor:
    """The logits of one text, token by token, by the paper's rule: drop what is neither first nor last, keep the raw
    keys of the others, turn them by 0 … n − 1 and the query by n − 1."""
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in model.model.layers]
    found: list[Tensor] = []
    for token in text:
        x = model.model.embed_tokens(token)
        for layer, cache in zip(model.model.layers, kept, strict=True):
            own, y = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (each(y).view(-1, own.head_dim) for each in (own.q_proj, own.k_proj, own.v_proj))
            cache.append((k, v))
            if len(cache) > sinks + window:
                del cache[sinks]
            n, each = len(cache), len(q) // len(k)
            heads: list[Tensor] = []
            for h, query in enumerate(turned(q, n - 1)):
                g = h // each
                scores = torch.stack([query @ turned(key, p)[g] for p, (key, _) in enumerate(cache)])
                weights = torch.softmax(scores / own.head_dim**0.5, 0)
                heads.append(sum((weights[p] * value[g] for p, (_, value) in enumerate(cache)), torch.zeros(())))
            x = x + own.o_proj(torch.cat(heads))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        found.append(model.lm_head(model.model.norm(x)))
    return torch.stack(found)


def in_blocks(model: Any, text: Tensor, cache: Any, sizes: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
    """The logits of a text that comes in blocks; the last size goes on to the end."""
    found, start = list[Tensor](), 0
    for size in (*sizes, *[sizes[-1]] * text.shape[1]):
        stop = min(start + size, text.shape[1])
        if stop > start:
            given = {} if mask is None else {"attention_mask": mask[:, :stop]}
            found.append(model(text[:, start:stop], past_key_values=cache, **given).logits)
        start = stop
    return torch.cat(found, 1)


@pytest.mark.parametrize("sizes", [(1,), (5, 1), (20, 1), (7, 11, 2, 1, 6)], ids=str)
def test_every_step_is_the_papers_loop(sizes: tuple[int, ...]):
    model, text = tiny("llama").double(), tokens(2, 40)
    stock = model(text).logits
    ours = in_blocks(extend(model, STREAM), text, StreamingCache(SINKS, WINDOW), sizes)
    restore(model)
    for row in range(2):
        assert (ours[row] - in_the_paper(model, text[row])).abs().max() < 1e-12
    before = SINKS + WINDOW
    # transformers turns by angles of float32.
    assert (ours[:, :before] - stock[:, :before]).abs().max() < 1e-5
    assert (ours[:, before:] - stock[:, before:]).abs().max() > 0.01


@pytest.mark.parametrize("sizes", [(1,), (8, 1), (3, 5)], ids=str)
def test_rows_padded_on_the_left_are_what_they_are_alone(sizes: tuple[int, ...]):
    model, (text, mask) = extend(tiny("llama").double(), STREAM), padded(2, 40)
    ours = in_blocks(model, text, StreamingCache(SINKS, WINDOW), sizes, mask)
    alone = in_blocks(model, text[:1, 5:], StreamingCache(SINKS, WINDOW), (1,))
    assert (ours[:1, 5:] - alone).abs().max() < 1e-12
    assert (ours[1:] - in_blocks(model, text[1:], StreamingCache(SINKS, WINDOW), (1,))).abs().max() < 1e-12


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_oss", "gptj", "mistral", "phi3", "smollm3", "qwen3"])
def test_the_cache_changes_nothing_that_its_scheme_says(model_type: str):
    model, text = extend(tiny(model_type, max_position_embeddings=8), STREAM, mp.LogN(8)), tokens(2, 40)
    whole = model(text, use_cache=False).logits
    assert (in_blocks(model, text, StreamingCache(SINKS, WINDOW), (6, 1)) - whole).abs().max() < CLOSE
    (text, mask) = padded(2, 40)
    ours = in_blocks(model, text, StreamingCache(SINKS, WINDOW), (6, 1), mask)[mask.bool()]
    assert (ours - model(text, attention_mask=mask, use_cache=False).logits[mask.bool()]).abs().max() < CLOSE


@pytest.mark.parametrize("evict", ["before", "after"])
def test_when_the_oldest_key_goes_is_a_choice(evict: Any):
    model, text = tiny("llama").double(), tokens(1, 30)
    ours = in_blocks(
        extend(model, mp.Stream(SINKS, WINDOW, evict=evict)), text, StreamingCache(SINKS, WINDOW, evict), (1,)
    )
    restore(model)
    assert (ours[0] - in_the_paper(model, text[0], WINDOW + (evict == "after"))).abs().max() < 1e-12


@pytest.mark.parametrize("way", [{}, {"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2}], ids=str)
def test_generate_runs_far_past_the_trained_length_at_constant_size(way: dict[str, Any]):
    model, (text, mask) = extend(tiny("llama"), STREAM), padded(2, 14)
    cache = StreamingCache(SINKS, WINDOW)
    said, _ = continued(model, text, mask, 70, past_key_values=cache, **way)
    assert said.shape[1] == 70, "the model was trained at 64"
    assert {each.keys.shape[2] for each in cache.layers[:2]} == {SINKS + WINDOW - 1} == {cache.size}
    assert cache.get_seq_length() == 14 + 69
    # A dynamic cache keeps every key and lets the scheme hide them.
    assert torch.equal(said, continued(model, text, mask, 70, **way)[0])


def test_a_chat_goes_on_with_what_was_kept():
    model, text = extend(tiny("llama"), STREAM), tokens(1, 50)
    cache, options = StreamingCache(SINKS, WINDOW), {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    first = model.generate(text[:, :20], past_key_values=cache, attention_mask=torch.ones(1, 20), **options)
    asked = torch.cat((first, text[:, 20:]), 1)
    mask = torch.ones_like(asked)
    answer = model.generate(asked, past_key_values=cache, attention_mask=mask, **options)
    assert torch.equal(answer, model.generate(asked, attention_mask=mask, **options))


def test_a_cache_starts_over_and_a_copy_goes_on_by_itself():
    model, text = extend(tiny("llama"), STREAM), tokens(1, 30)
    cache = StreamingCache(SINKS, WINDOW)
    first = in_blocks(model, text, cache, (4,))
    twin = copy.deepcopy(cache)
    assert torch.equal(
        model(text[:, :2], past_key_values=twin).logits, model(text[:, :2], past_key_values=cache).logits
    )
    cache.reset()
    assert torch.equal(in_blocks(model, text, cache, (4,)), first)


def test_rows_are_chosen_and_repeated_with_their_padding():
    model, (text, mask) = extend(tiny("llama").double(), STREAM), padded(2, 16)
    rest, ones = tokens(2, 6, seed=5), torch.ones(2, 6, dtype=torch.long)
    cache = StreamingCache(SINKS, WINDOW)
    in_blocks(model, text, cache, (16,), mask)
    twin = copy.deepcopy(cache)
    cache.batch_select_indices(torch.tensor([0]))
    chosen = model(rest[:1], past_key_values=cache, attention_mask=torch.cat((mask, ones), 1)[:1]).logits
    twin.batch_repeat_interleave(2)
    rows = torch.tensor([0, 0, 1, 1])
    both = model(rest[rows], past_key_values=twin, attention_mask=torch.cat((mask, ones), 1)[rows]).logits
    assert (both[:2] - chosen).abs().max() < 1e-12
    alone = model(torch.cat((text[:1, 5:], rest[:1]), 1), use_cache=False).logits[:, -6:]
    assert (chosen - alone).abs().max() < 1e-12


def test_what_a_stream_cannot_do_is_refused_by_name():
    text, cache = tokens(1, 20), StreamingCache(SINKS, WINDOW)
    assert repr(cache) == "StreamingCache(3, 9)"
    with pytest.raises(
        ValueError, match=r"this model did not say which tokens they are: first extend\(model, Stream\(3"
    ):
        tiny("llama")(text, past_key_values=cache)
    with pytest.raises(ValueError, match=r"keeps what Stream\(3, 9\) sees, and layer 0 of this model has"):
        extend(tiny("llama"), mp.Rerope(8))(text, past_key_values=cache)
    with pytest.raises(ValueError, match="this one makes its slopes from a mask of all tokens"):
        extend(tiny("bloom"), STREAM)(text, past_key_values=cache)
    model = extend(tiny("llama"), STREAM)
    with pytest.raises(ValueError, match=r"the attention mask is that of padding, \[b, n\]"):
        model(text, past_key_values=cache, attention_mask=torch.ones(1, 1, 20, 20, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"StreamingCache\(3, 9\) cannot take tokens back"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="window must be"):
        StreamingCache(4, 0)
    assert model(text, past_key_values=cache).logits.shape == (1, 20, 48), "nothing of the refused calls was kept"
