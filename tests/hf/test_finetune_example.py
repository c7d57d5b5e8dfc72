"""The example that fine-tunes at length, run small from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import milepost as mp
from milepost.hf import export, load
from milepost.hf.model.extension import extension_of
from milepost.lab.text.corpus import Corpus, of_bytes
from milepost.lab.training.model import Model, Shape
from tests.examples import example_of

pytest.importorskip("peft")

WORDS = b"the cat sat on a mat and saw that the rat ran far. " * 60


@pytest.mark.slow
def test_both_recipes_are_run_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    def small(folder: Path) -> Corpus:
        torch.manual_seed(0)
        model = Model(Shape(width=16, layers=2, heads=2, hidden=16), mp.Scheme(mp.Rope(8), mp.causal))
        export(model, folder, trained=16)
        return of_bytes(WORDS, "words")

    example = example_of("finetune_at_length")
    monkeypatch.setattr(example, "train_small", small)
    example.main(["--out", str(tmp_path), "--to", "32", "--steps", "4"])
    shown = capsys.readouterr().out
    parts = {}
    for preset in ("longchat", "storywriter"):
        assert f"{preset}, tuned" in shown
        parts[preset] = extension_of(load(tmp_path / preset)).schedule[0].parts
    assert parts["longchat"] == (mp.Rope(8, stretch=mp.Interpolate(2.0)), mp.causal)
    assert parts["storywriter"] == (mp.Alibi(2), mp.causal)
