"""What is wrong with a model or a folder is refused by name: another release, a config that lies, missing weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost as mp
from milepost.configs.stored import FORMAT
from milepost.hf import extend, load, plan
from tests.hf.tiny import tiny, tokens


def rewritten(folder: Path, change: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


# Another release of milepost


@pytest.mark.parametrize("parts", [(mp.Rerope(16),), (mp.Yarn(4, trained=64),)], ids=["marked", "read by stock"])
def test_a_folder_that_a_later_release_saved_is_refused_and_names_it(parts: Any, tmp_path: Path):
    model = extend(tiny("llama"), *parts)
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["milepost"]
    assert (stored["format"], stored["version"]) == (FORMAT, mp.__version__)
    rewritten(tmp_path, lambda config: config["milepost"].update(format=FORMAT + 1, version="9.0"))
    for read in (load, mp.Schedule.of, mp.Scheme.of, lambda folder: plan(folder, to=256)):
        with pytest.raises(ValueError, match=r"in format 2, of milepost 9\.0, and this release reads formats up to 1"):
            read(tmp_path)
    rewritten(tmp_path, lambda config: config["milepost"].update(format="new"))
    with pytest.raises(ValueError, match="in format 'new'"):
        load(tmp_path)


def test_a_folder_from_before_formats_were_counted_is_read(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(16))
    model.save_pretrained(tmp_path)
    rewritten(tmp_path, lambda config: [config["milepost"].pop(name) for name in ("format", "version")])
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(tokens()).logits, model(tokens()).logits)


# A config that lies about its heads


@pytest.mark.parametrize("parts", [(mp.Rerope(16),), (mp.Yarn(4, trained=64),)], ids=["attend", "rotary"])
@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("llama", {"num_attention_heads": 2}), ("llama", {"num_key_value_heads": 4}), ("llama", {"head_dim": 4}),
        ("qwen3", {"num_attention_heads": 8}), ("qwen3", {"num_key_value_heads": 1}), ("qwen3", {"head_dim": 16}),
    ],
)  # fmt: skip
def test_a_config_that_counts_other_heads_than_the_weights_is_refused(kind: str, lie: dict[str, int], parts: Any):
    model = tiny(kind)
    with torch.no_grad():
        stock = model(tokens()).logits
        for name, value in lie.items():
            setattr(model.config, name, value)
        with pytest.raises(
            ValueError, match=r"by its config, with .* it would be|turns otherwise than its config says"
        ):
            extend(model, *parts)
        assert torch.equal(model(tokens()).logits, stock)


@pytest.mark.parametrize("lie", [{"num_attention_heads": 8}, {"num_key_value_heads": 4}, {"head_dim": 16}])
def test_a_folder_whose_config_lies_about_its_heads_is_refused(lie: dict[str, int], tmp_path: Path):
    extend(tiny("qwen3"), mp.Rerope(16)).save_pretrained(tmp_path)
    rewritten(tmp_path, lambda config: config.update(lie))
    with pytest.raises(ValueError, match=r"disagrees with its weights|was changed after milepost stored"):
        load(tmp_path)


# Weights that are not there


def test_a_model_that_is_half_on_the_meta_device_is_refused():
    model = tiny("llama")
    model.model.layers[1].to("meta")
    for parts in ((mp.Rerope(16),), (mp.Yarn(4, trained=64),)):
        with pytest.raises(ValueError, match="the attention of layer 1 of this llama model is on the meta device"):
            extend(model, *parts)


def test_a_model_that_accelerate_keeps_half_on_disk_is_extended(tmp_path: Path):
    accelerate = pytest.importorskip("accelerate")
    whole, model = tiny("llama"), tiny("llama")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
              "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    model = accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path))
    assert {each.device.type for each in model.parameters()} == {"cpu", "meta"}
    with torch.no_grad():
        assert (
            extend(model, mp.Rerope(16))(tokens()).logits - extend(whole, mp.Rerope(16))(tokens()).logits
        ).abs().max() < 1e-6
