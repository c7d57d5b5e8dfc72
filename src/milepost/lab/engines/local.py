"""Engines: where the cells of a sweep are worked. `Local` is the plainest; jobs, Ray and torchrun have their own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.turns import PAUSE, Turn
from milepost.lab.cells.work import work
from milepost.lab.text.corpus import Corpus
from milepost.lab.training import memory
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Trainer


class Engine(Protocol):
    """Runs cells somewhere and tells what happens, in any order."""

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        """Work through the cells; each comes with the scores that are known already.

        They are locked as they are taken, so no more are taken than are begun. None: there is none at the moment.
        """
        ...


@dataclass(frozen=True)
class Local:
    """One cell after the other, in this process."""

    folder: Path
    device: str = "cpu"

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        for turn in cells:
            if turn is None:
                time.sleep(PAUSE)
                continue
            cell, known = turn
            trained = False
            try:
                for event in work(cell, corpus, self.folder, self.device, known):
                    trained = trained or (isinstance(event, Stepped) and event.done)
                    yield cell, event
            except torch.OutOfMemoryError as error:
                if trained:
                    raise memory.out_while_judging(cell.judging.longest, error) from None
                raise memory.out_of_memory(cell.recipe, partial(fits, cell, corpus, self.device), error) from None


def fits(cell: Cell, corpus: Corpus, device: str, recipe: Recipe) -> bool:
    """True if one step of a cell fits on a device, with another recipe."""
    try:
        batches = replace(cell, recipe=recipe).batches(corpus)
        Trainer(cell.model(), replace(recipe, compiled=False), batches, device).advance()
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def failures(failed: Sequence[tuple[Cell, Exception]], count: int) -> str:
    """Return what went wrong, cell by cell, in the words of the errors themselves."""
    lines = [f"{len(failed)} of {count} cells failed; the others are done and kept; rerun the command to retry:"]
    for cell, error in failed:
        cause = getattr(error, "cause", None) or error
        lines.append(f"  {cell.called}: {type(cause).__name__}: {cause}")
    return "\n".join(lines)
