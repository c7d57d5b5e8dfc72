"""The driver of a Ray sweep and its workers.

The driver begins cells, keeps what they report, and begins those again whose worker died. A worker has one cell, in a
folder of its own that nobody else sees.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell, Known
from milepost.lab.cells.events import Died, Event, Saved, Stepped
from milepost.lab.cells.turns import PAUSE, Turn
from milepost.lab.engines.local import Local, Waiting, failures
from milepost.lab.engines.parcels import Way, waited
from milepost.lab.engines.post import Letter, Mark, Post
from milepost.lab.text.corpus import Corpus

# How many checkpoints may be on their way to workers at a time; more would fill the memory of this machine.
LENT = 4
# How often the collector may be killed.
RESTARTS = 100
# Cells that may wait for the collector at a time.
ABREAST = 10_000


@dataclass
class Begun:
    """A cell that was begun, and how far its worker is."""

    number: int
    cell: Cell
    known: Known
    attempt: int = 0
    """How often it was begun before."""
    deaths: int = 0
    """How many of its workers died since its last checkpoint."""
    letters: int = 0
    """The last letter of its worker that was kept; the first of all asks, and is number 0."""


class Driver:
    """Cells of one run, on a cluster that this program is connected to."""

    def __init__(
        self, ray: Any, out: Path, carried: Way, device: str, needs: Callable[[Cell], dict[str, Any]], retries: int
    ) -> None:
        """needs: what Ray is asked for, for a cell."""
        self.ray, self.out, self.carried, self.device = ray, out, carried, device
        self.needs, self.retries = needs, retries
        self.begun: list[Begun] = []
        self.running: dict[Any, Begun] = {}
        self.failed: list[tuple[Cell, Exception]] = []
        self.kept: list[Mark] = []
        """Letters to be answered with nothing."""
        self.asking: list[Mark] = []
        """Letters to be answered with a checkpoint, in turn."""
        self.lent: set[int] = set()
        """Cells whose checkpoint is on its way to their worker."""

    def run(self, cells: Iterator[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        """Work through the cells; one that fails is reported when the others are done."""
        ray = self.ray
        self.out.mkdir(parents=True, exist_ok=True)
        # A slice would travel with all of the text that it was cut from.
        parts = {name: getattr(corpus, name).clone() for name in ("train", "test", "validation")}
        self.text, self.post = ray.put(replace(corpus, **parts)), _post(ray)
        coming, waiting = self.post.take.remote({}), Waiting(cells)
        try:
            while waiting.more or self.running:
                while (turn := waiting.now()) is not None:
                    self.begun.append(Begun(len(self.begun), *turn))
                    self._begin(self.begun[-1])
                if not (self.running or waiting.more):
                    break
                # While others work on what is left, it is asked for again now and then.
                for each in ray.wait([coming, *self.running], timeout=PAUSE if waiting.more else None)[0]:
                    if each == coming:
                        for letter in ray.get(coming):
                            yield from self._read(letter)
                        coming = self.post.take.remote(self._answers(), self.asking)
                    else:
                        yield from self._ended(self.running.pop(each), each)
        finally:
            for each in self.running:
                ray.cancel(each, force=True)
            ray.wait([self.post.close.remote(), coming], num_returns=2, timeout=PAUSE)
            ray.kill(self.post)
        if self.failed:
            raise RuntimeError(failures(self.failed, len(self.begun))) from self.failed[0][1]

    def _begin(self, begun: Begun) -> None:
        """Let some worker have a cell. Where it dies, it is for us to begin again: Ray would not say so."""
        task = self.ray.remote(work_cell).options(name=begun.cell.called, max_retries=0, **self.needs(begun.cell))
        given = begun.cell, begun.known, self.text, self.out, self.device, self.carried, self.post
        self.running[task.remote(begun.number, begun.attempt, *given)] = begun

    def _read(self, letter: Letter) -> Iterator[tuple[Cell, Event]]:
        """Yield what is new in a letter; it is answered when that was kept."""
        number, attempt, count = letter.mark
        begun = self.begun[number]
        self.lent.discard(number)
        # What comes from a worker that died, or comes again because the collector died, is answered and no more.
        if attempt == begun.attempt:
            if letter.event is None:
                self.asking.append(letter.mark)
                return
            if count > begun.letters:
                begun.letters = count
                if self._fetched(begun, letter):
                    yield begun.cell, letter.event
        self.kept.append(letter.mark)

    def _fetched(self, begun: Begun, letter: Letter) -> bool:
        """True if there is something to keep: a checkpoint is fetched first, and gone if its worker died meanwhile."""
        if not isinstance(letter.event, Saved):
            return True
        try:
            self.carried.receive(letter.parcel, self._checkpoint(begun))
        except self.ray.exceptions.ObjectLostError:
            return False
        begun.deaths = 0
        return True

    def _answers(self) -> dict[Mark, Any]:
        """Answers to the letters that were kept, and to as many as may be lent a checkpoint now."""
        found: dict[Mark, Any] = dict.fromkeys(self.kept)
        self.kept.clear()
        while self.asking and len(self.lent) < LENT:
            mark = self.asking.pop(0)
            path = self._checkpoint(self.begun[mark[0]])
            found[mark] = self.carried.send(path) if path.exists() else None
            if found[mark] is not None:
                self.lent.add(mark[0])
        return found

    def _ended(self, begun: Begun, task: Any) -> Iterator[tuple[Cell, Event]]:
        """Yield what becomes of a cell whose task is done, has failed, or has died."""
        errors = self.ray.exceptions
        died = errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError, errors.OutOfMemoryError
        self.lent.discard(begun.number)
        try:
            self.ray.get(task)
        except (*died, errors.ObjectLostError) as error:
            self.asking = [mark for mark in self.asking if mark[0] != begun.number]
            begun.attempt, begun.deaths, begun.letters = begun.attempt + 1, begun.deaths + 1, 0
            why = str(error).splitlines()[0].split(". ")[0].rstrip(".")
            if begun.deaths > self.retries:
                times = f"{begun.deaths} times" if begun.deaths > 1 else "once"
                found = RuntimeError(f"its worker died {times}, with no checkpoint in between ({why})")
                self.failed.append((begun.cell, found))
            else:
                yield begun.cell, Died(why)
                self._begin(begun)
        except errors.RayError as error:
            self.failed.append((begun.cell, error))
        # Others may have waited for this one.
        self.post.answer.remote(self._answers())

    def _checkpoint(self, begun: Begun) -> Path:
        return self.out / f"{begun.cell.key}.safetensors"


def _post(ray: Any) -> Any:
    """Return the collector, beside the driver: should a node of workers die, it does not. Killed, it is begun anew."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"max_restarts": RESTARTS, "max_task_retries": -1, "max_concurrency": ABREAST}
    return ray.remote(Post).options(num_cpus=0, scheduling_strategy=here, **options).remote()


