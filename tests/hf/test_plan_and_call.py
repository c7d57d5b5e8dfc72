"""A plan prints a config, which stock transformers runs, and a call for each method; both must be the same model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

import milepost as mp  # noqa: E402
from milepost.hf import extend, load, plan, save  # noqa: E402
from tests.hf.tiny import tiny, tokens  # noqa: E402

BY_TYPE = ["gemma3_text", "olmo3"]
ONE_SETTING = ["gpt_oss", "qwen2", "gemma2"]
TO = 256


def stock(model: Any, settings: dict[str, Any]) -> Any:
    """The weights of a model under the config that a plan prints."""
    config = type(model.config).from_dict(model.config.to_dict() | settings)
    config._attn_implementation = model.config._attn_implementation
    made = type(model)(config).eval()
    made.load_state_dict(model.state_dict())
    return made


def assert_each_call_is_its_config(model: Any, least: int = 8) -> None:
    """least: how many methods have a config, and how many of these change the logits of a text past 64 tokens."""
    text, found = tokens(1, 90), plan(model.config, to=TO)
    written = [each for each in found.candidates if each.config is not None]
    assert len(written) >= least
    changes = 0
    for each in written:
        given = extend(copy.deepcopy(model), *each.parts)
        with torch.no_grad():
            theirs, ours = stock(model, each.config)(text).logits, given(text).logits
            changes += bool((theirs - model(text).logits).abs().max() > 1e-3)
        torch.testing.assert_close(
            ours, theirs, rtol=1e-3, atol=1e-3, msg=lambda said, name=each.name: f"{name}: {said}"
        )


@pytest.mark.parametrize("kind", [*BY_TYPE, *ONE_SETTING, "llama"])
def test_each_call_is_the_model_of_its_config(kind: str):
    assert_each_call_is_its_config(tiny(kind))


@pytest.mark.parametrize("kind", BY_TYPE)
def test_where_windows_pass_the_trained_length_their_layers_are_stretched_too(kind: str):
    model = tiny(kind, sliding_window=100)
    if kind == "gemma3_text":
        # It has another base there, and such layers are planned apart.
        with pytest.raises(ValueError, match="turn differently"):
            plan(model.config, to=TO)
        settings = {"rope_type": "default", "rope_theta": 1e4}
        same = dict.fromkeys(("sliding_attention", "full_attention"), settings)
        model = tiny(kind, sliding_window=100, rope_parameters=same)
    assert_each_call_is_its_config(model)


@pytest.mark.parametrize("kind", BY_TYPE)
def test_a_layer_with_settings_and_a_window_of_its_own_is_left_alone(kind: str, tmp_path: Path):
    model, yarn = tiny(kind), mp.Yarn(4, trained=64)
    windowed, whole = mp.Schedule.of(model)
    extend(model, yarn)
    near, far = mp.Schedule.of(model)
    assert near.same_as(windowed)
    assert far.parts[0] == mp.Rope(8, theta=whole.parts[0].theta, stretch=yarn)
    assert "a stretch leaves them alone" in " ".join(str(plan(tiny(kind).config, to=TO)).split())
    save(model, tmp_path)
    text = tokens(1, 90)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(text).logits, model(text).logits)
        torch.testing.assert_close(read(text).logits, model(text).logits, rtol=1e-4, atol=1e-4)
    # Extended again, from what it was at first: the config promises 256 tokens now.
    extend(model, mp.Ntk(4))
    assert mp.Schedule.of(model)[0].same_as(windowed)
    # A schedule gives each layer what it says.
    extend(model, mp.Schedule([mp.Scheme(mp.Rope(8, stretch=yarn), *windowed.parts[1:]), whole]))
    assert mp.Schedule.of(model)[0].parts[0].stretch == yarn


def test_a_window_of_the_trained_length_meets_no_new_distance():
    for keys, left_alone in ((64, True), (65, False)):
        model = tiny("olmo3", sliding_window=keys)
        windowed = mp.Schedule.of(model)[0]
        assert_each_call_is_its_config(model)
        extend(model, mp.Yarn(4, trained=64))
        assert mp.Schedule.of(model)[0].same_as(windowed) == left_alone


@pytest.mark.parametrize("kind", ONE_SETTING)
def test_where_one_setting_serves_all_layers_a_stretch_goes_to_all(kind: str):
    model, yarn = tiny(kind), mp.Yarn(4, trained=64)
    extend(model, yarn)
    assert [scheme.parts[0].stretch for scheme in mp.Schedule.of(model)] == [yarn, yarn]
    printed = " ".join(str(plan(tiny(kind).config, to=TO)).split())
    assert "1 of 2 layers see every key" in printed
    assert "they are stretched with the others" in printed


def test_a_stretch_for_windows_alone_is_refused_by_name():
    model = tiny("olmo3", layer_types=["sliding_attention"] * 2)
    with pytest.raises(ValueError, match="no layer of this olmo3 model sees past its trained length"):
        extend(model, mp.Yarn(4, trained=64))


def test_of_one_pair_every_method_is_planned_but_those_that_need_two():
    model = tiny("stablelm", partial_rotary_factor=0.25)
    names = {each.name for each in plan(model.config, to=TO).candidates}
    assert {"YaRN", "NTK, mixed", "LongRoPE"} < names
    assert not {"NTK", "dynamic NTK"} & names
    # YaRN and Llama 3 keep a pair that fast as it is; of these two YaRN still changes the magnitude.
    assert_each_call_is_its_config(model, 4)
    with pytest.raises(ValueError, match="NTK-aware stretching needs at least two pairs"):
        extend(model, mp.Ntk(4))


@pytest.mark.parametrize("given", [(mp.Yarn(4, trained=64),), (mp.Ntk(4),), (mp.Rerope(8),)])
def test_an_extended_model_is_planned_from_where_extend_starts(given: tuple[Any, ...]):
    stock = plan(tiny("llama"), 1024)
    model = extend(tiny("llama"), *given)
    before = model.config.to_dict()
    found = plan(model, 1024)
    assert (found.trained, found.reached, found.candidates) == (stock.trained, stock.reached, stock.candidates)
    assert "starts from the checkpoint" in " ".join(str(found).split())
    assert model.config.to_dict() == before
    assert mp.Scheme.of(model).same_as(mp.Scheme.of(extend(tiny("llama"), *given)))


def test_a_folder_that_stock_reads_as_stretched_is_planned_as_it_is(tmp_path: Path):
    extend(tiny("llama"), mp.Yarn(4, trained=64)).save_pretrained(tmp_path)
    found = plan(tmp_path, 1024)
    assert (found.trained, found.reached) == (64, 256)
    assert "starts from what the config says" in " ".join(str(found).split())
    again = plan(load(tmp_path), 1024)
    assert (again.reached, again.candidates) == (256, found.candidates)


def test_the_length_that_an_extension_writes_is_no_trained_length():
    model = extend(tiny("llama"), mp.Yarn(4, trained=64))
    assert model.config.max_position_embeddings == 256
    with pytest.raises(ValueError, match="says that it was trained at 64 tokens"):
        extend(model, mp.LogN(256))
