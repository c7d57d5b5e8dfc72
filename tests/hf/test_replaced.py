"""Models whose attention is not reached by name: theirs is replaced by ours, with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

import milepost as mp
from milepost.hf import check, extend, load, restore, save
from milepost.hf.measuring.attention_mass import Mass, attention_mass
from milepost.hf.measuring.judged import Row
from milepost.hf.model.attention import Replaced
from milepost.hf.model.extension import extension_of
from milepost.hf.model.models import REPLACED
from tests.hf.test_architectures import CLOSE, Counted, near
from tests.hf.tiny import continued, padded, tiny, tokens, trained_at

FALCONS: dict[str, dict[str, Any]] = {
    "falcon": {},
    "falcon, one key head": {"new_decoder_architecture": False, "multi_query": True},
    "falcon, alibi": {"alibi": True, "new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 4},
    "falcon, alibi, one key head": {"alibi": True, "new_decoder_architecture": False, "multi_query": True},
}
CASES = {name: {} for name in sorted(REPLACED)} | FALCONS


def made(name: str) -> Any:
    return tiny(name.partition(",")[0], **CASES[name])


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", CASES)
def test_one_pass_is_stock(name: str, monkeypatch: pytest.MonkeyPatch):
    model, counted = made(name), Counted(monkeypatch)
    texts, mask = padded()
    names, whole = list(model.state_dict()), model(tokens()).logits
    with_padding = model(texts, attention_mask=mask).logits[mask.bool()]
    extend(model, through="attend")
    assert list(model.state_dict()) == names
    assert near(model(tokens()).logits, whole)
    assert near(model(texts, attention_mask=mask).logits[mask.bool()], with_padding)
    assert counted.calls == 4, "two passes through two layers"
    restore(model)
    assert torch.equal(model(tokens()).logits, whole)
    assert not any(isinstance(each, Replaced) for each in model.modules())


@pytest.mark.parametrize("name", CASES)
def test_greedy_and_beams_go_on_as_stock_does(name: str):
    model, (texts, mask) = made(name), padded(t=14)
    # transformers' own MPT and Falcon with ALiBi size their bias by the text, and fail on a static cache.
    caches = ("dynamic",) if name == "mpt" or "alibi" in name else ("dynamic", "static")
    for cache in caches:
        for beams in (1, 3):
            options: dict[str, Any] = {"cache_implementation": cache, "num_beams": beams}
            said, logits = continued(restore(model), texts, mask, **options)
            ours = continued(extend(model, through="attend"), texts, mask, **options)
            assert torch.equal(ours[0], said), (cache, beams)
            assert near(ours[1], logits), (cache, beams)


@pytest.mark.parametrize("name", CASES)
def test_a_prefix_that_several_prompts_share_is_read_once(name: str):
    model, text = made(name), tokens(1, 20)

    def after(prompt: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return continued(model, prompt, past_key_values=copy.deepcopy(cache), use_cache=True)

    for cache in (DynamicCache(config=model.config), DynamicCache()):
        model(text[:, :12], past_key_values=cache)
        stock = [after(text[:, :n], cache) for n in (13, 16, 20)]
        extend(model, through="attend")
        cache = type(cache)(config=model.config)
        model(text[:, :12], past_key_values=cache)
        for n, (said, logits) in zip((13, 16, 20), stock, strict=True):
            ours = after(text[:, :n], cache)
            assert torch.equal(ours[0], said)
            assert near(ours[1], logits)
            assert near(continued(model, text[:, :n], use_cache=True)[1], logits)
        restore(model)


@pytest.mark.parametrize("name", ["bloom", "llama", "mpt"])
def test_a_prefix_that_is_read_again_at_every_step_is_refused(name: str):
    model, (texts, mask) = extend(tiny(name), through="attend"), padded(t=16)
    cache = model(texts[:, :12], attention_mask=mask[:, :12], use_cache=True).past_key_values
    # The config of an MPT says so by itself.
    options = {} if name == "mpt" else {"use_cache": False}
    for given in (mask, None):
        with pytest.raises(ValueError, match=r"use_cache=False .* a cache of 16 tokens, and 17 more .*use_cache=True"):
            continued(model, texts, given, past_key_values=copy.deepcopy(cache), **options)
    scored = model(texts[:, 12:], attention_mask=mask, past_key_values=copy.deepcopy(cache), use_cache=False).logits
    assert near(scored, model(texts, attention_mask=mask).logits[:, 12:])


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon, alibi", "gptj"])
def test_without_its_positions_a_model_is_something_else(name: str):
    model = made(name)
    stock = model(tokens()).logits
    extend(model, mp.Scheme(mp.Nope(), mp.causal))
    assert (model(tokens()).logits - stock).abs().max() > 0.01


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon, alibi"])
@pytest.mark.parametrize("stretch", [mp.AlibiInterpolate(2.0), mp.AlibiNtk(4.0), mp.AlibiDynamicNtk(12)])
def test_slopes_are_stretched_and_decoded_as_a_fresh_pass(name: str, stretch: Any):
    by_length = getattr(stretch, "by_length", False)
    more = dict.fromkeys(("n_layer", "n_layers", "num_hidden_layers"), 1) if by_length else {}
    model = tiny(name.partition(",")[0], **CASES[name] | more)
    stock = model(tokens()).logits
    extend(trained_at(12, model), stretch)
    assert (model(tokens()).logits - stock).abs().max() > 1e-3
    texts, mask = padded(t=14)
    said, logits = continued(model, texts, mask, n=3)
    for row, pad in ((0, 5), (1, 0)):
        text = torch.cat((texts[row, pad:], said[row, :2]))
        fresh = model(text[None], use_cache=False).logits[0, -1]
        assert (fresh - logits[2, row]).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["falcon", "falcon, one key head", "gptj"])
@pytest.mark.parametrize(
    "given",
    [
        (mp.Pivot(mp.Rerope(6), 12), mp.LogN(12)),
        (mp.DynamicNtk(12),),
        (mp.SelfExtend(2, 6),),
        (mp.Yarn(2, trained=12),),
    ],
    ids=["pivot, log-n", "dynamic NTK", "self-extend", "YaRN"],
)
def test_rotations_are_stretched_and_placed_and_decoded_as_a_fresh_pass(name: str, given: tuple[Any, ...]):
    by_length = any(getattr(part, "by_length", False) for part in given)
    layers = dict.fromkeys(("n_layer", "num_hidden_layers"), 1) if by_length else {}
    model = trained_at(12, tiny(name.partition(",")[0], **CASES[name] | layers))
    stock = model(tokens()).logits
    extend(model, *given)
    assert (model(tokens()).logits - stock).abs().max() > 1e-3
    texts, mask = padded(t=14)
    for cache in ("dynamic", "static"):
        said, logits = continued(model, texts, mask, n=3, cache_implementation=cache)
        for row, pad in ((0, 5), (1, 0)):
            text = torch.cat((texts[row, pad:], said[row, :2]))
            fresh = model(text[None], use_cache=False).logits[0, -1]
            assert (fresh - logits[2, row]).abs().max() < CLOSE, (cache, row)


def test_falcon_keeps_its_own_scale_under_a_stretch():
    model = made("falcon, alibi")
    slopes = extension_of(extend(model, through="attend")).schedule[0].parts[0].slopes().behind
    flatter = extension_of(extend(model, mp.AlibiInterpolate(4.0))).schedule[0].parts[0].slopes().behind
    assert torch.equal(slopes, 4 * flatter)
    assert torch.equal(slopes, mp.Alibi(4).slopes().behind / 8**0.5)


def test_rows_of_the_lab_on_slopes_and_neighbours():
    assert extension_of(extend(made("bloom"), "log-n")).schedule[0].parts == (mp.Alibi(4), mp.causal, mp.LogN(64))
    turn = mp.Partial(mp.Rope(4, pairs="neighbours"), of=8)
    parts = extension_of(extend(made("gptj"), "ReRoPE, pivot")).schedule[0].parts
    assert parts == (turn, mp.causal, mp.Pivot(mp.Rerope(32), 64))


@pytest.mark.parametrize(("name", "part"), [("falcon, alibi", mp.AlibiNtk(4.0)), ("gptj", mp.Rerope(8))])
def test_what_was_replaced_is_saved_and_loaded(name: str, part: object, tmp_path: Path):
    model = extend(made(name), part)
    save(model, tmp_path)
    again = load(tmp_path).eval()
    assert near(again(tokens()).logits, model(tokens()).logits)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="a gptj model has no module for cosines alone"):
        extend(made("gptj"), through="rotary")
    strange = torch.zeros(2, 1, 24, 24).masked_fill(~torch.ones(24, 24).tril(-1).bool(), torch.finfo(torch.float32).min)
    strange[..., 5, 3] = torch.finfo(torch.float32).min
    with pytest.raises(ValueError, match="hides more than padding and keys ahead"):
        extend(made("gptj"), through="attend")(tokens(), attention_mask=strange)


def by_config(model: Any) -> Any:
    model.config.output_attentions = True
    return model(tokens())


WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "call": lambda model: model(tokens(), output_attentions=True),
    "generate": lambda model: model.generate(
        tokens(),
        attention_mask=torch.ones(2, 24),
        max_new_tokens=2,
        output_attentions=True,
        return_dict_in_generate=True,
    ),
    "config": by_config,
}


@pytest.mark.parametrize("how", WEIGHTS)
@pytest.mark.parametrize("name", CASES)
def test_attention_weights_are_refused(name: str, how: str):
    model = made(name)
    model.set_attn_implementation("eager")
    extend(model, through="attend")
    # Falcon's config takes no such setting but under its eager attention.
    with pytest.raises(ValueError, match=r"output_attentions(=True asks for attention weights|` attribute is not)"):
        WEIGHTS[how](model)


def test_dropout_is_that_of_the_mode_the_model_is_in():
    model = tiny("gptj", attn_pdrop=0.5)
    stock = model(tokens()).logits
    assert near(extend(model, through="attend")(tokens()).logits, stock), "a model that is not training drops nothing"
    model.train()
    assert all(each.training for each in restore(model).modules())


def test_slopes_that_stock_mpt_passes_over_are_no_slopes_of_the_model():
    told, plain = tiny("mpt"), tiny("mpt")
    told.config.attn_config.alibi_bias_max = 16
    wanted = plain(tokens(1, 12)).logits
    assert torch.equal(told(tokens(1, 12)).logits, wanted)
    assert not check(told, plain)
    with pytest.raises(ValueError, match=r"alibi_bias_max 16, and the MPT of transformers passes over it"):
        extend(told, mp.AlibiInterpolate(2))
    told.config.attn_config.alibi_bias_max = 8
    assert (extend(told, through="attend")(tokens(1, 12)).logits - wanted).abs().max() < 1e-5


EDITS = {"bloom": "inv_norm_factor", "falcon": "inv_norm_factor", "gptj": "scale_attn", "mpt": "softmax_scale"}


@pytest.mark.parametrize("name", sorted(EDITS))
def test_a_softmax_scale_that_was_set_by_hand_is_refused(name: str):
    def first(model: Any) -> Any:
        return next(
            each for each in model.modules() if hasattr(each, "layer_idx") and "Attention" in type(each).__name__
        )

    model, text = made(name), tokens(2, 12)
    module, stock = first(model), model(text).logits
    own = getattr(module, EDITS[name])
    extend(model, through="attend")
    ours = next(each for each in model.modules() if isinstance(each, Replaced))
    for owner in (ours, module):
        setattr(owner, EDITS[name], 2 * own)
        with pytest.raises(RuntimeError, match=rf"{EDITS[name]} of {type(module).__name__} changed after extend"):
            model(text)
        setattr(owner, EDITS[name], own)
        assert near(model(text).logits, stock)
    restore(model)
    setattr(first(model), EDITS[name], 2 * own)
    with pytest.raises(ValueError, match=r"layer 0 of this \w+ model scales its scores by .*give the scale as a part"):
        extend(model, through="attend")
    setattr(first(model), EDITS[name], own)
    assert near(extend(model, through="attend")(text).logits, stock)


def test_a_setting_that_is_read_at_every_call_is_that_of_the_module_that_was_here():
    model, other, text = made("mpt"), made("mpt"), tokens(2, 12)
    extend(model, through="attend")
    for layer, its in zip(model.transformer.blocks, other.transformer.blocks, strict=True):
        layer.attn.clip_qkv = its.attn.clip_qkv = 0.1
    assert near(model(text).logits, other(text).logits)
    assert torch.equal(restore(model)(text).logits, other(text).logits)


def first(model: Any) -> Any:
    """The first attention module."""
    return next(
        each
        for each in model.modules()
        if isinstance(each, Replaced) or (hasattr(each, "layer_idx") and "Attention" in type(each).__name__)
    )


@pytest.mark.parametrize("name", sorted(REPLACED))
def test_hooks_are_called_whenever_they_were_added_and_leave_with_their_handles(name: str):
    model, called = made(name), list[str]()

    def before(module: Any, args: Any, options: Any) -> None:
        called.append(f"before {hasattr(module, 'head_dim')}")

    def after(module: Any, args: Any, output: Any) -> Any:
        called.append("after")
        return (output[0] * 0, *output[1:])

    plain = model(tokens()).logits
    handles = [first(model).register_forward_pre_hook(before, with_kwargs=True)]
    handles.append(first(model).register_forward_hook(after))
    stock = model(tokens()).logits
    assert not near(stock, plain)
    extend(model, through="attend")
    assert near(model(tokens()).logits, stock)
    assert called == ["before True", "after"] * 2
    handles.append(first(model).register_forward_hook(lambda *_: called.append("meanwhile")))
    restore(model)
    assert torch.equal(model(tokens()).logits, stock)
    assert called[-1] == "meanwhile"
    extend(model, through="attend")
    for each in handles:
        each.remove()
    called.clear()
    assert near(model(tokens()).logits, plain)
    assert torch.equal(restore(model)(tokens()).logits, plain)
    assert not called


def test_backward_hooks_are_called():
    model, called = made("bloom"), list[int]()
    first(model).register_full_backward_hook(lambda *_: called.append(1))
    with torch.enable_grad():
        extend(model, through="attend")(tokens()).logits.sum().backward()
        restore(model)(tokens()).logits.sum().backward()
    assert len(called) == 2
    extend(model, through="attend")
    first(made("mpt")).register_full_backward_hook(lambda *_: None)
    other = extend(made("mpt"), through="attend")
    first(other).register_full_backward_hook(lambda *_: called.append(2))
    with torch.enable_grad():
        restore(other)(tokens()).logits.sum().backward()
    assert called[-1] == 2


@pytest.mark.parametrize("name", sorted(REPLACED))
def test_a_forward_that_is_not_that_of_transformers_is_refused(name: str):
    model = made(name)
    module = first(model)
    module.forward = lambda *args, **options: type(module).forward(module, *args, **options)
    with pytest.raises(ValueError, match=r"the forward of this \w+ is not that of transformers"):
        extend(model, through="attend")
    del module.forward
    module.__class__ = type("Fast", (type(module),), {"forward": lambda *args, **options: None})
    module.__class__.__name__ = "FastAttention"
    with pytest.raises(ValueError, match="the forward of this FastAttention is not that of transformers"):
        extend(model, through="attend")


@pytest.mark.parametrize(
    ("name", "drop", "more"),
    [
        ("bloom", "attention_dropout", {"attention_dropout": 0.5}),
        ("gptj", "attn_dropout", {"attn_pdrop": 0.5}),
        ("falcon, alibi", "attention_dropout", {"attention_dropout": 0.5}),
    ],
)
def test_a_dropout_that_is_replaced_is_read(name: str, drop: str, more: dict[str, Any]):
    model = tiny(name.partition(",")[0], **(CASES[name] | more))
    stock = model(tokens()).logits
    extend(model, through="attend").train()
    assert not near(model(tokens()).logits, stock)
    modules = [each for each in model.modules() if isinstance(each, Replaced)]
    for new in (torch.nn.Dropout(0.0), torch.nn.Identity(), torch.nn.Dropout(0.5).eval()):
        for module in modules:
            setattr(module, drop, new)
        assert near(model(tokens()).logits, stock), new
    setattr(modules[0], drop, torch.nn.AlphaDropout(0.5))
    with pytest.raises(ValueError, match=r"attention weights are dropped by nn\.Dropout alone, not AlphaDropout"):
        model(tokens())


def test_what_the_module_that_was_here_has_is_seen_and_set():
    model = extend(made("mpt"), through="attend")
    for module in model.modules():
        if hasattr(module, "attn_dropout_p"):
            module.attn_dropout_p = 0.5
    assert not near(model.train()(tokens()).logits, model(tokens()).logits)
    assert restore(model).transformer.blocks[0].attn.attn_dropout_p == 0.5
    module = first(extend(model, through="attend"))
    assert not hasattr(module, "nothing_of_the_kind")
    module.prefix, module.gate = torch.nn.Parameter(torch.ones(2)), torch.nn.Linear(2, 2)
    assert {name.split(".attn.")[1] for name in model.state_dict() if "gate" in name or "prefix" in name} == {
        "prefix", "gate.weight", "gate.bias",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["falcon", "gptj"])
def test_a_model_that_sees_keys_ahead_is_refused(name: str):
    # Which token a query is is read off transformers' mask, where each but the last hides something.
    model = tiny(name, is_causal=False)
    with pytest.raises(ValueError, match=rf"this {name} model sees keys ahead \(is_causal is false in its config\)"):
        extend(model, through="attend")
    assert extension_of(model) is None


def test_eager_falcons_that_add_their_slopes_twice_are_refused():
    model = made("falcon, alibi")
    eager = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    assert not near(eager(tokens()).logits, model(tokens()).logits)
    with pytest.raises(ValueError, match=r"adds its slopes twice.*loaded with attn_implementation=\"sdpa\""):
        extend(eager, mp.AlibiNtk(4.0))
    assert extension_of(eager) is None


def test_the_attention_of_falcons_with_alibi_is_not_shown():
    model = made("falcon, alibi")
    found = attention_mass(Row("stock", model), tokens(), 4)
    assert found == "only eager attention gives weights, and transformers' eager Falcon adds ALiBi's slopes twice"
    assert isinstance(attention_mass(Row("stock", made("falcon")), tokens(), 4), Mass)
