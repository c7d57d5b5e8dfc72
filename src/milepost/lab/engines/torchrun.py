"""A sweep under `torchrun`: one cell after the other, each over all the processes that were started together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import distributed as dist

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event
from milepost.lab.cells.turns import Turn
from milepost.lab.cells.work import work
from milepost.lab.engines.local import Waiting
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
        waiting = Waiting(cells)
        # In every process the next cell is that of the first; None after the last.
        while (turn := from_first(waiting.next())) is not None:
            cell, known = turn
            if cell.corpus != corpus.digest:
                raise ValueError(
                    f"process {here.rank} reads other bytes than the first ({corpus.source}); give all the same text"
                )
            for event in work(cell, corpus, self.folder, self.device, known, here, self.spread):
                yield cell, event
        if here.size > 1:
            dist.destroy_process_group()

    def follow(self, corpus: Corpus) -> None:
        """Work along with the first process, until it is done."""
        for _ in self.run((), corpus):
            raise AssertionError("only the first process tells events")
