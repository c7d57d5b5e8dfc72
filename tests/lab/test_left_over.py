"""What a killed process left behind, what was asked for twice, and what need not be said."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from milepost import Scheme, causal
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Trainer, read_checkpoint, write_checkpoint
from tests.lab.test_sweep import SWEEP, work


def test_half_a_checkpoint_of_a_killed_process_is_cleared_away(tmp_path: Path):
    cell = replace(SWEEP, schemes=("kerple",), free=False).cells()[0]
    # No system gives a process such a number.
    left = tmp_path / f".{cell.key}.safetensors.{1 << 30}"
    other = tmp_path / f".another.safetensors.{1 << 30}"
    for each in (left, other):
        each.mkdir()
        (each / ".tmpuqrQys").write_bytes(b"half")
    work(replace(SWEEP, schemes=("kerple",), free=False), tmp_path)
    assert not left.exists()
    assert other.exists()


KILLED = """
import sys, torch
from pathlib import Path
from milepost.lab.training.train import write_checkpoint
write_checkpoint(Path(sys.argv[1]), {"weight": torch.zeros(1 << 26)}, {})
"""


@pytest.mark.slow
def test_a_process_killed_as_it_writes_leaves_nothing_that_stays(tmp_path: Path):
    path = tmp_path / "cell.safetensors"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    while process.poll() is None and not any(each.is_file() for each in tmp_path.rglob("*")):
        time.sleep(0.001)
    process.kill()
    process.wait()
    write_checkpoint(path, {"weight": torch.ones(2)}, {"step": "3"})
    assert [each.name for each in tmp_path.rglob("*")] == ["cell.safetensors"]
    assert read_checkpoint(path)[1] == {"step": "3"}


def test_who_may_read_the_folder_may_read_a_checkpoint(tmp_path: Path):
    plain = tmp_path / "plain"
    plain.touch()
    write_checkpoint(tmp_path / "cell.safetensors", {"weight": torch.ones(2)}, {})
    assert (tmp_path / "cell.safetensors").stat().st_mode == plain.stat().st_mode


def test_a_folder_that_is_gone_is_not_called_a_full_disk(tmp_path: Path):
    with pytest.raises(OSError, match=r"cell.safetensors cannot be written \(.*No such file"):
        write_checkpoint(tmp_path / "gone" / "cell.safetensors", {"weight": torch.ones(2)}, {})


def test_a_scheme_named_twice_is_one_cell():
    assert replace(SWEEP, schemes=("rope", "kerple", "rope")).cells() == SWEEP.cells()


def test_what_torch_says_about_our_choices_is_not_repeated_and_all_else_is():
    """The messages as torch 2.11 words them on a GPU."""
    known = (
        "Mismatch dtype between input and weight: input dtype = c10::BFloat16, weight dtype = float",
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled.",
        "\nOnline softmax is disabled on the fly since Inductor decides to\nsplit the reduction.",
    )
    shape, recipe = Shape(16, 1, 1), Recipe(steps=1)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        Trainer(Model(shape, Scheme(causal)), recipe, lambda _: (torch.zeros(1, 1), torch.zeros(1, 1)))
        for message in (*known, "something new"):
            warnings.warn(message, UserWarning, stacklevel=1)
    assert [str(each.message) for each in heard] == ["something new"]
