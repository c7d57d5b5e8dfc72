"""One run over two processes computes what one process computes. Run by torchrun, this file is those processes."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milepost.lab.cells.events import Described, Saved, Stepped
from milepost.lab.cells.store import Score, Store
from milepost.lab.engines.torchrun import Torchrun
from milepost.lab.judging.costs import Cost
from milepost.lab.judging.scoring import Judging
from milepost.lab.schemes.named import build
from milepost.lab.sweep.sweep import Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.parallel import Ddp, Fsdp, World, spread_over, world
from milepost.lab.training.recipe import Recipe, Size
from milepost.lab.training.train import Alone, Trainer, read_checkpoint

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHAPE = Shape(width=32, layers=2, heads=2, hidden=64)
# A clip that acts on every other step, and parts: gradients must be whole when it measures them.
# One rate for all: where a gradient is nearly zero, Adam makes steps of its rounding, as long as the rate.
RECIPE = Recipe(length=32, batch=4, steps=12, warmup=4, clip=1.75, accumulate=2, bias_rate=1.0)
HALF, WAYS = 6, ("ddp", "fsdp")
SMALL = Recipe(length=32, batch=4, steps=20, warmup=5)
TEXT = corpus.of_bytes(inspect.getsource(textwrap).encode(), "the source of textwrap")
SWEEP = Sweep(("rope",), Size(SHAPE, SMALL, 64), TEXT, judging=Judging(64, total=2048), free=False, threads=1)


def batches(step: int) -> tuple[Tensor, Tensor]:
    """Rows of bytes, of which the first process's count less than the second's."""
    found = TEXT.batch(0, step, RECIPE.batch, RECIPE.length)
    targets = found[:, 1:].clone()
    targets[0, 5:] = -100
    return found[:, :-1], targets


def trainer(spread: Alone | None = None, scheme: str = "fire", seed: int = 0) -> Trainer:
    """FIRE learns single numbers, tables and layers of its own: everything that may be spread."""
    torch.manual_seed(seed)
    model = Model(SHAPE, build(scheme, SHAPE, RECIPE.length, 64))
    return Trainer(model, RECIPE, batches, "cpu", spread)


def losses(run: Trainer, upto: int = RECIPE.steps) -> list[float]:
    return [float(run.advance()) for _ in range(run.step, upto)]


def trained(folder: Path, name: str, spread: Alone | None = None) -> list[float]:
    """The losses of a run that leaves checkpoints halfway and at its end."""
    run = trainer(spread)
    first = losses(run, HALF)
    run.save(folder / f"{name}-half.safetensors")
    found = first + losses(run)
    run.save(folder / f"{name}.safetensors")
    return found


def resumed(path: Path, spread: Alone | None = None) -> list[float]:
    """The losses after a checkpoint, in a model that began elsewhere."""
    run = trainer(spread, seed=1)
    run.load(path)
    assert run.step == HALF
    return losses(run)


def process(folder: Path) -> None:
    """What each of the two processes does; each has a disk of its own."""
    warnings.filterwarnings("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    torch.set_num_threads(1)
    here, found = world(), {}
    own = folder / f"disk-{here.rank}"
    for way in WAYS:
        found[way] = trained(own, way, spread_over(here, way))
        found[f"{way} after one"] = resumed(own / "one-half.safetensors", spread_over(here, way))
    engine = Torchrun(own, spread="fsdp")
    if here.rank == 0:
        events: list[object] = []
        store = Store(own / "lab.sqlite")
        run(SWEEP, store, engine, lambda _, event: events.append(event))
        store.close()
        found["events"] = [type(event).__name__ for event in events]
    else:
        engine.follow(SWEEP.corpus)
    found["group left"] = not torch.distributed.is_initialized()
    (folder / f"rank-{here.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    process(Path(sys.argv[1]))


@dataclass(frozen=True)
class Runs:
    """What one process found, what each of two found, and the first's disk."""

    one: list[float]
    ranks: list[dict[str, list[float]]]
    disk: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder, threads = tmp_path_factory.mktemp("parallel"), torch.get_num_threads()
    disks = [folder / f"disk-{rank}" for rank in range(2)]
    disks[0].mkdir()
    torch.set_num_threads(1)
    one = trained(disks[0], "one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.lab.test_parallel", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not disks[1].exists(), "a process that is not the first wrote something"
    yield Runs(one, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)], disks[0])
    torch.set_num_threads(threads)


