"""A sweep under `torchrun`: one cell after the other, each over all the processes that were started together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import distributed as dist

from milepost.lab.cells.cell import Cell, Known
from milepost.lab.cells.events import Event
from milepost.lab.cells.turns import END, PAUSE, End, Turn
from milepost.lab.cells.work import work
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.parallel import from_first, join, world


@dataclass(frozen=True)
class Torchrun:
    """One cell after the other, each over all the processes that torchrun started.

    The first process hears the events and keeps the store; the others are given no cells, and learn them from it:

        run(sweep, store, engine) if world().rank == 0 else engine.follow(sweep.corpus)
    """

    folder: Path
    device: str = "cpu"
    spread: str = "ddp"

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        here = world(self.device)
        if here.size > 1:
            join(here)
        waiting = iter(cells)
        while (turn := self._next(waiting)) is not None:
            cell, known = turn
            if cell.corpus != corpus.digest:
                raise ValueError(
                    f"process {here.rank} reads other bytes than the first ({corpus.source}); give all the same text"
                )
            for event in work(cell, corpus, self.folder, self.device, known, here, self.spread):
                yield cell, event
        if here.size > 1:
            dist.destroy_process_group()

    def _next(self, waiting: Iterator[Turn]) -> tuple[Cell, Known] | None:
        """Return the next cell of the first process, in every process; None after the last."""
        found = next(waiting, END)
        while found is None:
            time.sleep(PAUSE)
            found = next(waiting, END)
        return from_first(None if isinstance(found, End) else found)

    def follow(self, corpus: Corpus) -> None:
        """Work along with the first process, until it is done."""
        for _ in self.run((), corpus):
            raise AssertionError("only the first process tells events")
