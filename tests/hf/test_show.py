"""`show`: what a model does now, of stock, extended and saved models, from the config alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, BartConfig, T5Config

import milepost as mp
from milepost.hf import extend, save, show
from tests.hf.tiny import tiny


def without_weights(model: Any, folder: Path) -> Path:
    """A saved folder of which the config alone is left."""
    (save if mp.hf.model.extension.extension_of(model) else type(model).save_pretrained)(model, folder)
    for each in folder.iterdir():
        if each.name != "config.json":
            each.unlink()
    return folder


def test_a_stock_model_is_shown_by_its_equation_and_who_reads_it(tmp_path: Path):
    found = show(without_weights(tiny("llama"), tmp_path))
    assert (found.state, found.transformers, found.trained, found.reached) == ("stock", True, 64, 64)
    (stack,) = found.stacks
    assert stack.now.same_as(mp.Schedule([mp.Scheme(mp.Rope(8), mp.causal)] * 2))
    assert stack.before is None
    assert str(found).splitlines()[:4] == [
        "llama: 2 layers, trained at 64 tokens",
        "  state     stock: milepost changed nothing; transformers alone reads it",
        "",
        "layers 0–1:",
    ]
    assert "turn  Rope(8)" in str(found)


def test_an_extension_that_no_config_says_is_shown_with_what_it_took_the_place_of(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(16), mp.LogN(64))
    found = show(without_weights(model, tmp_path))
    assert str(show(model)) == str(found), "a model in memory and its folder are one"
    assert (found.state, found.transformers, found.trained) == ("extended", False, 64)
    assert "Rerope(16)" in str(found)
    assert "LogN(64)" in str(found)
    assert "state     extended by milepost: milepost.hf.load reads it; transformers alone" in str(found)
    assert "was       Schedule(2 layers; 0–1: Scheme(Rope(8), causal))" in str(found)
    assert found.stacks[0].before is not None
    assert found.to_dict()["read_by"] == ["milepost"]


def test_a_stretch_in_the_words_of_transformers_is_read_by_both(tmp_path: Path):
    found = show(without_weights(extend(tiny("llama"), mp.Yarn(4, trained=64)), tmp_path))
    assert (found.state, found.transformers, found.trained, found.reached) == ("extended", True, 64, 256)
    assert "trained at 64 tokens, reads 256 by its config" in str(found)
    assert found.to_dict()["read_by"] == ["transformers", "milepost"]
    assert "\n  was " not in str(found)


def test_layers_that_agree_are_one_and_those_that_do_not_attend_are_named():
    found = show(AutoConfig.for_model("qwen3_next", num_hidden_layers=8))
    assert found.stacks[0].passed_over == {"linear_attention": [0, 1, 2, 4, 5, 6]}
    assert str(found).startswith("qwen3_next: 2 of 8 layers attend, trained at 32,768 tokens")
    assert "others    layers 0–2, 4–6 do not attend (linear_attention)" in str(found)
    kinds = [each["layers"] for each in show(tiny("gemma3_text")).to_dict()["stacks"][0]["kinds"]]
    assert kinds == [[0], [1]], "a window, and every key"


@pytest.mark.parametrize("config", [T5Config(num_decoder_layers=3), BartConfig(decoder_layers=3)], ids=["t5", "bart"])
def test_an_encoder_and_its_decoder_are_shown_apart(config: Any):
    state = torch.get_rng_state()
    found = show(config)
    assert torch.equal(torch.get_rng_state(), state), "tables are drawn, and nobody's random numbers change"
    assert [(each.name, len(each.now)) for each in found.stacks] == [("encoder", 12 if found.trained else 6),
                                                                     ("decoder", 3)]  # fmt: skip
    assert [each.now[0].is_causal for each in found.stacks] == [False, True]
    assert str(found.to_dict()) == str(show(config.to_dict()).to_dict())


@pytest.mark.parametrize("columns", [None, 80, 118])
@pytest.mark.parametrize("model_type", ["gpt_oss", "gemma2", "qwen3"])
def test_lines_are_as_wide_as_the_terminal(model_type: str, columns: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False) if columns is None else monkeypatch.setenv("COLUMNS", str(columns))
    lines = str(show(extend(tiny(model_type), mp.Rerope(16), mp.LogN(64)))).splitlines()
    assert max(map(len, lines)) <= (columns or 80)


def run(*given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "milepost", "show", *given], capture_output=True, text=True)


def test_the_command_prints_the_same_and_json(tmp_path: Path):
    folder = without_weights(extend(tiny("llama"), mp.Pivot(mp.Rerope(16), 64)), tmp_path / "model")
    done = run(str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(show(folder).to_dict()))
    (tmp_path / "model" / "config.json").write_text("[]")
    done = run(str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    assert "contains a list" in done.stderr
