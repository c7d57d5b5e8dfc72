"""A sweep: which cells there are, run by an engine, gathered in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import torch

from milepost.lab import judge, memory
from milepost.lab.cell import JUDGED, Cell, Described, Event, Known, Stepped, batches_of, depends, make, wanted, work
from milepost.lab.corpus import Corpus
from milepost.lab.expressions import named, spelled
from milepost.lab.model import Shape, carried
from milepost.lab.recipe import Recipe, Size
from milepost.lab.schemes import build, refuse_ahead, rows_on, try_out
from milepost.lab.scoring import Judging
from milepost.lab.store import Score, Store
from milepost.lab.tasks import named as task_named
from milepost.lab.tasks.run import written_for
from milepost.lab.train import Trainer
from milepost.scheme import Scheme

# Examples in a batch of a task, at least.
EXAMPLES = 32
Watch = Callable[[Cell, Event], None]
"""Is told of every event, after it was kept."""


@dataclass(frozen=True)
class Sweep:
    """What was asked for."""

    schemes: tuple[str, ...]
    size: Size
    corpus: Corpus
    seeds: tuple[int, ...] = (0,)
    judging: Judging | None = None
    free: bool = True
    """Whether training-free rows are judged on the checkpoints that have some."""
    threads: int = 2
    tasks: tuple[str, ...] = ()
    """Tasks that each scheme is trained on and judged by, besides language."""
    every: bool = False
    """Whether the training-free rows are all there are, and not only the leading ones."""
    rows: tuple[tuple[str, str], ...] = ()
    """Training-free rows of the user's own: a scheme and the expression judged on its checkpoint."""

    def cells(self) -> list[Cell]:
        """One cell for each scheme and seed; an unknown scheme is refused before anything is trained."""
        judging = Judging(self.size.longest, self.size.judged) if self.judging is None else self.judging
        self.corpus.needs(self.size.recipe.length, judging.longest)
        for distance in judging.recall:
            judge.check_distance(distance, judging.copied)
            if "passages" in judging.protocols:
                self.corpus.needs(self.size.recipe.length, distance + judging.copied)
        # One scheme written in two ways is trained once.
        names: dict[str, str] = {}
        for text in self.schemes:
            names.setdefault(spelled(text), named(text))
        for on, text in self.rows:
            if spelled(on) not in names:
                raise ValueError(
                    f"the row {text!r} is on {on!r}, which is not trained; there are {', '.join(self.schemes)}"
                )
        cells: list[Cell] = []
        digest = self.corpus.digest
        for seed in self.seeds:
            for key, name in names.items():
                own = [text for on, text in self.rows if spelled(on) == key]
                rows = rows_on(name, free=self.free, every=self.every, own=own)
                shape, recipe = self.size.shape, self.size.recipe
                if seed == self.seeds[0]:
                    _can_be_judged(name, tuple(rows.values()), shape, recipe.length, judging.longest)
                cell = Cell(name, seed, shape, recipe, judging, digest, tuple(rows.items()), self.threads)
                cells += [cell, *(self._on(task, cell) for task in dict.fromkeys(self.tasks))]
        return cells

    def _on(self, task: str, cell: Cell) -> Cell:
        """The same cell on a task. Lengths vary there, so nothing is compiled."""
        found = task_named(task)
        recipe = replace(cell.recipe, batch=max(cell.recipe.batch, EXAMPLES), compiled=False)
        try:
            found.within(recipe.length)
        except ValueError as error:
            raise ValueError(f"the task {task}: {error}; raise --length") from None
        # Encoders look ahead, and training-free rows do not.
        cell = replace(cell, task=task, recipe=recipe, variants=() if found.bidirectional else cell.variants)
        if found.bidirectional:
            try:
                schedule = build(written_for(found, cell.name), cell.shape, recipe.length, cell.judging.longest)
                try_out(schedule, cell.shape, cell.judging.longest)
                if not all(_sees_ahead(scheme, cell.shape.heads) for scheme in schedule):
                    raise ValueError("it hides them; leave out what it sees")
            except (ValueError, TypeError) as error:
                raise ValueError(f"{cell.name} cannot be trained on {task}, where tokens look ahead: {error}") from None
        return cell


