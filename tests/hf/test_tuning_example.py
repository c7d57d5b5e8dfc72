"""The example that tunes on one part of a text and judges on another, run small from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import milepost as mp
from milepost.hf import export
from milepost.lab.training.model import Model, Shape
from tests.examples import example_of

WORDS = "the cat sat on a mat and saw that the rat ran far. " * 40


@pytest.mark.slow
def test_settings_are_tried_and_the_best_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    example = example_of("tune_and_judge")
    torch.manual_seed(0)
    model = Model(Shape(width=16, layers=1, heads=2, hidden=16), mp.Scheme(mp.Rope(8), mp.causal))
    export(model, tmp_path / "model", trained=32)
    (tmp_path / "text").write_text(WORDS)
    sizes = ["--to", "64", "--last", "8", "--windows", "4", "--passage", "4", "--trials", "3", "--no-needles"]
    given = [str(tmp_path / "model"), "--text", str(tmp_path / "text"), "--out", str(tmp_path / "out")]
    rows = {name: row for name, row in example.grid(32).items() if name.endswith("diluted 0.25")}

    def few(trained: int) -> dict[str, str]:
        return rows

    monkeypatch.setattr(example, "grid", few)
    monkeypatch.setattr(example, "BESIDE", ("ReRoPE",))
    example.main([*given, "--dtype", "float32", "--device", "cpu", *sizes])
    lines = capsys.readouterr().out.splitlines()
    names = ["window with sinks", *rows]
    said = [line.split(": ")[0] for line in lines if line.startswith("tried")]
    assert said == [f"tried {n + 1} of {len(names)}, {name}" for n, name in enumerate(names)]
    assert (tmp_path / "out" / "measured.html").exists()
    assert list(json.loads((tmp_path / "out" / "tuned.json").read_text())["tried"]) == names
    # One of those tried stands in the tables of what was judged.
    assert any(line.startswith(f"  {name}  ") for line in lines for name in rows)


def test_recall_comes_before_loss():
    tried = example_of("tune_and_judge").Tried
    stock = tried(2.3, 1.0, 5.0)
    # Inside its length the first is as bad as outside, which is no merit.
    forgets, recalls, dear = tried(2.0, 3.0, 3.0), tried(2.5, 1.0, 1.39), tried(2.6, 1.0, 1.0)
    assert min((forgets, recalls, dear), key=lambda each: each.cost(stock)) is recalls
    assert min((forgets, tried(9.0, 1.0, 2.9)), key=lambda each: each.cost(stock)).outside == 2.9


def test_what_was_tried_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    example = example_of("tune_and_judge")
    known = {name: [2.0 + n, 1.0, 1.0] for n, name in enumerate(["window with sinks", *list(example.grid(32))[:-1]])}
    asked = SimpleNamespace(out=tmp_path, last=8)
    (tmp_path / "tuned.json").write_text(json.dumps({"asked": {"out": str(tmp_path), "last": "8"}, "tried": known}))
    read: list[str] = []

    def tried(model: object, ids: object, name: str, *_: object) -> Any:
        read.append(name)
        return example.Tried(1.0, 1.0, 1.0)

    monkeypatch.setattr(example, "tried", tried)
    last = list(example.grid(32))[-1]
    assert example.tuned(None, None, 32, 64, asked) == last
    assert read == [last]
    # Asked otherwise, everything is.
    asked.last = 16
    example.tuned(None, None, 32, 64, asked)
    assert len(read) == 2 + len(example.grid(32))
