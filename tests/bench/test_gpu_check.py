"""The run on a GPU reads what its parts wrote, whole or cut off."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from benchmarks import gpu_check

from tests.bench.test_page import report


def test_tests_are_counted_alone_and_in_several_processes():
    found = gpu_check.tests_in(
        "collected 3 items\n"
        "tests/a.py::test_one[x-y] PASSED [ 33%]\n"
        "[gw1] [ 66%] FAILED tests/a.py::test_two[a b] \n"
        "[gw0] [ 99%] SKIPPED tests/a.py::test_three\n"
        "tests/a.py::test_four "
    )
    assert found["counts"] == {"PASSED": 1, "FAILED": 1, "SKIPPED": 1}
    assert found["failed"] == ["tests/a.py::test_two[a b]"]
    assert found["collected"] == ["collected 3 items"]


def test_calls_of_the_fuzz_are_added_up():
    text = (
        "=== process 0\n10 calls, 0 wrong\n20 calls, 1 wrong\n=== process 1\ncall 3: T5 off by 0.3\n10 calls, 1 wrong\n"
    )
    found = gpu_check.calls_in(text)
    assert (found["calls"], found["wrong"], found["lines"]) == (30, 1, ["call 3: T5 off by 0.3"])


def test_figures_and_missed_targets_are_in_the_summary(tmp_path: Path):
    report().write(tmp_path / "bench.json")
    found = gpu_check.tables_in(tmp_path / "bench.json")
    assert found["tables"]["attention: A, b4 h16"]["T5"] == {"forward": [3.0, "ms", 1.5]}
    assert found["missed"] == [
        "rotary: q and k: milepost, graph: 0.800, target 0.950",
        "attention: A, b4 h16: T5, forward: 1.500, target 1.400",
    ]  # fmt: skip
    assert found["failed"] == ["attention: A, b4 h16: CoPE: forward: out of memory"]
    gpu_check.write(tmp_path, {"timing": found, "tests": {"counts": {"PASSED": 1}, "failed": ["one"]}, "seconds": 3})
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "  - T5: forward 3.0 ms (1.5×)" in text
    assert "- failed: 1\n  - one" in text


def test_a_part_is_stopped_with_its_children_and_its_logs_are_joined(tmp_path: Path):
    words = [sys.executable, "-uc", "import subprocess as s; print('begun'); s.run(['sleep', '60'])"]
    part = gpu_check.Part("fuzz", [words, words], tmp_path)
    until = time.monotonic() + 20
    while part.text().count("begun") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    part.stop()
    assert not part.running()
    part.join_logs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fuzz.log"]
    assert part.text().count("begun") == 2


@pytest.mark.parametrize("tiny", [False, True])
def test_every_command_names_files_that_are_there(tiny: bool):
    for commands in gpu_check.commands(tiny).values():
        for words in commands:
            for word in " ".join(words).replace("'", "").replace(";", "").split():
                assert not word.startswith("tests/") or (gpu_check.ROOT / word).is_file()
