"""Engines: where the cells of a sweep are worked. `Local` is the plainest; jobs, Ray and torchrun have their own."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from milepost.lab.cells.cell import Cell, Known
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.turns import PAUSE, Turn
from milepost.lab.cells.work import work
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Trainer


class Engine(Protocol):
    """Runs cells somewhere and tells what happens, in any order."""

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        """Work through the cells; each comes with the scores that are known already.

        They are locked as they are taken, so no more are taken than are begun. None: there is none at the moment.
        """
        ...


class Waiting:
    """The cells of a run that are not begun yet."""

    def __init__(self, cells: Iterable[Turn]) -> None:
        self.turns = iter(cells)
        self.more = True
        """Whether any may be left."""

    def now(self) -> tuple[Cell, Known] | None:
        """Return the next cell; None where there is none at the moment, or at all."""
        for turn in self.turns:
            return turn
        self.more = False
        return None

    def next(self) -> tuple[Cell, Known] | None:
        """Return the next cell as soon as there is one; None after the last."""
        while (turn := self.now()) is None and self.more:
            time.sleep(PAUSE)
        return turn


@dataclass(frozen=True)
class Local:
    """One cell after the other, in this process."""

    folder: Path
    device: str = "cpu"

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        waiting = Waiting(cells)
        while (turn := waiting.next()) is not None:
            cell, known = turn
            trained = False
            try:
                for event in work(cell, corpus, self.folder, self.device, known):
                    trained = trained or (isinstance(event, Stepped) and event.done)
                    yield cell, event
            except torch.OutOfMemoryError as error:
                # Its frames hold the model that did not fit, and what is tried next would find no room.
                traceback.clear_frames(error.__traceback__)
                raise RuntimeError(
                    f"the GPU ran out of memory {self._advice(cell, corpus, trained)} ({str(error).split('.')[0]})"
                ) from None

    def _advice(self, cell: Cell, corpus: Corpus, trained: bool) -> str:
        """Return what a cell was at when the memory was too small, and what to ask for instead."""
        if trained:
            return (
                f"while judging, at up to {cell.judging.longest:,} bytes; what was trained and judged is kept: rerun "
                f"with fewer --jobs, so that each has more, or judge less far, --set longest=…"
            )

        def fits(recipe: Recipe) -> bool:
            # A trainer refers to itself, so the one before is there until it is collected.
            gc.collect()
            torch.cuda.empty_cache()
            try:
                batches = replace(cell, recipe=recipe).batches(corpus)
                Trainer(cell.model(), replace(recipe, compiled=False), batches, self.device).advance()
            except torch.OutOfMemoryError:
                return False
            return True

        recipe, parts = cell.recipe, "part" if cell.recipe.accumulate == 1 else "parts"
        return (
            f"with batches of {recipe.batch} × {recipe.length} bytes in {recipe.accumulate} {parts}: "
            f"{fewest_parts(recipe, fits)}"
        )


def fewest_parts(recipe: Recipe, fits: Callable[[Recipe], bool]) -> str:
    """Return in how many parts of a batch a step fits; they give the same gradients, and cost nothing but time."""
    for parts in range(recipe.accumulate + 1, recipe.batch + 1):
        if recipe.batch % parts == 0 and fits(replace(recipe, accumulate=parts)):
            return f"--set accumulate={parts} fits, and gives the same numbers"
    return f"not even one text of {recipe.length} bytes fits; try a smaller --size, or a shorter --set length=…"


def failures(failed: Sequence[tuple[Cell, Exception]], count: int) -> str:
    """Return what went wrong, cell by cell, in the words of the errors themselves."""
    lines = [f"{len(failed)} of {count} cells failed; the others are done and kept; rerun the command to retry:"]
    for cell, error in failed:
        cause = getattr(error, "cause", None) or error
        lines.append(f"  {cell.called}: {type(cause).__name__}: {cause}")
    return "\n".join(lines)
