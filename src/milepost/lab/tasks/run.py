"""Training on a task at some lengths, and judging at others."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from milepost.cache import Cache
from milepost.lab.schemes.expressions import joined
from milepost.lab.schemes.named import build, expression, refuse_ahead
from milepost.lab.tasks.task import NOT_JUDGED, Task, batches, dealt
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Trainer, precision
from milepost.seams import demand

Positions = Callable[[int], Tensor]
"""How many tokens to their positions, such as Randomized(2048).sample."""
Measure = Callable[[Tensor, Tensor], Tensor]
"""Logits and targets to a score for each example: a task's accuracy or exact."""
Watch = Callable[[int, Tensor], None]
"""Is told the step and its loss, which is still on the device."""

# Examples judged at once; under random positions these share one draw.
ROWS = 64
# Judging draws from seeds that no step of training comes to. Of seeds torch reads 32 bits.
JUDGING = 1 << 31

Row = dict[str, Any]
"""A job, what came of it, or both."""


class Placed(Model):
    """A model whose tokens stand at `position` wherever none is given."""

    position: Tensor | None = None

    def states(self, tokens: Tensor, caches: list[Cache] | None = None, position: Tensor | None = None) -> Tensor:
        return super().states(tokens, caches, self.position if position is None else position)


def placed(positions: Positions | None, tokens: int, seed: int) -> Tensor | None:
    """The positions of so many tokens, the same whenever the seed is."""
    if positions is None:
        return None
    with torch.random.fork_rng(devices=[]):
        # The samplers draw from torch's own generator if told no other.
        torch.default_generator.manual_seed(seed)
        return positions(tokens)


def written_for(task: Task, scheme: str) -> str:
    """A scheme as a task needs it: encoders see everything."""
    return joined(expression(scheme), "everything") if task.bidirectional else scheme


def make(task: Task, scheme: str, shape: Shape, trained: int, longest: int, seed: int) -> Placed:
    """A fresh model for a task: an encoder or a decoder, as the task asks; lengths are the task's, not yet tokens."""
    shape = replace(shape, vocabulary=task.vocabulary)
    torch.manual_seed(seed + 1)
    schedule = build(written_for(task, scheme), shape, task.tokens(trained), task.tokens(longest))
    if not task.bidirectional:
        refuse_ahead(schedule, scheme)
    torch.manual_seed(seed)
    return Placed(shape, schedule)


