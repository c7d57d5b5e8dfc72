"""A sweep on a Ray cluster gives the local engine's numbers, though its workers are killed."""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Died, Event, Saved, Stepped
from milepost.lab.cells.store import Score
from milepost.lab.cells.work import work
from milepost.lab.engines.ray_engine import Ray
from milepost.lab.judging.scoring import Judging
from milepost.lab.schemes import own
from milepost.lab.schemes.own import Source
from milepost.lab.sweep.sweep import Local, Sweep
from milepost.lab.text import corpus
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe, Size

pytestmark = pytest.mark.slow

SIZE = Size(Shape(width=32, layers=2, heads=2, hidden=64), Recipe(length=32, batch=4, steps=20, warmup=5), 64)
TEXT = corpus.of_bytes(inspect.getsource(argparse).encode(), "the source of argparse")
SWEEP = Sweep(("rope", "alibi", "nope"), SIZE, TEXT, judging=Judging(64, total=2048), free=False, threads=1)
ROPE, ALIBI, NOPE = SWEEP.cells()
# A worker has no such file: the text comes with the cell.
MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class HalfAlibi:
    heads: int

    def bend(self, score, batch, head, p, r):
        return score - (p - r).abs().to(score.dtype) / 2
"""
(OWN,) = replace(SWEEP, schemes=("HalfAlibi(heads)",), own=(Source("mine.py", MINE),)).cells()
# As if a GPU had room for two texts at a time.
LARGE = """
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class Large:
    def embed(self, x, index):
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return x
"""
(OVER,) = replace(SWEEP, schemes=("Large()",), own=(Source("large.py", LARGE),)).cells()


def descends(pid: int) -> bool:
    """Whether a process was begun by this one, or by one that was."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def worker_of(cell: Cell) -> int:
    """The process that runs a cell: Ray gives it the name of its task."""
    named: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if command.startswith(f"ray::{cell.name}, seed {cell.seed}") and descends(int(folder.name)):
            named.append(int(folder.name))
    (found,) = named
    return found


@dataclass(frozen=True)
class Runs:
    """What both engines reported, and how Ray's ended."""

    local: list[tuple[Cell, Event]]
    ray: list[tuple[Cell, Event]]
    error: RuntimeError
    folder: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """RoPE's worker is killed in training, ALiBi's while it judges, and NoPE's checkpoint is damaged.

    Checkpoints travel by a folder; in test_ray_cluster.py they have none, and travel by Ray.
    """
    folder, threads = tmp_path_factory.mktemp("ray"), torch.get_num_threads()
    (folder / "ray").mkdir()
    (folder / "ray" / f"{NOPE.key}.safetensors").write_bytes(b"no checkpoint")
    due: dict[Cell, Callable[[Event], bool]] = {
        ROPE: lambda event: isinstance(event, Stepped) and event.step == 10,
        ALIBI: lambda event: isinstance(event, Score),
    }
    found: list[tuple[Cell, Event]] = []

    def watch() -> None:
        ray = Ray(folder / "ray", address="local", checkpoints=str(folder / "shared"))
        for cell, event in ray.run(open_cells(ROPE, ALIBI, NOPE, OWN, OVER), TEXT):
            found.append((cell, event))
            if cell in due and due[cell](event):
                # It waits for its event to be kept, and so stands exactly here.
                os.kill(worker_of(cell), signal.SIGKILL)
                del due[cell]

    with pytest.raises(RuntimeError) as raised:
        watch()
    assert not due, "nobody was killed"
    yield Runs(list(Local(folder).run(open_cells(ROPE, ALIBI, OWN), TEXT)), found, raised.value, folder)
    own.use(())
    torch.set_num_threads(threads)


def open_cells(*cells: Cell) -> list[tuple[Cell, set[tuple[str, str, int]]]]:
    return [(cell, set()) for cell in cells]


def losses(events: list[tuple[Cell, Event]], cell: Cell) -> list[tuple[int, float]]:
    """The losses of a cell, as often as they were reported."""
    return [loss for each, event in events if each == cell and isinstance(event, Stepped) for loss in event.losses]


def scores(events: list[tuple[Cell, Event]], cell: Cell) -> set[str]:
    """Every number of every score, spelled out."""
    return {repr(event) for each, event in events if each == cell and isinstance(event, Score)}


