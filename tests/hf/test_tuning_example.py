"""The example that tunes on one part of a text and judges on another, run small from end to end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

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
    rows = {name: row for name, row in example.grid(32).items() if name.endswith("0.25")}

    def few(trained: int) -> dict[str, str]:
        return rows

    monkeypatch.setattr(example, "grid", few)
    monkeypatch.setattr(example, "BESIDE", ("ReRoPE",))
    example.main([*given, "--dtype", "float32", "--device", "cpu", *sizes])
    lines = capsys.readouterr().out.splitlines()
    tried = {line.split(": ")[0]: float(line.split(": ")[1].split()[0]) for line in lines if line.startswith("tried")}
    assert list(tried) == [f"tried {name}" for name in rows]
    assert (tmp_path / "out" / "measured.html").exists()
    # One of those tried stands in the tables of what was judged.
    assert any(line.startswith(f"  {name}  ") for line in lines for name in rows)


@pytest.mark.slow
def test_layers_that_look_far_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = example_of("tune_and_judge")
    torch.manual_seed(0)
    model = Model(Shape(width=16, layers=2, heads=2, hidden=16), mp.Scheme(mp.Rope(8), mp.causal))
    export(model, tmp_path / "model", trained=32)
    (tmp_path / "text").write_text(WORDS)
    example.BESIDE = ()
    example.main([
        str(tmp_path / "model"), "--text", str(tmp_path / "text"), "--out", str(tmp_path / "out"), "--by-layer",
        "--to", "64", "--last", "8", "--windows", "4", "--passage", "4", "--trials", "3", "--no-needles",
        "--dtype", "float32", "--device", "cpu",
    ])  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    names = [line.removeprefix("tried ").split(": ")[0] for line in lines if line.startswith("tried")]
    assert names[:2] == ["layer 0", "layer 1"]
    assert sum(name.endswith("open in all") for name in names) == 3
    assert any(line.startswith("  ReRoPE") and "open in" in line for line in lines)


def test_a_layer_that_is_open_differs_in_its_far_keys_alone(tmp_path: Path):
    example = example_of("tune_and_judge")
    model = Model(Shape(width=16, layers=3, heads=2, hidden=16), mp.Scheme(mp.Rope(8), mp.causal))
    export(model, tmp_path / "model", trained=32)
    given = SimpleNamespace(config=AutoConfig.from_pretrained(tmp_path / "model"))
    made = example.opened(given, 32, 30, [1], 2.0)
    kinds = [made[n].answering("place")[0] for n in range(3)]
    assert kinds == [
        mp.Dilute(mp.Rerope(30, 8), 32, 2.0),
        mp.Dilute(mp.Pivot(mp.Rerope(30, 8), 32, 0.25), 32, 0.5),
        mp.Dilute(mp.Rerope(30, 8), 32, 2.0),
    ]
