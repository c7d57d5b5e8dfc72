"""A cluster whose nodes share no disk: the local numbers, though a node and the collector are killed."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from milepost.lab.cells import work as at_work
from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Died, Event, Saved, Stepped
from milepost.lab.cells.store import Store
from milepost.lab.command.progress import Watched
from milepost.lab.engines.ray_engine import Ray
from milepost.lab.schemes import own
from milepost.lab.sweep.sweep import Engine, Local, Sweep, Watch, run
from milepost.lab.training.train import read_checkpoint
from tests.lab.test_sweep import SWEEP

pytestmark = pytest.mark.slow

# Such small models would be done before they are saved.
MINE = """
from dataclasses import dataclass
from milepost.lab.cells import work

work.SAVE = 0.0

@dataclass(frozen=True)
class HalfAlibi:
    heads: int

    def bend(self, score, batch, head, p, r):
        return score - (p - r).abs().to(score.dtype) / 2
"""
STEPS = 40
SOURCE = own.Source("mine.py", MINE)
# Disks of its own over the folders of the driver and of Ray, as on another machine.
NODE = """mount --make-rprivate / && mount -t tmpfs none "$1" && mount -t tmpfs none "$2" && shift 2 && exec "$@" """
START = "from ray.scripts.scripts import main; main()"


def can_unshare() -> bool:
    """Whether this user may give a process a file system of its own."""
    try:
        over = tempfile.gettempdir()
        words = ["unshare", "-m", "sh", "-c", 'mount --make-rprivate / && mount -t tmpfs none "$1"', "sh", over]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def processes(node: str, named: str = "") -> list[int]:
    """The processes of a node, or those of that name: whatever a node starts has the mark of the node."""
    found: list[int] = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = f"NODE_OF_A_TEST={node}\0".encode() in (each / "environ").read_bytes()
            if marked and (each / "cmdline").read_text().startswith(named):
                found.append(int(each.name))
    return found


def kill(node: str) -> None:
    """Pull the plug of a node."""
    while found := processes(node):
        for each in found:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.05)


@contextmanager
def cluster(out: Path) -> Iterator[list[str]]:
    """A head without CPUs in this process, and two nodes of one CPU each that do not see `out`."""
    import ray

    # Whether a node is alive is asked more often than on a cluster that is meant to last.
    often: dict[str, Any] = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    nodes = [f"{out}/{number}" for number in range(2)]
    begun: list[subprocess.Popen[bytes]] = []
    # The sockets of Ray stand there, whose paths must be short.
    with pytest.MonkeyPatch.context() as around, tempfile.TemporaryDirectory() as kept:
        around.setenv("RAY_AUTH_MODE", "disabled")
        ray.init("local", num_cpus=0, _temp_dir=kept, _system_config=often, **quiet)
        try:
            address = ray.get_runtime_context().gcs_address
            join = [sys.executable, "-c", START, "start", f"--address={address}", "--num-cpus=1", "--block"]
            for number, node in enumerate(nodes):
                words = [
                    "unshare",
                    "-m",
                    "sh",
                    "-c",
                    NODE,
                    "sh",
                    str(out),
                    kept,
                    *join,
                    f'--resources={{"n{number}": 1}}',
                ]
                env = {**os.environ, "NODE_OF_A_TEST": node, "TMPDIR": kept}
                begun.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            yield nodes
        finally:
            for node in nodes:
                kill(node)
            for each in begun:
                each.wait()
            ray.shutdown()


def work(sweep: Sweep, folder: Path, engine: Engine, watch: Watch | None = None) -> list[tuple]:
    """Run a sweep in a folder; every number that is there then."""
    store = Store(folder / "lab.sqlite")
    try:
        run(sweep, store, engine, watch)
    finally:
        store.close()
    db = sqlite3.connect(folder / "lab.sqlite")
    found = [row for table in ("losses", "scores") for row in db.execute(f"SELECT * FROM {table}")]
    db.close()
    return sorted(found, key=str)


@dataclass
class Found:
    """What was seen of a sweep on the cluster, and what it left."""

    local: list[tuple]
    ray: list[tuple] = field(default_factory=list)
    events: list[tuple[Cell, Event]] = field(default_factory=list)
    log: str = ""
    seen: list[list[str]] = field(default_factory=list)
    collectors: list[int] = field(default_factory=list)
    folders: tuple[Path, Path] = (Path(), Path())

    def losses(self, name: str) -> list[int]:
        """The steps whose losses were reported, as often as they were."""
        steps = [event for cell, event in self.events if cell.name == name and isinstance(event, Stepped)]
        return [step for event in steps for step, _ in event.losses]


def collector() -> int:
    """The process of the collector, which is on the head's node."""
    (found,) = processes(os.environ["NODE_OF_A_TEST"], "ray::Post")
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """Stopped here after its first checkpoint, a sweep goes on where no node sees this disk."""
    if not can_unshare():
        pytest.skip("unshare -m: this user may not mount; run as root")
    folder, threads = tmp_path_factory.mktemp("cluster"), torch.get_num_threads()
    out, alone = folder / "out", folder / "alone"
    for each in (out, alone):
        each.mkdir()
    with pytest.MonkeyPatch.context() as around:
        around.setattr(at_work, "SAVE", 0.0)
        around.setenv("NODE_OF_A_TEST", f"{out}/head")
        recipe = replace(SWEEP.size.recipe, steps=STEPS)
        size = replace(SWEEP.size, recipe=recipe)
        sweep = replace(SWEEP, schemes=("HalfAlibi(heads)", "rope"), size=size, free=False, own=(SOURCE,))
        yield on_cluster(sweep, out, alone)
    own.use(())
    torch.set_num_threads(threads)


