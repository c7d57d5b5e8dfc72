"""`milepost extend`: candidates measured, the best kept, saved and read again."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

import milepost as mp
from milepost.cli import app
from milepost.hf import choose, extend, load
from milepost.hf.files import small
from milepost.hf.model.extension import extension_of
from milepost.lab.text.corpus import of_bytes
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe, Size

LETTERS = string.ascii_lowercase + " ."
WORDS = "the cat sat on a mat and saw that the rat ran far. " * 40


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, max_position_embeddings=32, **sizes, **options)).eval()


def ids() -> torch.Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in WORDS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of letters, as users have one on a disk."""
    path = tmp_path_factory.mktemp("model")
    llama().save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({letter: n for n, letter in enumerate(LETTERS)}, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


def test_the_best_that_sees_every_key_is_chosen_and_the_model_is_as_it_was():
    model = llama()
    before, config, state = model(ids()[None, :50]).logits, model.config, torch.get_rng_state()
    found = choose(model, ids(), to=64, windows=4, last=8, progress=False)
    assert all(each.config is config for each in model.modules() if hasattr(each, "config"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model(ids()[None, :50]).logits, before)
    assert extension_of(model) is None
    nats = {name: found.measured.nats[name][64].mean for name in found.measured.rows}
    able = {name: each for name, each in nats.items() if name not in ("stock", *found.measured.trivial)}
    seeing = {name for name in able if not any(hasattr(part, "see") for part in plan_of(model)[name].parts)}
    assert found.best.name == min(seeing, key=able.__getitem__)
    assert len(able) > 5
    assert "best that sees every key at 64" in str(found)


def plan_of(model: Any) -> Any:
    from milepost.hf import plan

    return plan(model.config, 64)


def test_one_command_measures_saves_and_reports(folder: Path, tmp_path: Path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(WORDS)
    command = ["extend", str(folder), "--to", "64", "--text", str(text), "--out", str(out)]
    command += ["--windows", "3", "--last", "8", "--try", "YaRN", "--try", "ReRoPE, pivot"]
    done = CliRunner().invoke(app(), command)
    assert done.exit_code == 0, done.output
    assert f"saved: {out}" in done.output
    assert {"report.html", "report.json", "config.json"} <= {each.name for each in out.iterdir()}
    model = load(out)
    kept = extension_of(model)
    assert kept is not None
    parts = kept.schedule[0].parts
    assert any(isinstance(part, mp.Pivot) for part in parts) or parts[0].stretch is not None
    again = CliRunner().invoke(app(), command)
    assert again.exit_code != 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--to": "16"}, "plan(to=16): llama reads"),
        ({"--try": "Yarm"}, "no candidate is called 'Yarm'; there are"),
        ({"--to": "100000"}, "tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    change: dict[str, str], says: str, folder: Path, tmp_path: Path
):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(WORDS)
    options = {"--to": "64", "--text": str(text), "--out": str(out), "--windows": "3", "--last": "8"} | change
    done = CliRunner().invoke(app(), ["extend", str(folder), *(each for pair in options.items() for each in pair)])
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)
    assert not out.exists()


def test_extend_chooses_by_measuring():
    model = llama()
    extend(model, mp.Yarn(2, trained=32))
    assert extend(model, to=64, text=ids(), windows=4, last=8, progress=False) is model
    best = choose(llama(), ids(), to=64, windows=4, last=8, progress=False).best
    assert extension_of(model).schedule.same_as(extension_of(extend(llama(), *best.parts)).schedule)


def test_measuring_leaves_an_extended_model_as_it_was():
    model = extend(llama(), mp.Yarn(2, trained=32), mp.LogN(32))
    before = model(ids()[None, :50]).logits
    names = ["YaRN", "ReRoPE, pivot"]
    found = choose(model, ids(), to=64, names=names, windows=4, last=8, progress=False)
    alone = choose(llama(), ids(), to=64, names=names, windows=4, last=8, progress=False)
    assert found.measured.nats["stock"][64].mean == pytest.approx(alone.measured.nats["stock"][64].mean)
    assert torch.equal(model(ids()[None, :50]).logits, before)
    with pytest.raises(ValueError, match="tokens"):
        choose(model, ids()[:70], to=64, windows=9, last=8, progress=False)
    assert torch.equal(model(ids()[None, :50]).logits, before)


def test_dropout_is_off_while_choosing_and_back_after():
    model = llama(attention_dropout=0.5).train()
    model.model.layers[0].eval()
    one, two = (choose(model, ids(), to=64, names=["YaRN"], windows=4, last=8, progress=False) for _ in range(2))
    assert one.measured.nats["YaRN"][64].values == two.measured.nats["YaRN"][64].values
    assert [each.training for each in model.model.layers] == [False, True]
    assert model.training


def test_without_a_model_one_is_trained_on_the_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = Size(Shape(width=16, layers=1, heads=2, hidden=16), Recipe(length=16, batch=2, steps=3), longest=64)
    monkeypatch.setitem(small.SIZES, small.SMALL, size)
    monkeypatch.setattr(small, "of_python", lambda: of_bytes(WORDS.encode() * 4, "forty cats"))
    command = ["extend", "--to", "64", "--out", str(tmp_path / "out"), "--windows", "3", "--try", "YaRN"]
    done = CliRunner().invoke(app(), command)
    assert done.exit_code == 0, done.output
    # What the command judges by itself fits into the window of however short a model.
    assert json.loads((tmp_path / "out" / "report.json").read_text())["last"] == 8
    assert "trained a small model of bytes on forty cats" in done.output
    model = load(tmp_path / "out")
    assert extension_of(model).schedule[0].parts[0] == mp.Rope(8, stretch=mp.Yarn(4.0, 16))


def test_a_model_without_a_text_or_a_length_is_asked_for_both(folder: Path, tmp_path: Path):
    done = CliRunner().invoke(app(), ["extend", str(folder), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "give --to N and --text FILE as well" in done.output