def trained_on(
    task: Task,
    scheme: str,
    shape: Shape,
    recipe: Recipe,
    lengths: Sequence[int],
    seed: int,
    positions: Positions | None = None,
    device: torch.device | str = "cpu",
    *,
    longest: int | None = None,
    examples: int | None = None,
    watch: Watch | None = None,
) -> Model:
    """A model trained on a task at lengths drawn from `lengths`; the recipe's own length is not read.

    scheme: a name or an expression, as in a sweep. positions: drawn anew for every batch. longest: the longest length
    it will be judged at, for tables that must reach so far. examples: how many are drawn once, and seen again every
    epoch; every batch is fresh if None.
    """
    if examples is None:
        stream = batches(task, recipe.batch, lengths, seed)
    else:
        stream = dealt(task, recipe.batch, lengths, seed, examples)
    model = make(task, scheme, shape, max(lengths), max(lengths) if longest is None else longest, seed)

    def placing(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = stream(step)
        found = placed(positions, inputs.shape[1], seed * 1_000_003 + step)
        model.position = None if found is None else found.to(device)
        return inputs, targets

    # Every batch may have another length.
    trainer = Trainer(model.to(device).uncompiled(), recipe, placing, device)
    while not trainer.done:
        step, loss = trainer.step, trainer.advance()
        if watch is not None:
            watch(step, loss)
    model.position = None
    return model.eval()


@torch.no_grad()
def score(
    model: Reader,
    task: Task,
    length: int,
    count: int,
    seed: int,
    positions: Positions | None = None,
    measure: Measure | None = None,
) -> Tensor:
    """The accuracies of a model on `count` examples of one length, float32 [count] on the CPU.

    positions: as in training, or others: Randomized(n).evenly does better than drawing. measure: the task's accuracy
    if None; its `exact` counts whole answers.
    """
    model.eval()
    device = model.device
    measure = task.accuracy if measure is None else measure
    seed = JUDGING + seed * 1_000_003 + length
    inputs, targets = task.batch(count, length, torch.Generator().manual_seed(seed))
    found: list[Tensor] = []
    for first in range(0, count, ROWS):
        position = placed(positions, inputs.shape[1], seed + first)
        part = slice(first, first + ROWS)
        where = {} if position is None else {"position": position.to(device)}
        logits = model(inputs[part].to(device), **where)
        found.append(measure(logits.float(), targets[part].to(device)).cpu())
    return torch.cat(found)


def trivial(task: Task, lengths: Sequence[int], count: int) -> float:
    """The accuracy of the one symbol that is right most often, if it is all that is ever answered.

    Over `count` examples of each length.
    """
    shares: list[Tensor] = []
    for length in lengths:
        _, targets = task.batch(count, length, torch.Generator().manual_seed(length))
        right = torch.stack([(targets == answer).sum(1) for answer in task.answers])
        shares.append(right / (targets != NOT_JUDGED).sum(1))
    return float(torch.cat(shares, 1).mean(1).max())


def train_on(
    task: Task,
    scheme: str,
    shape: Shape,
    recipe: Recipe,
    lengths: Sequence[int],
    seed: int,
    positions: Positions | None = None,
    device: torch.device | str = "cpu",
    *,
    judged: Sequence[int],
    count: int = 512,
    at_test: Positions | None = None,
    watch: Watch | None = None,
) -> dict[int, Tensor]:
    """Train on a task at some lengths; the accuracies of `count` examples at each length of `judged`, [count] each.

    at_test: the positions to judge at; those of training if None.
    """
    demand.whole(train_on, "count", count)
    if not judged:
        raise ValueError(f"train_on(judged={judged!r}): there must be at least one length to judge at")
    longest = max([*judged, *lengths])
    model = trained_on(task, scheme, shape, recipe, lengths, seed, positions, device, longest=longest, watch=watch)
    at_test = positions if at_test is None else at_test
    with precision(recipe, torch.device(device)):
        return {length: score(model, task, length, count, seed, at_test) for length in judged}


class Losses:
    """Watches a run that is one of several: keeps its losses, and tells how it goes every thousand steps."""

    def __init__(self, name: str) -> None:
        self.name, self.begun = name, time.monotonic()
        self.losses: list[Tensor] = []

    def __call__(self, step: int, loss: Tensor) -> None:
        self.losses.append(loss)
        if (step + 1) % 1000 == 0:
            print(f"{self.name}: step {step + 1}, loss {self.last():.3f}, {self.seconds():.0f} s", flush=True)

    def last(self) -> float:
        """The mean of the last hundred."""
        return float(torch.stack(self.losses[-100:]).mean())

    def seconds(self) -> float:
        """How long it has been since the run began."""
        return time.monotonic() - self.begun


def side_by_side(work: Callable[[Row], Row], jobs: Sequence[Row], processes: int, out: Path) -> Iterator[Row]:
    """Each job with what came of it, as they are done; small models fill a GPU only when several are trained at once.

    All of them are kept in the file `out`: stopped anywhere, the same call does what is missing.
    """
    rows = _kept(out)
    missing = [job for job in jobs if not any(_same(job, row) for row in rows)]
    yield from (row for row in rows if any(_same(job, row) for job in jobs))
    for job, found in _worked(work, missing, processes):
        rows.append(json.loads(json.dumps(job | found)))
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = out.with_name(f".{out.name}.{os.getpid()}")
        beside.write_text(json.dumps(rows, indent=1))
        beside.replace(out)
        yield rows[-1]


def _worked(work: Callable[[Row], Row], jobs: Sequence[Row], processes: int) -> Iterator[tuple[Row, Row]]:
    if processes == 1 or len(jobs) <= 1:
        yield from ((job, work(job)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        begun = {pool.submit(work, job): job for job in jobs}
        try:
            yield from ((begun[done], done.result()) for done in as_completed(begun))
        except BaseException:
            # Nobody waits for what the others would still find.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _kept(out: Path) -> list[Row]:
    try:
        return json.loads(out.read_text()) if out.exists() else []
    except ValueError as error:
        raise ValueError(f"{out} is damaged ({error}); move it away, and everything is run again") from None


def _same(job: Row, row: Row) -> bool:
    """Whether a row that was kept came of a job."""
    return all(row.get(name) == value for name, value in json.loads(json.dumps(job)).items())
