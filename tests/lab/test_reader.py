"""A model that is not the lab's own: trained and judged as its own are, on the same batches and the same windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.store import Store
from milepost.lab.cells.work import load
from milepost.lab.engines.jobs import Jobs
from milepost.lab.sweep.search import cells_of_rates, rounds_of_rates, with_rates
from milepost.lab.sweep.sweep import Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.model import Model
from milepost.lab.training.reader import Reader
from tests.lab.test_sweep import SWEEP, TEXT, often, work


class Twin(Reader):
    """The lab's own model, of which nothing is known but what a reader must answer."""

    def __init__(self, hidden: Model) -> None:
        super().__init__()
        self.hidden = hidden

    def states(self, tokens: Tensor) -> Tensor:
        return self.hidden.states(tokens)

    def logits(self, states: Tensor) -> Tensor:
        return self.hidden.logits(states)

    def learned(self) -> Iterable[nn.Parameter]:
        return self.hidden.learned()

    def biases(self) -> Iterable[nn.Parameter]:
        return self.hidden.biases()

    def uncompiled(self) -> Reader:
        self.hidden.uncompiled()
        return self


@dataclass(frozen=True)
class TwinCell(Cell):
    """A cell that trains a twin."""

    maker: str = "twin"

    def model(self) -> Reader:
        return Twin(make(self))


class TwinSweep(Sweep):
    """The same sweep with a twin in each cell."""

    def cells(self) -> list[Cell]:
        return [TwinCell(**{each.name: getattr(cell, each.name) for each in fields(cell)}) for cell in super().cells()]


ASKED = replace(SWEEP, schemes=("kerple", "rope"), free=False)
TWINS = TwinSweep(**{each.name: getattr(ASKED, each.name) for each in fields(ASKED)})


@pytest.fixture(autouse=True, scope="module")
def _often():
    with pytest.MonkeyPatch.context() as patch:
        often(patch)
        yield


def numbers(asked: Sweep, folder: Path) -> list[tuple[object, ...]]:
    """Every loss and every score of a sweep, with all its windows, but for the keys."""
    store = Store(folder / "lab.sqlite")
    found = [
        (
            store.losses(cell.key),
            [replace(score, cell="") for score in store.scores(cell.key)],
            store.progress(cell.key),
        )
        for cell in asked.cells()
    ]
    store.close()
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """The numbers of the lab's own models."""
    folder = tmp_path_factory.mktemp("own")
    work(ASKED, folder)
    return numbers(ASKED, folder)


def test_its_losses_and_windows_are_those_of_the_labs_own_model(own: list[tuple[object, ...]], tmp_path: Path):
    # KERPLE learns biases, at a rate of their own: were they not known as such, the losses would differ.
    work(TWINS, tmp_path)
    assert numbers(TWINS, tmp_path) == own
    assert work(TWINS, tmp_path) == []


def test_stopped_it_goes_on_to_the_same_numbers(own: list[tuple[object, ...]], tmp_path: Path):
    def stop(cell: Cell, event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(TWINS, tmp_path, stop)
    work(TWINS, tmp_path)
    assert numbers(TWINS, tmp_path) == own


@pytest.mark.slow
def test_it_travels_to_other_processes(own: list[tuple[object, ...]], tmp_path: Path):
    store = Store(tmp_path / "lab.sqlite")
    run(TWINS, store, Jobs(tmp_path, count=2))
    store.close()
    assert numbers(TWINS, tmp_path) == own


def test_it_is_another_cell_than_the_labs_own():
    assert not {cell.key for cell in TWINS.cells()} & {cell.key for cell in ASKED.cells()}
    other = [replace(cell, maker="another") for cell in TWINS.cells()]  # pyright: ignore
    assert not {cell.key for cell in TWINS.cells()} & {cell.key for cell in other}


def test_its_rates_are_sought_in_the_same_grid(tmp_path: Path):
    third = corpus.Corpus(TEXT.train[:-400], TEXT.test, TEXT.source, TEXT.train[-400:])
    asked, twins = (replace(each, schemes=("rope",), corpus=third, search=3) for each in (ASKED, TWINS))
    assert [cell.recipe for cell in cells_of_rates(twins)] == [cell.recipe for cell in cells_of_rates(asked)]
    assert all(isinstance(cell, TwinCell) for cell in cells_of_rates(twins))
    chosen: list[object] = []
    for name, sweep in (("own", asked), ("twins", twins)):
        store = Store(tmp_path / name / "lab.sqlite")
        for cells in rounds_of_rates(sweep, store):
            run(sweep, store, Local(tmp_path / name), cells=cells)
        chosen.append(with_rates(sweep, store).recipes)
        store.close()
    assert chosen[0]
    assert chosen[0] == chosen[1]


def test_its_checkpoint_is_read_back(tmp_path: Path):
    work(replace(TWINS, schemes=("kerple",)), tmp_path)
    (cell,) = replace(TWINS, schemes=("kerple",)).cells()
    found, start = (
        dict(each.named_parameters())
        for each in (load(cell, tmp_path / f"{cell.key}.safetensors", "cpu"), cell.model())
    )
    assert list(found) == list(start)
    assert all((found[name] != start[name]).any() for name in found)


def test_a_row_without_training_is_refused_by_name(tmp_path: Path):
    with pytest.raises(TypeError, match="rope, seed 0: the row window changes a scheme, and Twin has none"):
        work(replace(TWINS, schemes=("rope",), free=True), tmp_path)