@pytest.mark.parametrize("cell", [ROPE, ALIBI, OWN], ids=lambda cell: cell.name)
def test_ray_gives_the_local_engines_numbers_exactly(runs: Runs, cell: Cell):
    assert dict(losses(runs.ray, cell)) == dict(losses(runs.local, cell))
    assert len(dict(losses(runs.ray, cell))) == SIZE.recipe.steps
    assert scores(runs.ray, cell) == scores(runs.local, cell)
    assert len(scores(runs.ray, cell)) == len(cell.wanted())


def test_a_worker_killed_before_its_first_checkpoint_begins_anew(runs: Runs):
    steps = [step for step, _ in losses(runs.ray, ROPE)]
    assert steps == [*range(10), *range(20)]
    assert [event for cell, event in runs.ray if cell == ROPE and isinstance(event, Died)]


def test_checkpoints_come_by_the_folder_that_was_named_and_none_is_left_there(runs: Runs):
    cells = ROPE, ALIBI, NOPE, OWN
    assert {each.stem for each in (runs.folder / "ray").glob("*.safetensors")} == {cell.key for cell in cells}
    assert list((runs.folder / "shared").rglob("*")) == []


def test_a_worker_killed_after_its_checkpoint_goes_on_from_there(runs: Runs):
    steps = [step for step, _ in losses(runs.ray, ALIBI)]
    assert steps == [*range(20)]
    begun = [event.step for cell, event in runs.ray if cell == ALIBI and isinstance(event, Stepped)]
    assert begun == [0, 10, 20, 20]


def test_an_error_in_one_cell_is_reported_when_the_others_are_done(runs: Runs):
    first, *others = str(runs.error).splitlines()
    second, _ = sorted(others, reverse=True)
    assert first == "2 of 5 cells failed; the others are done and kept; rerun the command to retry:"
    path = runs.folder / "ray" / f"{NOPE.key}.safetensors"
    assert second.startswith(f"  nope, seed 0: ValueError: the checkpoint {path} is damaged"), "the one to delete"
    assert second.endswith("; delete it, and its model will be trained again")


def test_a_worker_that_runs_out_of_memory_says_what_would_fit_as_a_local_run_does(runs: Runs, tmp_path: Path):
    with pytest.raises(RuntimeError) as raised:
        list(Local(tmp_path).run(open_cells(OVER), TEXT))
    message = "the GPU ran out of memory with batches of 4 × 32 bytes in 1 part: --set accumulate=2 fits"
    assert message in str(raised.value)
    assert f"  Large(), seed 0: RuntimeError: {raised.value}" in str(runs.error).splitlines()


def test_the_cluster_that_was_started_is_ended(runs: Runs):
    import ray

    assert runs.ray
    assert not ray.is_initialized()
    assert "RAY_AUTH_MODE" not in os.environ


def test_a_loss_is_reported_before_it_is_saved(tmp_path: Path):
    # A checkpoint of steps whose losses were lost would never let them be computed again.
    threads, path = torch.get_num_threads(), tmp_path / f"{ROPE.key}.safetensors"
    events = work(ROPE, TEXT, tmp_path, "cpu", set())
    assert next(not path.exists() for event in events if isinstance(event, Stepped) and event.done)
    assert next(events) == Saved(SIZE.recipe.steps)
    assert path.exists()
    torch.set_num_threads(threads)


def test_a_share_of_a_gpu_is_asked_of_ray_and_none_where_there_is_no_gpu(tmp_path: Path):
    asked = {"num_cpus": 1, "num_gpus": 0.25}
    assert Ray(tmp_path, "cuda:1", gpus=0.25)._needs(ROPE) == asked
    assert Ray(tmp_path, "cuda")._needs(ROPE) == asked | {"num_gpus": 1.0}
    assert Ray(tmp_path)._needs(ROPE) == asked | {"num_gpus": 0}


def test_what_no_node_can_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 4.0, "GPU": 1.0}}]
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(ValueError) as raised:
        list(Ray(tmp_path, "cuda:1").run(open_cells(ROPE), TEXT))
    assert str(raised.value) == (
        "Ray: a cell asks for 1 CPUs and 1 GPUs of one node, but the nodes of this cluster have 4 and 0; lower "
        "--threads, choose another --device, or add a node"
    )


def test_without_ray_the_message_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError) as raised:
        list(Ray(tmp_path).run(open_cells(ROPE), TEXT))
    assert str(raised.value) == (
        "--engine ray needs ray, which is not installed"
        ": pip install 'milepost[ray]', or in a checkout pip install '.[ray]'"
    )
