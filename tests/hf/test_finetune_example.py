"""The example that fine-tunes at length, run small from end to end, with low-rank weights of its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import milepost as mp
from milepost.hf import export, load
from milepost.hf.model.extension import extension_of
from milepost.lab.training.model import Model, Shape
from tests.examples import example_of

WORDS = "the cat sat on a mat and saw that the rat ran far. " * 200


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return example_of("finetune_at_length")


def test_low_rank_weights_start_at_nothing_and_are_merged(example: ModuleType):
    torch.manual_seed(0)
    base, x = nn.Linear(6, 5), torch.randn(3, 6)
    before = base(x)
    lora = example.Lora(base, 2)
    assert torch.equal(lora(x), before)
    lora.up.data.normal_()
    beside = lora(x)
    assert (beside - before - x @ lora.down.T @ lora.up.T).abs().max() < 1e-6
    assert lora.merged() is base
    assert (base(x) - beside).abs().max() < 1e-6


def test_both_recipes_lower_the_loss_and_are_saved(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    torch.manual_seed(0)
    model = Model(Shape(width=16, layers=2, heads=2, hidden=16), mp.Scheme(mp.Rope(8), mp.causal))
    export(model, tmp_path / "model", trained=16)
    (tmp_path / "text").write_text(WORDS)
    sizes = ["--to", "32", "--steps", "6", "--judged", "2", "--rank", "2", "--rate", "0.02", "--device", "cpu"]
    given = [str(tmp_path / "model"), "--text", str(tmp_path / "text"), "--out", str(tmp_path / "out")]
    example.main([*given, *sizes])
    lines = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    losses = {name.strip(): float(long) for name, _, long in lines}
    assert list(losses) == ["as it was", "longchat, before tuning", "longchat, after 6 steps",
                            "storywriter, before tuning", "storywriter, after 6 steps"]  # fmt: skip
    for recipe in ("longchat", "storywriter"):
        assert losses[f"{recipe}, after 6 steps"] < losses[f"{recipe}, before tuning"]
    parts = {
        each: extension_of(load(tmp_path / "out" / each)).schedule[0].parts for each in ("longchat", "storywriter")
    }
    assert parts["longchat"] == (mp.Rope(8, stretch=mp.Interpolate(2.0)), mp.causal)
    assert parts["storywriter"] == (mp.Alibi(2), mp.causal)


def test_a_model_without_a_text_is_refused(example: ModuleType):
    with pytest.raises(SystemExit):
        example.options_of(["folder"])
