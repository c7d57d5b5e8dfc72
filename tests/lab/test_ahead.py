"""A model of language is asked for the next byte, so nothing that could read it is trained or judged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import milepost as mp
from milepost.lab.schemes.named import build, hides_ahead, refuse_ahead
from milepost.lab.training.model import Model, Shape
from tests.lab.test_sweep import SWEEP, work

SHAPE = Shape(16, 2, 2)
AHEAD = {
    "Rope(dim) + everything": "everything",
    "everything": "everything",
    "Rope(dim) + ~causal": "~causal",
    "Rope(dim) + window(8, ahead=2)": "window(8, ahead=2)",
    "Rope(dim) + chunks(8)": "chunks(8)",
    "Rope(dim) + sinks(4)": "sinks(4)",
    "Rope(dim) + (causal | sinks(4))": "causal | sinks(4)",
    "SplitAlibi(heads) + everything": "everything",
    "Rope(dim) + chunks(8) + sinks(4)": "chunks(8) and sinks(4)",
}
BEHIND = [
    "Rope(dim)", "rope", "hwfa", "window-rope", "SplitAlibi(heads)", "Rope(dim) + window(8)",
    "Rope(dim) + Stream(2, 6)", "Rope(dim) + (causal & chunks(8))", "Rope(dim) + chunks(8) + causal",
    "Rope(dim) + (causal & (window(4) | sinks(2)))", "Rope(dim) + causal + everything",
    "Rope(dim) + (causal & ~window(2))",
]  # fmt: skip


def reads_ahead(text: str) -> bool:
    """Whether a byte changes what the model says before it."""
    torch.manual_seed(0)
    model = Model(SHAPE, build(text, SHAPE, 16, 64)).double()
    tokens = torch.randint(256, (1, 16))
    with torch.no_grad():
        said = model(tokens)
        for place in range(1, 16):
            other = tokens.clone()
            other[0, place] ^= 1
            if float((model(other) - said)[:, :place].abs().max()):
                return True
    return False


@pytest.mark.parametrize("text", [*AHEAD, *BEHIND])
def test_what_is_refused_is_what_reads_the_answer(text: str):
    assert reads_ahead(text) is (text in AHEAD)
    schedule = build(text, SHAPE, 16, 64)
    if text in AHEAD:
        with pytest.raises(ValueError, match="sees ahead"):
            refuse_ahead(schedule, text)
    else:
        refuse_ahead(schedule, text)


@pytest.mark.parametrize(("text", "seen"), AHEAD.items())
def test_a_scheme_that_sees_ahead_is_refused_before_anything_is_trained(text: str, seen: str, tmp_path: Path):
    message = (
        f"the scheme {text!r} sees ahead ({seen}), so a model that is asked for the next token could read it; leave "
        f"{seen} out, which makes it causal, or write causal & ({seen})"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        work(replace(SWEEP, schemes=("rope", text)), tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("text", ["Rope(dim) + everything", "Rope(dim) + chunks(8)", "Rope(dim) + ~causal"])
def test_a_row_that_sees_ahead_is_refused_before_anything_is_trained(text: str, tmp_path: Path):
    with pytest.raises(ValueError, match=f"^the row {re.escape(repr(text))} sees ahead"):
        work(replace(SWEEP, schemes=("rope",), rows=(("rope", text),)), tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_one_layer_that_sees_ahead_is_enough():
    rope = mp.Scheme(mp.Rope(8), mp.causal)
    with pytest.raises(ValueError, match=r"sees ahead \(everything\)"):
        refuse_ahead(mp.Schedule([rope, mp.Scheme(mp.Rope(8), mp.everything)]), "mixed")
    assert [hides_ahead(part) for part in rope.parts] == [False, True]


def test_tasks_where_tokens_look_ahead_still_see_everything():
    cells = replace(SWEEP, schemes=("rope",), tasks=("parity-check",)).cells()
    assert [cell.task for cell in cells] == ["", "parity-check"]
