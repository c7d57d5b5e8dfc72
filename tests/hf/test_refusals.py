"""What a new user gets wrong: each is answered by a sentence that says what to do, and no model is changed."""

from __future__ import annotations

import errno
import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration
from typer.testing import CliRunner

import milepost as mp
from milepost.cli import app
from milepost.hf import asker, choose, export, extend, load, measure, nbce, plan, restore, save
from milepost.hf.model.extension import extension_of
from tests.hf.tiny import SMALL, tiny, tokens

IDS = tokens(1, 300)[0]
QUICK: dict[str, Any] = {"lengths": [64], "last": 4, "windows": 2, "distances": (), "needle": (), "progress": False}


def t5() -> Any:
    return T5ForConditionalGeneration(T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4, vocab_size=48))


def judged(*given: Any, **options: Any) -> Any:
    return measure(*given, **(QUICK | options))


WRONG: dict[str, tuple[type[Exception], Callable[[], object], str]] = {
    "no model to restore": (TypeError, lambda: restore(3), "restore(int): the first argument is a model of"),
    "factors for other pairs": (
        ValueError, lambda: extend(tiny("llama"), mp.LongRope((1.0, 2.0), (1.0, 2.0), 64)),
        "turns 4 pairs of channels: LongRope: 2 factors for 4 pairs of channels; give one for every pair",
    ),
    "no model to save": (TypeError, lambda: save(3, "x"), "save(int): the first argument is a model of transformers"),
    "a number to load": (TypeError, lambda: load(3), "load(3): give a folder that save wrote"),
    "no model to choose for": (TypeError, lambda: choose(3, IDS, to=99), "choose(int): the first argument is a model"),
    "an encoder-decoder to choose for": (
        ValueError, lambda: choose(t5(), IDS, to=99), "choose: this is a t5 model, which reads one text and writes",
    ),
    "no model to measure": (TypeError, lambda: judged(None, IDS), "'stock' is a NoneType; a model of transformers"),
    "a name to measure": (TypeError, lambda: judged("gpt2", IDS), "'stock' is a str; a model of transformers"),
    "an encoder-decoder to measure": (ValueError, lambda: judged(t5(), IDS), "'stock' is a t5 model, which reads one"),
    "no model to ask": (TypeError, lambda: nbce(3, [[2]], [3]), "nbce(int): the first argument is a model"),
    "an encoder-decoder to ask": (ValueError, lambda: nbce(t5(), [[2]], [3]), "nbce: this is a t5 model, which reads"),
    "one context in place of many": (
        TypeError, lambda: nbce(tiny("llama"), "some words", "why?", str), "nbce(contexts=…): this is one text; give a",
    ),
    "no model to answer": (TypeError, lambda: asker(3, None), "asker(int): the first argument is a model"),
    "a number to export": (TypeError, lambda: export(3, "x"), "export(int): give a model of transformers or of the"),
    "the path of a text": (TypeError, lambda: judged(tiny("llama"), Path("a.txt")), "read it first: path.read_text()"),
    "a list of words": (TypeError, lambda: judged(tiny("llama"), ["a", "b"]), "or token ids, integers [n]; given a"),
    "ids of another tokenizer": (
        ValueError, lambda: judged(tiny("llama"), IDS + 40), "and 'stock' knows 48; was the text made into ids by",
    ),
    "one length": (TypeError, lambda: judged(tiny("llama"), IDS, lengths=64), "lengths are whole numbers in a list"),
    "words for lengths": (TypeError, lambda: judged(tiny("llama"), IDS, lengths=["a"]), "lengths must be an integer"),
    "words for distances": (TypeError, lambda: judged(tiny("llama"), IDS, distances=["a"]), "distances must be an"),
    "a depth beyond the end": (
        ValueError, lambda: judged(tiny("llama"), IDS, depths=(2.0,)), "measure(depths=2.0): a depth is a share of the",
    ),
    "parts in a list": (
        TypeError, lambda: extend(tiny("llama"), [mp.Rerope(8), mp.LogN(8)]), "parts are given one by one: extend(",
    ),
    "rope settings": (
        TypeError, lambda: extend(tiny("llama"), {"rope_type": "yarn"}), "a dict; a method is an object, such as Yarn",
    ),
    "a table grown to a word": (
        TypeError, lambda: extend(tiny("gpt2"), to="far"), "extend(to='far'): to must be an integer",
    ),
    "no weights yet": (
        ValueError, lambda: extend(tiny("llama").to("meta"), mp.Rerope(8)), "on the meta device, without weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_it_is_said_what_is_wrong_and_what_to_do(name: str):
    kind, call, says = WRONG[name]
    with pytest.raises(kind, match=re.escape(says)):
        call()


def test_a_window_that_is_too_small_names_what_to_pass():
    with pytest.raises(ValueError, match=r"must hold the 64 tokens that are judged; pass last=\d+, or a larger window"):
        judged(tiny("llama"), IDS, last=64, lengths=[128], windows=2)


# The disk

Usage = namedtuple("Usage", "total used free")


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = extend(tiny("llama"), mp.Rerope(8))
    before = model(tokens()).logits
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
    says = r"the weights need 0\.\d+ GB, and 0\.00 GB are free there; free some, or name a folder on another disk"
    with pytest.raises(OSError, match=says):
        save(model, tmp_path / "inner" / "out")
    assert not (tmp_path / "inner").exists()
    assert torch.equal(model(tokens()).logits, before)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "kein Platz"), RuntimeError("No space left on device (os error 28)")],
    ids=["os", "own"],
)
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_that_load_would_read(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = extend(tiny("llama"), mp.Rerope(8))

    def full(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(type(model), "save_pretrained", full)
    with pytest.raises(OSError, match="no disk space left; free some and save again"):
        save(model, tmp_path)
    assert not (tmp_path / "milepost.json").exists()
    assert extension_of(model) is not None


def test_other_errors_of_saving_are_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = extend(tiny("llama"), mp.Rerope(8))

    def refused(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(type(model), "save_pretrained", refused)
    with pytest.raises(PermissionError, match="not yours"):
        save(model, tmp_path)


# The command line


def said(*command: str) -> str:
    done = CliRunner().invoke(app(), ["extend", *command])
    assert done.exit_code == 2, done.output
    return done.output


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text("one two three " * 400)
    return str(tmp_path / "text.txt")


def test_a_folder_that_is_no_model_or_has_no_tokenizer_is_named(tmp_path: Path, text: str):
    options = ("--to", "128", "--text", text, "--out", str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    assert "the folder has no config.json; it is empty" in said(str(tmp_path / "empty"), *options)
    AutoConfig.for_model("llama", **SMALL).save_pretrained(tmp_path / "config")
    assert "has a config and no weights in safetensors" in said(str(tmp_path / "config"), *options)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL)).save_pretrained(tmp_path / "model")
    words = said(str(tmp_path / "model"), *options)
    assert "there is no tokenizer in it; copy tokenizer.json and tokenizer_config.json" in words
    assert not (tmp_path / "out").exists()


def test_where_nothing_can_be_written_is_noticed_before_measuring(tmp_path: Path, text: str):
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL)).save_pretrained(tmp_path / "model")
    options = (str(tmp_path / "model"), "--to", "128", "--text", text, "--out")
    assert "this is a file; name a folder" in said(*options, text)
    assert "cannot be made" in said(*options, f"{text}/inner")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thing").touch()
    assert "this folder is not empty; name another" in said(*options, str(tmp_path / "used"))


