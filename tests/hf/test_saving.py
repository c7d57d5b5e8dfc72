"""What is saved: a config that stock transformers reads where it can, and a small JSON beside the weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import milepost as mp
from milepost.hf import extend, load, restore, save
from milepost.hf.extension import extension_of
from tests.hf.tiny import tiny, tokens

CLOSE = 1e-5
STRETCHES = {
    "linear": mp.Interpolate(4.0),
    "dynamic": mp.DynamicNtk(16, factor=2.0),
    "yarn": mp.Yarn(4, trained=16),
    "llama3": mp.Llama3(4.0, 16),
    "longrope": mp.LongRope((1.0,) * 4, (1.0, 1.5, 2.0, 4.0), trained=16, factor=4.0),
    "default": mp.Ntk(4.0),
}


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("rope_type", STRETCHES)
def test_stock_transformers_reads_what_it_has_words_for(rope_type: str, model_type: str, tmp_path: Path):
    model = tiny(model_type)
    plain = model(tokens()).logits
    extend(model, STRETCHES[rope_type])
    ours = model(tokens()).logits
    assert (ours - plain).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    nested = written.get("full_attention", written)
    assert nested["rope_type"] == rope_type
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(stock.model.rotary_emb).__module__.startswith("transformers.")
    assert (stock.eval()(tokens()).logits - ours).abs().max() < CLOSE


@pytest.mark.parametrize(
    "given",
    [(mp.Pivot(mp.Rerope(8), 16), mp.LogN(16)), (mp.Yarn(4, 16, ramp="paper"),), (mp.DynamicNtk(16),),
     (mp.causal & (mp.window(8) | mp.sinks(2)),)],
)  # fmt: skip
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "smollm3"])
def test_load_gives_back_what_was_saved(model_type: str, given: tuple[object, ...], tmp_path: Path):
    model = extend(tiny(model_type), *given)
    save(model, tmp_path)
    again = load(tmp_path).eval()
    assert (again(tokens()).logits - model(tokens()).logits).abs().max() < CLOSE
    assert extension_of(again).through == extension_of(model).through
    assert extension_of(again).schedule.same_as(extension_of(model).schedule)


def test_a_model_that_transformers_cannot_say_is_saved_as_it_was_with_the_rest_beside_it(tmp_path: Path):
    model = tiny("llama")
    plain = model(tokens()).logits
    ours = extend(model, mp.Rerope(8))(tokens()).logits
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(tokens()).logits, plain)
    assert (load(tmp_path).eval()(tokens()).logits - ours).abs().max() < CLOSE


def test_only_what_transformers_cannot_say_brings_something_beside_it(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(8))
    twin = copy.deepcopy(model)
    extend(model, mp.Yarn(4, trained=16)).save_pretrained(tmp_path / "yarn")
    restore(extend(model, mp.Rerope(8))).save_pretrained(tmp_path / "plain")
    assert not any((tmp_path / each / "milepost.json").exists() for each in ("yarn", "plain"))
    twin.model.embed_tokens.weight += 1
    twin.save_pretrained(tmp_path / "twin")
    again = load(tmp_path / "twin").eval()
    assert (again(tokens()).logits - twin(tokens()).logits).abs().max() < CLOSE, "a copy saves itself"


# Trainers warn of much, by release.
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_writes_checkpoints_that_load_reads(tmp_path: Path):
    pytest.importorskip("accelerate")
    model = extend(tiny("llama"), mp.Pivot(mp.Rerope(6), 12))
    data = [{"input_ids": each, "labels": each} for each in tokens(4, 12)]
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    with torch.enable_grad():
        args = TrainingArguments(str(tmp_path), save_steps=1, **options)
        Trainer(model=model, args=args, train_dataset=data).train()
    again = load(tmp_path / "checkpoint-1").eval()
    assert (again(tokens()).logits - model.eval()(tokens()).logits).abs().max() < CLOSE


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no such folder\. Nothing is downloaded"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no milepost\.json, which save writes; it is empty"):
        load(tmp_path)
    tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="It is a model without an extension"):
        load(tmp_path)
    (tmp_path / "milepost.json").write_text("{}")
    with pytest.raises(ValueError, match="was not written by save"):
        load(tmp_path)
    with pytest.raises(ValueError, match="this model is not extended"):
        save(tiny("llama"), tmp_path)


def edited(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_config_that_disagrees_with_the_weights_is_refused(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path)
    edited(tmp_path, num_hidden_layers=3)
    with pytest.raises(ValueError, match="disagrees with its weights"):
        load(tmp_path)
    edited(tmp_path, num_hidden_layers=2, hidden_size=64, head_dim=8)
    with pytest.raises(ValueError, match="disagrees with its weights"):
        load(tmp_path)


def test_a_config_edited_by_hand_is_noticed(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path)
    edited(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    with pytest.raises(ValueError, match=r"was changed after milepost\.json was written"):
        load(tmp_path)


def test_pickled_weights_are_not_read(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickled weights can run code"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("stretch", "longest"),
    [(mp.Yarn(8, 16), 128), (mp.Llama3(8, 16), 128), (mp.Interpolate(8.0), 64), (mp.DynamicNtk(16), 16),
     (mp.LongRope((1.0,) * 4, (2.0,) * 4, 16, factor=8.0), 128)],
)  # fmt: skip
def test_the_longest_length_is_what_each_rope_type_counts_from(stretch: object, longest: int):
    assert extend(tiny("llama"), stretch).config.max_position_embeddings == longest


def test_restore_gives_the_config_back():
    model = tiny("llama")
    before = model.config.to_dict()
    extend(model, mp.Yarn(4, trained=16))
    assert model.config.max_position_embeddings == 64
    assert model.config.rope_parameters["factor"] == 4.0
    assert restore(model).config.to_dict() == before
