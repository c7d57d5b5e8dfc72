"""A sweep: which cells there are, run by an engine, gathered in a store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from milepost.lab.cells.cell import JUDGED, Cell, Known
from milepost.lab.cells.events import Described, Died, Event, Saved, Stepped
from milepost.lab.cells.store import Score, Store
from milepost.lab.cells.turns import Locks, turns
from milepost.lab.engines.local import Engine as Engine
from milepost.lab.engines.local import Local as Local
from milepost.lab.judging import judge
from milepost.lab.judging.costs import Cost
from milepost.lab.judging.scoring import Judging
from milepost.lab.schemes import own
from milepost.lab.schemes.choices import choices, is_open
from milepost.lab.schemes.expressions import classes_in, named, spelled, titled
from milepost.lab.schemes.limits import cut
from milepost.lab.schemes.named import (
    build,
    expression,
    origins_of,
    refuse_ahead,
    refuse_blind,
    refuse_hidden,
    refuse_leak,
    rows_on,
    try_out,
)
from milepost.lab.schemes.own import Source
from milepost.lab.tasks import named as task_named
from milepost.lab.tasks.score import written_for
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.model import Shape, carried
from milepost.lab.training.recipe import Recipe, Size
from milepost.schedule import Schedule

# Examples in a batch of a task, at least.
EXAMPLES = 32
Watch = Callable[[Cell, Event], None]
"""Called with every event, after it was kept."""


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
    search: int = 0
    """From how many runs each scheme's rates are chosen; with 0, they are the recipe's."""
    tune: bool = False
    """Whether the settings of our own training-free rows are chosen, too."""
    recipes: tuple[tuple[str, Recipe], ...] = ()
    """By scheme: the recipe that a search chose."""
    chosen: tuple[tuple[str, str, str], ...] = ()
    """Scheme, row and the expression that was chosen for it."""
    own: tuple[Source, ...] = ()
    """Files of methods that schemes and rows may name."""

    def cells(self) -> list[Cell]:
        """Return one cell for each scheme and seed; an unknown scheme is refused before anything is trained."""
        own.use(self.own)
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
            for name in names.values():
                shape, recipe = self.size.shape, dict(self.recipes).get(name, self.size.recipe)
                if seed == self.seeds[0]:
                    texts = tuple(text for row in self._rows_on(name).values() for text in choices(row))
                    origins = tuple(each for text in (name, *texts) for each in origins_of(text))
                    _can_be_judged(name, texts, shape, recipe.length, judging.longest, origins)
                rows = {text if is_own else label: text for label, text, is_own in self._chosen_rows(name)}
                used = own.sources([each for text in (name, *rows.values()) for each in classes_in(expression(text))])
                cell = Cell(name, seed, shape, recipe, judging, digest, tuple(rows.items()), self.threads, own=used)
                cells += [cell, *(self._on(task, cell) for task in dict.fromkeys(self.tasks))]
        return cells

    def _rows_on(self, name: str) -> dict[str, str]:
        """Return the training-free rows on a scheme, by label; those with a setting to choose leave it open."""
        more = [text for on, text in self.rows if spelled(on) == spelled(name)]
        return rows_on(name, free=self.free, every=self.every, own=more, tune=self.tune)

    def open_rows(self, name: str) -> dict[str, str]:
        """Return the rows on a scheme that have a setting to choose."""
        return {label: text for label, text in self._rows_on(name).items() if is_open(text)}

    def called(self, name: str) -> dict[str, str]:
        """Return what the user's own rows on a scheme are called, by expression, with the settings that were chosen.

        Scores are kept by expression: another name needs no judging, and another expression of that name has it.
        """
        found, open_rows = dict[str, str](), self._rows_on(name)
        for label, text, is_own in self._chosen_rows(name):
            if is_own:
                # A row without a name is called what it is.
                found.setdefault(text, text if label == open_rows[label] else label)
        return found

    def _chosen_rows(self, name: str) -> list[tuple[str, str, bool]]:
        """Return the label of every row on a scheme, its expression with the chosen settings, or the first of each, and
        whether it is the user's own."""
        labels = {titled(text)[0] for on, text in self.rows if spelled(on) == spelled(name)}
        chosen = {(on, label): text for on, label, text in self.chosen}
        rows = self._rows_on(name).items()
        return [(label, chosen.get((name, label)) or choices(text)[0], label in labels) for label, text in rows]

    def _on(self, task: str, cell: Cell) -> Cell:
        """Return the same cell on a task. Lengths vary there, so nothing is compiled."""
        found = task_named(task)
        recipe = replace(cell.recipe, batch=max(cell.recipe.batch, EXAMPLES), compiled=False)
        try:
            found.within(recipe.length)
        except ValueError as error:
            raise ValueError(f"the task {task}: {error}; raise --set length=…") from None
        # Encoders look ahead, and training-free rows do not.
        cell = replace(cell, task=task, recipe=recipe, variants=() if found.bidirectional else cell.variants)
        if found.bidirectional:
            try:
                schedule = build(written_for(found, cell.name), cell.shape, recipe.length, cell.judging.longest)
                try_out(schedule, cell.shape, cell.judging.longest)
                refuse_hidden(schedule, cell.shape.heads)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{cell.name} cannot be trained on {task}, where tokens look ahead: {error}") from None
        return cell