def work_cell(
    number: int, attempt: int, cell: Cell, known: Known, corpus: Corpus, out: Path, device: str, carried: Way, post: Any
) -> None:
    """Go on with a cell from the driver's checkpoint of it, if there is one, and report to the driver.

    Every event is kept there before the cell goes on. out: the driver's folder, which need not be here.
    """
    marks = zip(itertools.repeat(number), itertools.repeat(attempt), itertools.count(), strict=False)

    def report(event: Event | None, parcel: Any = None) -> Any:
        return waited(post.put.remote(Letter(next(marks), event, parcel)))

    with tempfile.TemporaryDirectory(prefix="milepost-") as folder:
        path = Path(folder) / f"{cell.key}.safetensors"
        newest = report(None)
        if newest is not None:
            carried.receive(newest, path)
            # Ray keeps it until nobody refers to it.
            del newest
        try:
            for _, event in Local(Path(folder), device).run([(cell, known)], corpus):
                parcel = carried.send(path) if isinstance(event, Saved) else None
                if isinstance(event, (Saved, Stepped)):
                    # It was sent, or read: a worker that is killed while it waits leaves no file behind.
                    with contextlib.suppress(OSError):
                        path.unlink()
                report(event, parcel)
        except ValueError as error:
            # A damaged checkpoint is damaged, and to be deleted, where it came from.
            raise ValueError(str(error).replace(str(path), str(out / path.name))) from error
