"""T5 through attend: both stacks under their own schemes are what stock transformers computes; parts join them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, T5EncoderModel

import milepost as mp
from milepost.hf import extend, load, restore, save
from milepost.hf.model.t5 import T5Attention, stretched
from tests.hf.test_architectures import CLOSE, Counted, near
from tests.hf.test_buckets import BUCKETS, FURTHER, HEADS, SMALL, TEXTS, tiny

KINDS = ("mt5", "t5", "umt5")


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def given(t: int = 20, n: int = 13, left: bool = False) -> dict[str, Tensor]:
    """Two texts of which the first is padded, on one side, and what the decoder has said."""
    generator = torch.Generator().manual_seed(2)
    texts, said = (torch.randint(2, 48, (2, size), generator=generator) for size in (t, n))
    mask = torch.ones_like(texts)
    mask[0, slice(0, 6) if left else slice(-6, None)] = 0
    return {"input_ids": texts, "attention_mask": mask, "decoder_input_ids": said}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_is_stock(kind: str, how: str, left: bool, monkeypatch: pytest.MonkeyPatch):
    model, counted, texts = tiny(kind), Counted(monkeypatch), given(left=left)
    if how == "sdpa" and not type(model)._supports_sdpa:
        pytest.skip("this transformers runs T5 eagerly only")
    model.set_attn_implementation(how)
    names, stock = list(model.state_dict()), model(**texts).logits
    extend(model, through="attend")
    assert list(model.state_dict()) == names
    assert near(model(**texts).logits, stock)
    assert counted.calls == 4, "two layers of each of the two stacks; over the encoder's output nothing changes"
    restore(model)
    assert torch.equal(model(**texts).logits, stock)
    assert not any(isinstance(each, T5Attention) for each in model.modules())


def generated(model: Any, **options: Any) -> tuple[Tensor, Tensor]:
    texts = given()
    del texts["decoder_input_ids"]
    more = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "disable_compile": True} | options
    made = model.generate(**texts, output_logits=True, return_dict_in_generate=True, **more)
    return made.sequences, torch.stack(made.logits)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_beams_go_on_as_stock_does(kind: str, cache: str, monkeypatch: pytest.MonkeyPatch):
    model, counted = tiny(kind), Counted(monkeypatch)
    for beams in (1, 3):
        options: dict[str, Any] = {"num_beams": beams, "cache_implementation": cache}
        said, logits = generated(restore(model), **options)
        before = counted.calls
        ours = generated(extend(model, through="attend"), **options)
        assert torch.equal(ours[0], said), beams
        assert near(ours[1], logits), beams
        assert counted.calls - before == 16, "the encoder once, the decoder seven times, two layers each"


@pytest.mark.parametrize("kind", ["t5", "umt5"])
def test_without_its_table_a_model_is_something_else(kind: str):
    model, texts = tiny(kind), given()
    stock = model(**texts).logits
    extend(model, through="attend")
    for module in model.modules():
        if isinstance(module, T5Attention):
            module.__dict__["scheme"] = mp.Scheme(*module.__dict__["scheme"].parts[1:])
    assert (model(**texts).logits - stock).abs().max() > 0.01


def test_a_longer_reach_is_the_same_along_both_ways():
    model, texts = tiny(), given(t=60, n=50)
    stock = extend(tiny(), FURTHER)(**texts).logits
    extend(model, FURTHER, through="attend")
    assert near(model(**texts).logits, stock)
    assert near(extend(model, FURTHER)(**texts).logits, stock)
    assert model.config.relative_attention_max_distance == 80
    assert restore(model).config.relative_attention_max_distance == 32


PARTS: dict[str, tuple[object, ...]] = {
    "log-n": (mp.LogN(4),),
    "a window": (mp.window(5, ahead=4),),
    "a window and a longer reach": (FURTHER, mp.window(9, ahead=8)),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_decoded_as_a_fresh_pass_computes_them(kind: str, name: str):
    model, texts = tiny(kind), given()
    stock = model(**texts).logits
    extend(model, *PARTS[name])
    assert (model(**texts).logits - stock).abs().max() > 1e-3, "the part did nothing"
    said, logits = generated(model)
    fresh = model(**(texts | {"decoder_input_ids": said[:, :-1]}), use_cache=False).logits
    assert near(logits.transpose(0, 1), fresh)


@pytest.mark.parametrize("left", [False, True])
def test_padding_changes_nothing(left: bool):
    model, texts = extend(tiny(), mp.LogN(4), mp.window(5, ahead=4)), given(left=left)
    alone = {name: each[:1] for name, each in texts.items()}
    alone["input_ids"] = alone["input_ids"][:, 6:] if left else alone["input_ids"][:, :-6]
    del alone["attention_mask"]
    assert near(model(**texts).logits[:1], model(**alone).logits)


def test_an_encoder_alone_answers_for_padding_too():
    torch.manual_seed(0)
    model, texts = T5EncoderModel(AutoConfig.for_model("t5", **SMALL)).eval(), given()
    del texts["decoder_input_ids"]
    stock = model(**texts).last_hidden_state
    assert near(extend(model, through="attend")(**texts).last_hidden_state, stock)


def gradients(model: Any) -> Tensor:
    model.zero_grad()
    texts = given(t=12, n=9)
    with torch.enable_grad():
        model(**texts, labels=texts["decoder_input_ids"], use_cache=False).loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("kind", KINDS)
def test_training_has_the_gradients_of_stock_those_of_the_table_too(kind: str):
    model = tiny(kind, dropout_rate=0.0).train()
    stock = gradients(model)
    assert model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad.abs().max() > 0
    extend(model, through="attend")
    assert near(gradients(model), stock)
    model.gradient_checkpointing_enable()
    assert near(gradients(model), stock)


def test_dropout_is_that_of_the_mode_the_model_is_in():
    model, texts = tiny(dropout_rate=0.5), given()
    stock = model(**texts).logits
    assert near(extend(model, through="attend")(**texts).logits, stock)
    model.train()
    assert restore(model).decoder.block[1].layer[0].SelfAttention.training


@pytest.mark.parametrize("kind", ["t5", "umt5"])
def test_what_transformers_cannot_say_is_saved_beside_it(kind: str, tmp_path: Path):
    model, texts = extend(tiny(kind), FURTHER, mp.LogN(4)), given()
    save(model, tmp_path)
    again = load(tmp_path).eval()
    assert near(again(**texts).logits, model(**texts).logits)
    assert all(one.same_as(stretched(model).schedules[name]) for name, one in stretched(again).schedules.items())
    with pytest.raises(ValueError, match=r"its buckets stretched, so transformers says all of it"):
        save(extend(model, FURTHER), tmp_path)


def test_a_copy_goes_on_by_itself_with_its_own_table():
    model, texts = extend(tiny(), mp.LogN(4)), given()
    twin, ours = copy.deepcopy(model), model(**texts).logits
    assert torch.equal(twin(**texts).logits, ours)
    twin.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight += 1 + torch.arange(HEADS)
    assert torch.equal(model(**texts).logits, ours)
    restore(twin)
    assert torch.equal(model(**texts).logits, ours)


def test_the_table_is_read_where_it_stands_after_it_moved():
    model, texts = extend(tiny(), through="attend"), given()
    table = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
    table.weight = torch.nn.Parameter(torch.randn(BUCKETS, HEADS))
    ours = model(**texts).logits
    assert near(restore(model)(**texts).logits, ours)


FILLED: dict[str, tuple[object, ...]] = {"stock": (), "buckets": (FURTHER,), "attend": (mp.LogN(4),)}


@pytest.mark.parametrize("now", FILLED)
@pytest.mark.parametrize("before", FILLED)
def test_a_cache_filled_under_another_scheme_is_refused(before: str, now: str):
    def put(name: str) -> Any:
        return extend(model, *FILLED[name]) if FILLED[name] else restore(model)

    model, texts = tiny(), given()
    cache = put(before)(**texts, use_cache=True).past_key_values
    texts["decoder_input_ids"] = texts["decoder_input_ids"][:, :1]
    put(now)
    if before == now:
        model(**texts, past_key_values=cache)
        return
    with pytest.raises(ValueError, match=r"this DynamicCache was filled under .* Start with a new cache after extend"):
        model(**texts, past_key_values=copy.deepcopy(cache))
    with pytest.raises(ValueError, match=r"this DynamicCache was filled under .* Start with a new cache after extend"):
        model.decoder.forward(texts["decoder_input_ids"], past_key_values=cache)


def test_a_decoder_without_its_hooks_tells_caches_apart():
    model, texts = extend(tiny(), FURTHER), TEXTS[:, :12]
    whole = model.decoder(texts).last_hidden_state
    cache = model.decoder.forward(texts[:, :6], use_cache=True).past_key_values
    after = model.decoder.forward(texts[:, 6:], past_key_values=copy.deepcopy(cache)).last_hidden_state
    assert near(after, whole[:, 6:])
    restore(model)
    with pytest.raises(ValueError, match="this DynamicCache was filled under the extension of buckets"):
        model.decoder(texts[:, 6:], past_key_values=cache)


def test_what_it_cannot_do_is_refused_in_the_forward_pass():
    model, texts = extend(tiny(), through="attend"), given()
    with pytest.raises(ValueError, match="output_attentions=True asks for attention weights"):
        model(**texts, output_attentions=True)
    strange = torch.ones(2, 1, 20, 20, dtype=torch.bool)
    strange[..., 5, 3] = False
    with pytest.raises(ValueError, match="hides some keys from some of the 20 queries of an encoder"):
        model(**(texts | {"attention_mask": strange}))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_and_generation_are_stock_on_a_gpu(kind: str):
    model, texts = tiny(kind).cuda(), {name: each.cuda() for name, each in given().items()}
    stock, said = model(**texts).logits, model.generate(texts["input_ids"], max_new_tokens=6, min_new_tokens=6)
    extend(model, through="attend")
    assert (model(**texts).logits - stock).abs().max() < 10 * CLOSE
    assert torch.equal(model.generate(texts["input_ids"], max_new_tokens=6, min_new_tokens=6), said)


EDITS: dict[str, object] = {"scaling": 0.3, "relative_attention_max_distance": 10, "is_decoder": False}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("kind", ["t5", "umt5"])
def test_a_setting_that_was_changed_by_hand_is_refused(kind: str, name: str):
    model, extended, texts = tiny(kind), extend(tiny(kind), through="attend"), given()
    for each in (model, extended):
        setattr(each.decoder.block[0].layer[0].SelfAttention, name, EDITS[name])
    with pytest.raises(
        ValueError, match=rf"extend: {name} of \w+Attention in layer 0 is {EDITS[name]}, and its config"
    ):
        extend(model, through="attend")
    assert stretched(model) is None
    with pytest.raises(RuntimeError, match=rf"{name} of \w+Attention changed after extend"):
        extended(**texts)


def test_hooks_and_dropout_are_those_of_the_module_that_was_here():
    model, texts = tiny(dropout_rate=0.5), given()
    module = model.encoder.block[0].layer[0].SelfAttention
    module.register_forward_hook(lambda module, args, output: (output[0] * 0, *output[1:]))
    stock = model(**texts).logits
    extend(model, through="attend")
    assert near(model(**texts).logits, stock)
    assert model.encoder.block[0].layer[0].SelfAttention.dropout == 0.5
    for each in model.modules():
        if hasattr(each, "dropout") and isinstance(each.dropout, float):
            each.dropout = 0.0
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    assert near(model.train()(**texts).logits, stock)
    module.forward = lambda *args, **options: None
    with pytest.raises(ValueError, match="the forward of this T5Attention is not that of transformers"):
        extend(restore(model), through="attend")
