"""Stretches, places and what stands beside them: put into each layer, and decoded as a fresh pass computes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import extend
from milepost.hf.model.extension import extension_of
from tests.hf.tiny import continued, padded, tiny, tokens

CLOSE = 1e-5
METHODS: dict[str, tuple[object, ...]] = {
    "dynamic NTK": (mp.DynamicNtk(12),),
    "dynamic linear": (mp.DynamicLinear(12),),
    "dynamic YaRN": (mp.DynamicYarn(12),),
    "LongRoPE": (mp.LongRope((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), trained=12),),
    "YaRN": (mp.Yarn(2, trained=12),),
    "ReRoPE": (mp.Rerope(6),),
    "ReRoPE, pivot": (mp.Pivot(mp.Rerope(6), 12),),
    "leaky ReRoPE": (mp.LeakyRerope(6, 4.0),),
    "self-extend": (mp.SelfExtend(2, 6),),
    "dual chunk": (mp.DualChunk(9, 3),),
    "streaming": (mp.Stream(2, 8),),
    "log-n": (mp.LogN(12),),
    "window and sinks": (mp.causal & (mp.window(8) | mp.sinks(2)),),
    "dynamic NTK, log-n": (mp.DynamicNtk(12), mp.LogN(12)),
    "dynamic YaRN, ReRoPE, log-n by length": (mp.DynamicYarn(12), mp.Rerope(6), mp.LogN(12, count="length")),
    "ReRoPE, pivot by length": (mp.Pivot(mp.Rerope(6), 12, strength=1.0, count="length"),),
    "ReRoPE, diluted": (mp.Dilute(mp.Rerope(6), 12),),
    "ReRoPE, far keys nearer, diluted": (mp.Dilute(mp.Rerope(6, at=2), 12, strength=2.0),),
    "ReRoPE, diluted pivot": (mp.Dilute(mp.Pivot(mp.Rerope(6), 12, strength=0.25), 12, strength=0.5),),
    "ReRoPE, sinks kept": (
        mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(6, at=2), sinks=2), 12, strength=0.25), 12, strength=0.5),
    ),
    "leaky ReRoPE, pivot": (mp.Pivot(mp.LeakyRerope(6, 4.0), 12),),
    "self-extend, pivot": (mp.Pivot(mp.SelfExtend(2, 6), 12),),
    "dual chunk, pivot": (mp.Pivot(mp.DualChunk(9, 3), 12),),
    "streaming, log-n": (mp.Stream(2, 8), mp.LogN(12)),
    "log-n by length": (mp.LogN(12, count="length"),),
    "Llama 4's scale": (mp.Llama4Scale(chunk=4, weight=0.5),),
    "DeepSeek's scale": (mp.DeepseekScale(4.0),),
    "xPos": (mp.Xpos(8, fade=16.0, pairs="halves"),),
    "RoPE on values too": (mp.FusedRope(8),),
    "ALiBi beside RoPE": (mp.Scheme(mp.Rope(8), mp.Alibi(4), mp.causal),),
    "ALiBi by length beside RoPE": (mp.Scheme(mp.Rope(8), mp.Alibi(4, stretch=mp.AlibiDynamicNtk(12)), mp.causal),),
    "ALiBi with an offset": (mp.Scheme(mp.Rope(8), mp.OffsetAlibi(4), mp.causal),),
    "sandwich": (mp.Scheme(mp.Rope(8), mp.Sandwich(4, 8), mp.causal),),
    "Nezha beside RoPE": (mp.Scheme(mp.Rope(8), mp.Nezha(8), mp.causal),),
    "a soft cap": (mp.SoftCap(2.0),),
    "softmax of one": (mp.SoftmaxOne(4),),
    "another scale": (mp.Scale(0.7),),
    "interpolation": (mp.Interpolate(2.0),),
    "NTK": (mp.Ntk(4.0),),
    "NTK-mixed": (mp.NtkMixed(4.0),),
    "by parts": (mp.ByParts(4, 12),),
    "p-RoPE": (mp.Proportional(0.5),),
    "Llama 3": (mp.Llama3(4, 12),),
    "half of the channels": (mp.Partial(mp.Rope(4), of=8),),
}
ELSEWHERE = {
    "AlibiInterpolate": "slopes are stretched in test_replaced", "AlibiNtk": "the same", "T5Bias": "test_t5",
    "Hierarchical": "test_tables", "SinkLogit": "gpt-oss in test_architectures",
    "AxialRope": "reads more than one position a token", "TwoPartRope": "the same",
    "SplitAlibi": "half of its heads see ahead", "Nope": "does nothing", "Pose": "a sampler", "Randomized": "a sampler",
}  # fmt: skip
"""Methods without weights that no decoder with a rotation is given, and where they are tried or why not."""


def classes(part: object) -> set[str]:
    """What a part is made of."""
    inner = (getattr(part, name, None) for name in ("method", "stretch"))
    return {type(part).__name__}.union(
        *(classes(each) for each in (*inner, *getattr(part, "parts", ())) if each is not None)
    )


def test_every_method_that_a_model_can_be_given_is_decoded():
    tried = set().union(*(classes(part) for given in METHODS.values() for part in given))
    without_weights = {
        each.name for each in mp.methods()
        if not issubclass(getattr(mp, each.name), torch.nn.Module) and "embed" not in each.verbs
    }  # fmt: skip
    assert without_weights - tried - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) & tried == set()


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def fresh(model: object, text: Tensor) -> Tensor:
    """The logits after a text, from one pass without a cache."""
    return model(text[None], use_cache=False).logits[0, -1]  # type: ignore[operator]


@pytest.mark.sample(36)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", METHODS)
def test_decoding_equals_a_fresh_pass(name: str, cache: str):
    # In a deeper model keys of the second layer were made when the text was shorter, whatever is done with them.
    by_length = any(getattr(part, "by_length", False) for part in METHODS[name])
    model = tiny("llama", num_hidden_layers=1 if by_length else 2, max_position_embeddings=12)
    stock = model(tokens()).logits
    extend(model, *METHODS[name])
    assert (model(tokens()).logits - stock).abs().max() > 1e-3, "the method did nothing"
    texts, mask = padded(t=14)
    said, logits = continued(model, texts, mask, cache_implementation=cache)
    for row, pad in ((0, 5), (1, 0)):
        for step in range(said.shape[1]):
            text = torch.cat((texts[row, pad:], said[row, :step]))
            assert (fresh(model, text) - logits[step, row]).abs().max() < CLOSE, (row, step)


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_oss", "smollm3", "qwen3"])
@pytest.mark.parametrize("name", ["log-n", "ReRoPE, pivot", "window and sinks"])
def test_decoding_equals_a_fresh_pass_where_layers_differ(name: str, model_type: str):
    model = extend(tiny(model_type, max_position_embeddings=12), *METHODS[name])
    texts, mask = padded(t=14)
    for cache in ("dynamic", "static"):
        said, logits = continued(model, texts, mask, n=3, cache_implementation=cache)
        for row, pad in ((0, 5), (1, 0)):
            text = torch.cat((texts[row, pad:], said[row, :2]))
            assert (fresh(model, text) - logits[2, row]).abs().max() < CLOSE


def test_a_stretch_goes_into_the_rotation_and_takes_the_rotary_path():
    model = extend(tiny("llama"), mp.Yarn(4, trained=64))
    done = extension_of(model)
    assert done is not None
    assert done.through == "rotary"
    assert model.config._attn_implementation == "sdpa"
    assert done.schedule[0].parts == (mp.Rope(8, stretch=mp.Yarn(4, trained=64)), mp.causal)
    scheme = done.schedule[0]
    one = model(tokens()).logits
    extend(model, scheme, through="attend")
    assert (model(tokens()).logits - one).abs().max() < CLOSE


@pytest.mark.sample(10)
@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_neox", "gpt_oss", "smollm3", "cohere2"])
@pytest.mark.parametrize("stretch", [mp.Yarn(4, trained=64), mp.Interpolate(2.0), mp.Ntk(4.0), mp.Llama3(4, 64)])
def test_both_ways_agree_on_every_static_stretch(model_type: str, stretch: object):
    model = extend(tiny(model_type), stretch, through="rotary")
    one = model(tokens()).logits
    extend(model, stretch, through="attend")
    assert (model(tokens()).logits - one).abs().max() < CLOSE


def test_deepseek_keeps_its_temperature_once():
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    weighed = yarn | {"mscale": 1.0, "mscale_all_dim": 0.7}
    model = tiny("deepseek_v3", rope_parameters=weighed)
    stock = model(tokens()).logits
    for through in ("rotary", "attend"):
        extend(model, through=through)
        assert (model(tokens()).logits - stock).abs().max() < CLOSE, through
    assert model.config.rope_parameters == weighed
    extend(model, mp.Rerope(8))
    said, logits = continued(model, *padded(t=14), n=3)
    fresh = model(torch.cat((padded(t=14)[0][1], said[1, :2]))[None], use_cache=False).logits[0, -1]
    assert (fresh - logits[2, 1]).abs().max() < CLOSE


def test_a_row_of_the_lab_is_sized_for_the_model():
    model = extend(tiny("llama"), "rerope, pivot")
    assert extension_of(model).schedule[0].parts == (mp.Rope(8), mp.causal, mp.Pivot(mp.Rerope(32), 64))
    extend(model, "YaRN", to=256)
    assert extension_of(model).schedule[0].parts == (mp.Rope(8, stretch=mp.Yarn(4.0, 64)), mp.causal)
    extend(model, "Rerope(16) + LogN(trained)")
    assert extension_of(model).schedule[0].parts == (mp.Rope(8), mp.causal, mp.Rerope(16), mp.LogN(64))
    extend(model, "ReRoPE, sinks kept")
    kept = mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(48, at=16)), 64, strength=0.5), 64, strength=0.25)
    assert extension_of(model).schedule[0].parts == (mp.Rope(8), mp.causal, kept)


def test_layers_without_positions_get_no_place_and_no_stretch():
    model = extend(tiny("smollm3"), mp.DynamicNtk(64), mp.Rerope(16), mp.LogN(64))
    turned, still = extension_of(model).schedule
    assert turned.parts == (
        mp.Rope(8, theta=2000000.0, stretch=mp.DynamicNtk(64)),
        mp.causal,
        mp.Rerope(16),
        mp.LogN(64),
    )
    assert still.parts == (mp.Nope(), mp.causal, mp.LogN(64))


def test_a_window_is_seen_only_where_the_layer_sees_it():
    model = extend(tiny("gemma2"), mp.causal & (mp.window(4) | mp.sinks(2)))
    local, whole = extension_of(model).schedule
    assert local.band() is None or local.band().behind <= 8
    assert mp.causal & mp.window(8) in local.parts
    assert whole.band().sinks == 2


def test_a_schedule_is_taken_as_it_is():
    model = tiny("gemma3_text")
    schedule = mp.Schedule.of(model.config)
    stock = model(tokens()).logits
    extend(model, schedule)
    assert (model(tokens()).logits - stock).abs().max() < CLOSE
    assert extension_of(model).schedule is schedule