def test_a_target_within_the_trained_length_is_noticed_before_the_weights_are_read(tmp_path: Path, text: str):
    AutoConfig.for_model("llama", **SMALL).save_pretrained(tmp_path / "model")
    words = said(str(tmp_path / "model"), "--to", "32", "--text", text, "--out", str(tmp_path / "out"))
    assert "plan(to=32): llama reads 64 tokens as it is" in words


def test_a_folder_that_is_extended_already_is_refused_by_name(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path / "model")
    (tmp_path / "text.txt").write_text("words")
    given = (str(tmp_path / "model"), "--to", "128", "--text", str(tmp_path / "text.txt"))
    assert "extended already" in " ".join(said(*given, "--out", str(tmp_path / "out")).split())


def test_one_pair_that_stock_gpt_oss_gives_to_all_is_refused():
    yarn = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
    model = tiny("gpt_oss", rope_parameters=yarn | {"partial_rotary_factor": 0.25})
    cos, _ = model.model.rotary_emb(torch.zeros(1), torch.arange(3)[None])
    assert cos.shape[-1] == 1, "one cosine, which is broadcast over the four pairs of a head"
    model(tokens())
    for call in (mp.Scheme.of, lambda its: plan(its, to=256), lambda its: extend(its, through="attend")):
        with pytest.raises(ValueError, match=r"partial_rotary_factor is 0\.25, which leaves one pair"):
            call(model)