def close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) > 0 and max(abs(x - y) for x, y in zip(a, b, strict=True)) <= 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_have_the_loss_curve_of_one(runs: Runs, way: str):
    assert runs.one[0] - runs.one[-1] > 0.1, "nothing was learned, so nothing was compared"
    for rank in runs.ranks:
        assert close(rank[way], runs.one)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_the_whole_batch(runs: Runs, way: str):
    # Adam forgives a wrong scale of the gradients; its own averages of them do not.
    (one, note), (two, note_) = (read_checkpoint(runs.disk / f"{name}.safetensors") for name in ("one", way))
    assert note == note_
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        if name.endswith("outer.bias"):
            # It moves all scores of a head alike, which changes nothing: its gradient is rounding alone.
            continue
        assert tensor.dtype == two[name].dtype
        assert torch.allclose(tensor, two[name], rtol=1e-4, atol=1e-5 if "model." in name else 1e-7), name


@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_two_processes_goes_on_in_one(runs: Runs, way: str):
    assert close(resumed(runs.disk / f"{way}-half.safetensors"), runs.one[HALF:])


@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_one_process_goes_on_in_two(runs: Runs, way: str):
    for rank in runs.ranks:
        assert close(rank[f"{way} after one"], runs.one[HALF:])


def test_a_sweep_over_two_processes_finds_what_one_finds(runs: Runs, tmp_path: Path):
    (cell,) = SWEEP.cells()
    stores = [Store(tmp_path / "lab.sqlite"), Store(runs.disk / "lab.sqlite")]
    run(SWEEP, stores[0], Local(tmp_path))
    assert [store.progress(cell.key) for store in stores] == [(SMALL.steps, True)] * 2
    assert close(*([loss for _, loss in store.losses(cell.key)] for store in stores))
    here, there = ({(score.protocol, score.length): score.mean for score in store.scores(cell.key)} for store in stores)
    assert here.keys() == there.keys()
    assert close(list(here.values()), list(there.values()))
    for store in stores:
        store.close()


def test_only_the_first_process_tells_events(runs: Runs):
    kinds = [Described, *[Stepped] * 3, Saved, *[Score] * 6, Cost]
    assert runs.ranks[0]["events"] == [kind.__name__ for kind in kinds]
    assert "events" not in runs.ranks[1]
    assert all(rank["group left"] for rank in runs.ranks)


def test_a_process_learns_from_torchrun_who_it_is(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert world() == World(5, 8, torch.device("cpu"))
    assert world("cuda") == World(5, 8, torch.device("cuda:1"))


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert world("cuda") == World(0, 1, torch.device("cuda"))
    assert type(spread_over(world(), "fsdp")) is Alone


def test_a_way_that_does_not_exist_is_refused():
    with pytest.raises(ValueError) as raised:
        spread_over(World(0, 1, torch.device("cpu")), "dp")
    assert str(raised.value) == "spread_over(how='dp'): how must be one of 'ddp', 'fsdp'"


@pytest.mark.parametrize("way", [Ddp, Fsdp])
def test_a_batch_that_cannot_be_shared_is_refused(way: type[Ddp]):
    with pytest.raises(ValueError) as raised:
        trainer(way(World(0, 3, torch.device("cpu"))))
    assert str(raised.value) == (
        "Recipe(batch=4, accumulate=2): 3 processes cannot share a batch evenly; make it a multiple of 6, or start "
        "another number of processes"
    )


def test_a_process_that_reads_other_bytes_is_refused(tmp_path: Path):
    cells = [(cell, set[tuple[str, str, int]]()) for cell in SWEEP.cells()]
    with pytest.raises(ValueError) as raised:
        list(Torchrun(tmp_path).run(cells, corpus.of_bytes(b"other bytes" * 99, "other.txt")))
    assert str(raised.value) == "process 0 reads other bytes than the first (other.txt); give all the same text"