@cache
def _can_be_judged(
    name: str, rows: tuple[str, ...], shape: Shape, trained: int, longest: int, from_where: tuple[str, ...]
) -> None:
    """Refuse a scheme, or a row on its checkpoint, that does not fit the model, sees ahead or cannot read so far."""
    trained_with: Schedule | None = None
    for kind, text in (("scheme", name), *(("row", text) for text in rows)):
        try:
            schedule = build(text, shape, trained, longest)
            trained_with = schedule if trained_with is None else trained_with
            schedule = carried(trained_with, schedule)
            refuse_ahead(schedule, text, kind)
            refuse_blind(schedule, text, shape.heads, trained, longest, kind)
            try_out(schedule, shape, longest)
            refuse_leak(schedule, text, shape, longest, kind)
        except (ValueError, TypeError) as error:
            if repr(text) in str(error) or repr(cut(text)) in str(error):
                raise
            # The refusal itself does not name the scheme or row.
            raise ValueError(f"the {kind} {cut(text)!r}: {error}") from None


def run(
    sweep: Sweep,
    store: Store,
    engine: Engine,
    watch: Watch | None = None,
    cells: Sequence[Cell] | None = None,
    waits: Callable[[int], None] | None = None,
) -> None:
    """Do what of a sweep, or of some cells of its own, is not done yet.

    Every event is in the store before anybody hears of it. `waits` hears how many cells are left where other processes
    work on all of them.
    """
    locks = Locks(store.path.parent / ".locks")
    left: dict[str, Known] = {}

    def known(cell: Cell) -> Known | None:
        found = scores_of(store, cell)
        left[cell.key] = cell.wanted() - found if found is not None else set()
        return found

    try:
        open_cells = [cell for cell, _ in missing(sweep, store, cells)]
        for cell, event in engine.run(turns(open_cells, locks, known, waits), sweep.corpus):
            keep(store, cell, event)
            if watch is not None:
                watch(cell, event)
            if isinstance(event, Score):
                left[cell.key].discard((event.variant, event.protocol, event.length))
                if not left[cell.key]:
                    locks.release(cell.key)
    finally:
        locks.release_all()


def missing(sweep: Sweep, store: Store, cells: Sequence[Cell] | None = None) -> list[tuple[Cell, Known]]:
    """Return the cells of a sweep, or those given, that are not done, each with the scores that it has."""
    found: list[tuple[Cell, Known]] = []
    for cell in sweep.cells() if cells is None else cells:
        _take_over(store, cell)
        store.add(cell.key, cell.settings())
        known = scores_of(store, cell)
        if known is not None:
            found.append((cell, known))
    return found


def scores_of(store: Store, cell: Cell) -> Known | None:
    """Return the scores that a cell has; None where these are all, and it is done."""
    known = {(score.variant, score.protocol, score.length) for score in valid(store, cell)}
    return None if store.progress(cell.key)[1] and cell.wanted() <= known else known


def valid(store: Store, cell: Cell) -> list[Score]:
    """Return the scores of a cell that were made as they would be today."""
    scores = store.scores(cell.key)
    return [each for each in scores if each.detail.get("asked") == cell.depends(each.variant, each.protocol)]


def outdated(store: Store, cells: Sequence[Cell]) -> int:
    """Return how many trained cells have scores of an earlier version, which kept no windows, or judged others."""
    return sum(
        any(score.detail.get("asked", [None])[0] != JUDGED for score in store.scores(cell.key))
        for cell in cells
        if store.progress(cell.key)[1]
    )


def _take_over(store: Store, cell: Cell) -> None:
    """Let a cell of an earlier version go on under its key of today, with its checkpoint, if it computes the same."""
    old = cell.former_key
    if store.knows(cell.key) or not store.knows(old):
        return
    schedule = build(cell.written, cell.shape, cell.recipe.length, cell.judging.longest)
    if store.cell(old)["equation"] != str(schedule[0]):
        return
    with contextlib.suppress(FileNotFoundError):
        # First, so that who is killed here does the rest the next time. There may be none, or it was moved already.
        store.path.with_name(f"{old}.safetensors").replace(store.path.with_name(f"{cell.key}.safetensors"))
    store.rename(old, cell.key)


def keep(store: Store, cell: Cell, event: Event) -> None:
    """Put an event into the store."""
    match event:
        case Described(parameters=parameters, equation=equation):
            store.describe(cell.key, parameters, equation)
        case Stepped(step=step, losses=losses, seconds=seconds, done=done):
            store.trained(cell.key, step, losses, seconds, done)
        case Score():
            store.judged(event)
        case Cost(variant=variant, values=values):
            store.cost(cell.key, variant, values)
        case Saved() | Died():
            pass