def on_cluster(sweep: Sweep, out: Path, alone: Path) -> Found:
    import ray

    def stop(cell: Cell, event: Event) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    said = io.StringIO()
    watched = Watched(sweep.cells(), Console(file=said, width=200))

    def watch(cell: Cell, event: Event) -> None:
        found.events.append((cell, event))
        watched(cell, event)
        # Whose event this is waits until it is kept, and so stands exactly here.
        if cell.name == "HalfAlibi(heads)" and event == Saved(20):
            (node,) = [node for node in nodes if processes(node, f"ray::{cell.called}")]
            kill(node)
        if cell.name == "rope" and isinstance(event, Stepped) and event.step == 10:
            found.collectors.append(collector())
            os.kill(found.collectors[0], signal.SIGKILL)
        if cell.name == "rope" and isinstance(event, Stepped) and event.step == STEPS:
            found.collectors.append(collector())

    with cluster(out) as nodes:
        # While they start.
        found = Found(work(sweep, alone, Local(alone)), folders=(out, alone))
        with suppress(KeyboardInterrupt):
            work(sweep, out, Local(out), stop)
        look = ray.remote(lambda path: os.listdir(path))
        looks = [look.options(resources={f"n{number}": 1}).remote(str(out)) for number in range(len(nodes))]
        found.seen = ray.get(looks, timeout=120)
        found.ray = work(sweep, out, Ray(out), watch)
    found.log = said.getvalue()
    return found


def test_no_node_sees_the_folder_of_the_driver(found: Found):
    assert found.seen == [[], []]
    assert len(list(found.folders[0].iterdir())) >= 3


def test_the_numbers_are_the_local_ones(found: Found):
    assert found.ray == found.local


def test_checkpoints_are_on_the_disk_of_the_driver(found: Found):
    out, alone = ({each.name: read_checkpoint(each) for each in at.glob("*.safetensors")} for at in found.folders)
    assert len(out) == 2
    for name, (tensors, notes) in alone.items():
        assert out[name][1] == notes
        assert all(torch.equal(tensor, out[name][0][key]) for key, tensor in tensors.items())
    assert not list(found.folders[0].glob(".*.safetensors.*")), "half a checkpoint was left"


def test_a_node_that_is_killed_is_replaced_from_its_last_checkpoint_and_the_log_says_so(found: Found):
    assert found.losses("HalfAlibi(heads)") == [*range(10, STEPS)], "a step was made twice, or lost"
    assert [type(event) for cell, event in found.events if isinstance(event, Died)] == [Died]
    lines = [line for line in found.log.splitlines() if line.startswith(("HalfAlibi", "train HalfAlibi"))]
    first = next(n for n, line in enumerate(lines) if line == "train HalfAlibi(heads): resumes at step 10 of 40")
    died = next(n for n, line in enumerate(lines) if line.endswith("; another worker resumes from its last checkpoint"))
    again = next(n for n, line in enumerate(lines) if line == "train HalfAlibi(heads): resumes at step 20 of 40")
    assert first < died < again


def test_no_more_cells_are_worked_at_a_time_than_there_are_cpus(found: Found):
    # One node is left, with one CPU. A worker that waits for an answer keeps its own.
    names = [cell.name for cell, event in found.events]
    died = next(n for n, (_, event) in enumerate(found.events) if isinstance(event, Died))
    after = names[died + 1 :]
    again = after.index("HalfAlibi(heads)")
    assert "rope" not in after[again:], "two cells took turns on one CPU"


def test_a_collector_that_is_killed_loses_nothing_and_repeats_nothing(found: Found):
    first, second = found.collectors
    assert first != second, "nobody was killed"
    assert found.losses("rope") == [*range(STEPS)]
