"""Several cells at a time on one machine: the same numbers, whoever dies."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.store import Store
from milepost.lab.engines.jobs import Jobs, _work
from milepost.lab.judging.scoring import Judging
from milepost.lab.sweep.sweep import Engine, Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe, Size

pytestmark = pytest.mark.slow

TEXT = corpus.of_bytes(bytes(n * n % 251 for n in range(9000)), "squares")
SIZE = Size(Shape(16, 1, 2, hidden=16), Recipe(length=16, batch=2, steps=40, rate=1e-2, warmup=2), 32)
SWEEP = Sweep(("rope", "kerple", "nope"), SIZE, TEXT, judging=Judging(32, total=128, ends=3), threads=1, free=False)


def work(folder: Path, engine: Engine, watch=None) -> list[tuple]:
    """Run the sweep in a folder; every number it left there."""
    store = Store(folder / "lab.sqlite")
    try:
        run(SWEEP, store, engine, watch)
    finally:
        store.close()
    return numbers(folder)


def numbers(folder: Path) -> list[tuple]:
    db = sqlite3.connect(folder / "lab.sqlite")
    tables = "SELECT * FROM losses", "SELECT * FROM scores"
    found = [row for table in tables for row in db.execute(table)]
    db.close()
    return sorted(found, key=str)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """The numbers of one cell after the other."""
    folder = tmp_path_factory.mktemp("alone")
    return work(folder, Local(folder))


def test_two_at_a_time_give_the_numbers_of_one_after_the_other(alone: list[tuple], tmp_path: Path):
    together: list[set[int]] = []
    names: list[str] = []

    def watch(cell: Cell, event: Event) -> None:
        names.append(cell.name)
        together.append({int(str(child.pid)) for child in active_children()})

    assert work(tmp_path, Jobs(tmp_path, count=2), watch) == alone
    assert {len(each) for each in together} >= {2}
    assert set(names) == {"rope", "kerple", "nope"}


def test_a_process_that_dies_is_named_and_the_others_are_done(alone: list[tuple], tmp_path: Path):
    killed: list[str] = []

    def watch(cell: Cell, event: Event) -> None:
        if cell.name == "kerple" and isinstance(event, Stepped) and event.step == 20 and not killed:
            killed.append(cell.name)
            # The second of two was started last.
            os.kill(int(str(max(child.pid or 0 for child in active_children()))), signal.SIGKILL)

    with pytest.raises(
        RuntimeError, match=r"1 of 3 cells failed; .*rerun the command to retry:\n  (kerple|rope|nope),"
    ):
        work(tmp_path, Jobs(tmp_path, count=2), watch)
    assert killed
    assert len(numbers(tmp_path)) < len(alone)
    assert work(tmp_path, Jobs(tmp_path, count=2)) == alone


def test_an_error_inside_is_told_in_its_own_words(tmp_path: Path):
    cell = SWEEP.cells()[0]
    (tmp_path / f"{cell.key}.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(
        RuntimeError, match=rf"1 of 3 cells failed.*\n  rope, seed 0: ValueError: .*{cell.key}.*damaged"
    ):
        work(tmp_path, Jobs(tmp_path, count=3))


def test_where_the_first_process_is_killed_the_others_end(tmp_path: Path):
    (tmp_path / "sweep.py").write_text(
        "from pathlib import Path\n"
        "from tests.lab.test_jobs import Jobs, work\n"
        "if __name__ == '__main__':\n"
        f"    folder = Path({str(tmp_path)!r})\n"
        "    work(folder, Jobs(folder, count=2), lambda *event: print('on', flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "sweep.py")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SWEEP_OF": str(tmp_path)},
    ) as begun:
        assert begun.stdout is not None
        assert begun.stdout.readline() == b"on\n"
        assert len(_of(tmp_path)) >= 3
        begun.kill()
    until = time.monotonic() + 60
    while left := _of(tmp_path):
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.2)


def _of(folder: Path) -> list[str]:
    """Processes that were started for this folder."""
    found: list[str] = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"SWEEP_OF={folder}".encode() in (each / "environ").read_bytes():
                found.append(each.name)
        except OSError:
            continue
    return found


def test_a_cell_waits_until_each_event_is_kept(tmp_path: Path):
    class Pipe:
        said: ClassVar[list[str]] = []

        def send(self, event: Event | None) -> None:
            self.said.append("done" if event is None else "told")

        def recv(self) -> None:
            self.said.append("kept")

    _work(cast("Any", Pipe()), SWEEP.cells()[0], set(), TEXT, tmp_path, "cpu")
    assert Pipe.said == ["told", "kept"] * (len(Pipe.said) // 2) + ["done"]
    assert len(Pipe.said) > 10