@cache
def _can_be_judged(name: str, rows: tuple[str, ...], shape: Shape, trained: int, longest: int) -> None:
    """Refuse a scheme, or a row on its checkpoint, that does not fit the model, sees ahead or cannot read so far."""
    own = build(name, shape, trained, longest)
    refuse_ahead(own, name)
    try_out(own, shape, longest)
    for text in rows:
        row = carried(own, build(text, shape, trained, longest))
        refuse_ahead(row, text, "row")
        try_out(row, shape, longest)


def _sees_ahead(scheme: Scheme, heads: int) -> bool:
    seen = scheme.see(torch.tensor(0), torch.arange(heads)[:, None], torch.tensor(0), torch.tensor([[1]]))
    return seen is None or bool(seen.all())


class Engine(Protocol):
    """Runs cells somewhere and tells what happens, in any order."""

    def run(self, cells: Sequence[tuple[Cell, Known]], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        """Work through the cells; each comes with the scores that are known already."""
        ...


@dataclass(frozen=True)
class Local:
    """One cell after the other, in this process."""

    folder: Path
    device: str = "cpu"

    def run(self, cells: Sequence[tuple[Cell, Known]], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        for cell, known in cells:
            try:
                for event in work(cell, corpus, self.folder, self.device, known):
                    yield cell, event
            except torch.OutOfMemoryError as error:
                raise memory.out_of_memory(cell.recipe, partial(fits, cell, corpus, self.device), error) from None


def fits(cell: Cell, corpus: Corpus, device: str, recipe: Recipe) -> bool:
    """Whether one step of a cell fits on a device, with another recipe."""
    try:
        Trainer(make(cell), replace(recipe, compiled=False), batches_of(cell, corpus, recipe), device).advance()
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def run(sweep: Sweep, store: Store, engine: Engine, watch: Watch | None = None) -> None:
    """Do what of a sweep is not done yet; every event is in the store before anybody hears of it."""
    for cell, event in engine.run(missing(sweep, store), sweep.corpus):
        keep(store, cell, event)
        if watch is not None:
            watch(cell, event)


def missing(sweep: Sweep, store: Store) -> list[tuple[Cell, Known]]:
    """The cells of a sweep that are not done, each with the scores that it has."""
    found: list[tuple[Cell, Known]] = []
    for cell in sweep.cells():
        _take_over(store, cell)
        store.add(cell.key, cell.settings())
        known = {(score.variant, score.protocol, score.length) for score in valid(store, cell)}
        if not store.progress(cell.key)[1] or not wanted(cell) <= known:
            found.append((cell, known))
    return found


def valid(store: Store, cell: Cell) -> list[Score]:
    """The scores of a cell that were made as they would be today."""
    return [
        score
        for score in store.scores(cell.key)
        if score.detail.get("asked") == depends(cell, score.variant, score.protocol)
    ]


def outdated(store: Store, cells: Sequence[Cell]) -> int:
    """How many trained cells have scores of an earlier version, which kept no windows, or judged others."""
    return sum(
        any(score.detail.get("asked", [None])[0] != JUDGED for score in store.scores(cell.key))
        for cell in cells
        if store.progress(cell.key)[1]
    )


def _take_over(store: Store, cell: Cell) -> None:
    """Let a cell of an earlier version go on under its key of today, with its checkpoint, if it computes the same.

    The checkpoint first: killed in between, the rest is done the next time.
    """
    old = cell.former_key
    if store.knows(cell.key) or not store.knows(old):
        return
    schedule = build(cell.written, cell.shape, cell.recipe.length, cell.judging.longest)
    if store.cell(old)["equation"] != str(schedule[0]):
        return
    checkpoint = store.path.with_name(f"{old}.safetensors")
    if checkpoint.exists():
        checkpoint.replace(store.path.with_name(f"{cell.key}.safetensors"))
    store.rename(old, cell.key)


def failures(failed: Sequence[tuple[Cell, Exception]], count: int) -> str:
    """What went wrong, cell by cell, in the words of the errors themselves."""
    lines = [f"{len(failed)} of {count} cells failed; the others are done and kept, and the same command tries again:"]
    for cell, error in failed:
        cause = getattr(error, "cause", None) or error
        lines.append(f"  {cell.called}: {type(cause).__name__}: {cause}")
    return "\n".join(lines)


def keep(store: Store, cell: Cell, event: Event) -> None:
    """Put an event into the store."""
    match event:
        case Described(parameters=parameters, equation=equation):
            store.describe(cell.key, parameters, equation)
        case Stepped(step=step, losses=losses, seconds=seconds, done=done):
            store.trained(cell.key, step, losses, seconds, done)
        case Score():
            store.judged(event)
