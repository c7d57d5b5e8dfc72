"""What a killed process left behind, and what was asked for twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.lab.test_sweep import SWEEP, work


def test_half_a_checkpoint_of_a_killed_process_is_cleared_away(tmp_path: Path):
    cell = replace(SWEEP, schemes=("kerple",), free=False).cells()[0]
    left = tmp_path / f".{cell.key}.safetensors.12345"
    other = tmp_path / ".another.safetensors.12345"
    for each in (left, other):
        each.write_bytes(b"half")
    work(replace(SWEEP, schemes=("kerple",), free=False), tmp_path)
    assert not left.exists()
    assert other.exists()


def test_a_scheme_named_twice_is_one_cell():
    assert replace(SWEEP, schemes=("rope", "kerple", "rope")).cells() == SWEEP.cells()
