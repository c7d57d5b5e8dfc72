"""Two processes on one folder: every cell is worked once, and neither deletes what the other writes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.turns import Locks, turns
from milepost.lab.engines.jobs import Jobs
from milepost.lab.engines.local import Local
from milepost.lab.engines.torchrun import Torchrun
from milepost.lab.training.train import read_checkpoint, write_checkpoint
from tests.lab.test_compare import done, tiny
from tests.lab.test_compare import text as text
from tests.lab.test_sweep import SWEEP, numbers, work

FOUR = replace(SWEEP, schemes=("rope", "kerple", "nope", "alibi"), free=False)


@pytest.mark.slow
def test_two_commands_on_one_folder_work_every_cell_once_and_end_with_the_numbers_of_one(text: Path, tmp_path: Path):
    alone, both = tmp_path / "alone", tmp_path / "both"
    done(text, alone, *FOUR.schemes)
    # One cell is kept from them until both are there, and have done all else.
    (last,) = [key for key, settings, *_ in numbers(alone)["cells"] if json.loads(settings)["name"] == "alibi"]
    locks = Locks(both / ".locks")
    assert locks.take(last)
    words = [*FOUR.schemes, "--text", str(text), "--out", str(both), *tiny()]
    command = [sys.executable, "-m", "milepost", "compare", *words]
    logs = [tmp_path / "first", tmp_path / "second"]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(log.open("w")) for log in logs]
        begun = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file) for file in files]
        until = time.monotonic() + 100
        while not all("waiting for it" in log.read_text() for log in logs):
            assert time.monotonic() < until
            time.sleep(0.1)
        locks.release_all()
        assert [each.wait(100) for each in begun] == [0, 0]
    lines = [{line.split(":")[0].split(",")[0] for line in log.read_text().splitlines()} for log in logs]
    worked = Counter(name for said in lines for name in FOUR.schemes if said & {f"train {name}", f"judge {name}"})
    assert worked == Counter(FOUR.schemes), "a cell was worked twice, or by nobody"
    assert numbers(both) == numbers(alone)
    assert len(list(both.glob("*.safetensors"))) == 4


def test_a_cell_that_another_process_has_is_left_to_it_until_it_lets_go(tmp_path: Path):
    """Then this one does it too: the other may have been killed."""
    nope, _ = replace(FOUR, schemes=("nope", "alibi")).cells()
    elsewhere, seen = Locks(tmp_path / ".locks"), list[str]()
    assert elsewhere.take(nope.key)

    def watch(cell: Cell, event: Event) -> None:
        seen.append(cell.name)
        if isinstance(event, Stepped) and event.done:
            elsewhere.release_all()

    work(replace(FOUR, schemes=("nope", "alibi")), tmp_path, watch)
    assert list(dict.fromkeys(seen)) == ["alibi", "nope"]


def test_while_all_that_is_left_is_worked_elsewhere_an_engine_is_asked_to_wait(tmp_path: Path):
    cells = FOUR.cells()[:2]
    elsewhere, here = Locks(tmp_path), Locks(tmp_path)
    assert elsewhere.take(cells[0].key)
    heard: list[int] = []
    found = turns(cells, here, lambda _: set(), heard.append)
    assert next(found) == (cells[1], set())
    assert next(found) is None
    assert next(found) is None
    assert heard == [1], "said once"
    elsewhere.release_all()
    assert list(found) == [(cells[0], set())]


@pytest.mark.parametrize("engine", [Local, Jobs, Torchrun], ids=lambda each: each.__name__)
def test_engines_wait_and_end_where_others_did_everything(engine, tmp_path: Path):
    assert list(engine(tmp_path).run(iter([None]), FOUR.corpus)) == []


def test_what_another_process_did_meanwhile_is_not_done_again(tmp_path: Path):
    cells = FOUR.cells()[:2]
    locks = Locks(tmp_path)
    found = turns(cells, locks, lambda cell: None if cell == cells[0] else set())
    assert [turn and turn[0] for turn in found] == [cells[1]]
    assert list(locks.locks) == [cells[1].key], "the one that is done stays locked"


def test_a_cell_is_free_for_others_as_soon_as_it_is_judged(tmp_path: Path):
    free: dict[str, bool] = {}
    first, second = replace(FOUR, schemes=("nope", "alibi")).cells()

    def watch(cell: Cell, event: Event) -> None:
        if cell == second and not free:
            other = Locks(tmp_path / ".locks")
            free["nope"], free["alibi"] = other.take(first.key), other.take(second.key)
            other.release_all()

    work(replace(FOUR, schemes=("nope", "alibi")), tmp_path, watch)
    assert free == {"nope": True, "alibi": False}


def test_a_run_that_fails_lets_go_of_its_cells(tmp_path: Path):
    def stop(cell: Cell, event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(FOUR, tmp_path, stop)
    other = Locks(tmp_path / ".locks")
    assert all(other.take(cell.key) for cell in FOUR.cells())
    other.release_all()


def test_half_a_checkpoint_of_a_process_that_lives_is_left_alone(tmp_path: Path):
    path = tmp_path / "cell.safetensors"
    parent = os.getppid()
    living = [tmp_path / f".{path.name}.{parent}", tmp_path / f".{path.name}.another-machine.{1 << 30}"]
    for each in living:
        each.mkdir()
    write_checkpoint(path, {"weight": torch.ones(2)}, {"step": "1"})
    assert all(each.exists() for each in living), "another process was writing it"
    assert read_checkpoint(path)[1] == {"step": "1"}
