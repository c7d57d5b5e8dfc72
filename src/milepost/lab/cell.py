"""One cell of a sweep: a scheme and a seed, trained and judged, told as a stream of events.

Where a cell runs is not its business: the local engine reads its events as they come, Ray sends them from far away.
Every event may come twice, after a crash, and then says the same.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from milepost.lab import judge
from milepost.lab.corpus import Corpus
from milepost.lab.expressions import spelled
from milepost.lab.model import Model, Shape
from milepost.lab.parallel import World, spread_over
from milepost.lab.recipe import Recipe
from milepost.lab.schemes import build, learns_bias, reads_longest
from milepost.lab.store import Score
from milepost.lab.tasks import PROTOCOLS, batches, named, protocols, score
from milepost.lab.tasks.run import written_for
from milepost.lab.train import Batches, Trainer, precision, read_checkpoint

# Steps between two reports of the loss.
REPORT = 10
# Seconds between two checkpoints of a model in training; more where writing one takes long.
SAVE = 2.0
# Examples of a task that are judged however long they are.
FEWEST = 16
# Raised when what is judged, or how, changes: kept scores are then made again.
JUDGED = 2


@dataclass(frozen=True)
class Judging:
    """How a trained model is judged."""

    longest: int
    total: int = 1 << 17
    """About how many bytes are judged at each length."""
    ends: int = 16
    recall: tuple[int, ...] = ()
    copies: int = 32
    """How many pairs of copies are made for each distance of recall."""
    alone: int = 64
    answers: int = 128
    """How many examples of a task are judged at each length, unless they have more than `total` tokens."""
    protocols: tuple[str, ...] = ("windows", "ends", "sliding", "alone", "recall")


@dataclass(frozen=True)
class Cell:
    """All that decides a cell's numbers."""

    name: str
    """The scheme as the user gave it: a name or an expression."""
    seed: int
    shape: Shape
    recipe: Recipe
    judging: Judging
    corpus: str
    """The digest of the bytes."""
    variants: tuple[tuple[str, str], ...] = ()
    """Training-free rows: a label and an expression each."""
    threads: int = 2
    version: int = field(default=1)
    task: str = ""
    """The task it is trained on and judged by; language if empty."""

    @property
    def key(self) -> str:
        """What the trained weights depend on, hashed: judging and variants may grow without training again."""
        settings = asdict(self)
        for name in ("judging", "variants"):
            settings.pop(name)
        if not self.task:
            settings.pop("task")
        settings["name"] = spelled(self.name)
        if not learns_bias(self.name):
            # Nothing has that rate.
            settings["recipe"].pop("bias_rate")
        settings["longest"] = self.judging.longest if reads_longest(self.name) else None
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def called(self) -> str:
        """What the cell is called among others."""
        return f"{self.name}, {self.task}, seed {self.seed}" if self.task else f"{self.name}, seed {self.seed}"

    def settings(self) -> dict[str, Any]:
        """The cell as what JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Described:
    """How large the model is and what its scheme computes."""

    parameters: int
    equation: str


@dataclass(frozen=True)
class Stepped:
    """Some steps were made."""

    step: int
    losses: list[tuple[int, float]]
    seconds: float
    tokens: int
    done: bool


Event = Described | Stepped | Score
Known = set[tuple[str, str, int]]
"""Scores that need not be made again, each by its row, protocol and length."""


def make(cell: Cell) -> Model:
    """The model of a cell as it starts: the same weights under every scheme, but for what the scheme itself learns."""
    task = named(cell.task) if cell.task else None
    shape = cell.shape if task is None else replace(cell.shape, vocabulary=task.vocabulary)
    text = cell.name if task is None else written_for(task, cell.name)
    torch.manual_seed(cell.seed + 1)
    schedule = build(text, shape, cell.recipe.length, cell.judging.longest)
    torch.manual_seed(cell.seed)
    return Model(shape, schedule)


def batches_of(cell: Cell, corpus: Corpus, recipe: Recipe) -> Batches:
    """What a cell is trained on: the text, or its task at every length that has room."""
    if not cell.task:
        return corpus.batches(cell.seed, recipe.batch, recipe.length)
    task = named(cell.task)
    return batches(task, recipe.batch, range(task.shortest, task.within(recipe.length) + 1), cell.seed)


def work(
    cell: Cell, corpus: Corpus, folder: Path, device: str, known: Known, here: World | None = None, spread: str = "ddp"
) -> Iterator[Event]:
    """Train the cell, going on from its checkpoint, then judge what is not known yet.

    Where there are more processes `here`, each calls this and trains along, spread by `spread`; the first alone judges
    and tells events.
    """
    torch.set_num_threads(cell.threads)
    here = World(0, 1, torch.device(device)) if here is None else here
    model = make(cell)
    if here.rank == 0:
        yield Described(model.count(), str(model.schedule[0]))
    path = folder / f"{cell.key}.safetensors"
    for event in _train(cell, model, corpus, path, here, spread):
        if here.rank == 0:
            yield event
    if here.rank == 0:
        yield from judged(cell, model if here.size == 1 else load(cell, path, here.device), corpus, known)


def _train(cell: Cell, model: Model, corpus: Corpus, path: Path, here: World, spread: str) -> Iterator[Event]:
    source, tokens = batches_of(cell, corpus.on(here.device), cell.recipe), 0

    def batch(step: int) -> tuple[Tensor, Tensor]:
        nonlocal tokens
        found = source(step)
        tokens += found[0].numel()
        return found

    if cell.task:
        model = model.to(here.device).uncompiled()
    if cell.recipe.compiled:
        # What was compiled for the cells before is never called again, and counts against a limit.
        torch.compiler.reset()
    trainer = Trainer(model, cell.recipe, batch, here.device, spread_over(here, spread))
    if trainer.spread.agreed(path.exists()):
        trainer.load(path)
    yield Stepped(trainer.step, [], 0.0, 0, trainer.done)
    losses: list[tuple[int, Tensor]] = []
    saved = begun = time.monotonic()
    pause = SAVE
    while not trainer.done:
        losses.append((trainer.step, trainer.advance()))
        if len(losses) < REPORT and not trainer.done:
            continue
        known = [(step, float(loss)) for step, loss in losses]
        now = time.monotonic()
        # Told before it is saved: a loss that was saved and not told would not be computed again.
        yield Stepped(trainer.step, known, now - begun, tokens, trainer.done)
        if trainer.spread.agreed(trainer.done or now - saved > pause):
            trainer.save(path)
            saved = time.monotonic()
            # At most a hundredth of the time goes into them.
            pause = SAVE * max(1.0, 50 * (saved - now))
        losses, tokens, begun = [], 0, time.monotonic()


def load(cell: Cell, path: Path, device: str | torch.device) -> Model:
    """The trained model of a cell."""
    model = make(cell)
    tensors, _ = read_checkpoint(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[f"model.{name}"])
    return model.to(device).eval()


def judged(cell: Cell, model: Model, corpus: Corpus, known: Known) -> Iterator[Score]:
    """Scores of the model as trained, then of every training-free row."""
    device = model.tokens.weight.device
    variants = [("", model)]
    for label, text in cell.variants:
        schedule = build(text, cell.shape, cell.recipe.length, cell.judging.longest)
        variants.append((label, model.using(schedule)))
    for label, each in variants:
        each.uncompiled()
        for protocol, length in asked(cell, label):
            if (label, protocol, length) in known:
                continue
            with torch.no_grad(), precision(cell.recipe, device):
                found = _judge(cell, each, corpus.test, protocol, length)
            yield _score(cell, label, protocol, length, found)


def depends(cell: Cell, variant: str, protocol: str) -> list[Any]:
    """What a score depends on besides the weights."""
    judging, text = cell.judging, dict(cell.variants).get(variant, "")
    own = {
        "windows": [judging.total], "sliding": [judging.total], "ends": [judging.longest, judging.ends],
        "alone": [judging.alone], "recall": [judging.copies],
    }  # fmt: skip
    counts = [judging.answers, judging.total] if protocol in PROTOCOLS else own.get(protocol, [])
    return [JUDGED, text, judging.longest if text and reads_longest(text) else None, *counts]


def wanted(cell: Cell) -> Known:
    """Every score that a cell should have."""
    labels = ["", *(label for label, _ in cell.variants)]
    return {(label, protocol, length) for label in labels for protocol, length in asked(cell, label)}


def asked(cell: Cell, variant: str = "") -> list[tuple[str, int]]:
    """The protocols and lengths that a row of a cell is judged by."""
    lengths = list(judge.lengths_up_to(cell.recipe.length, cell.judging.longest))
    if cell.task:
        return [(protocol, length) for protocol in protocols(cell.task) for length in lengths]
    found = [(name, length) for name in ("windows", "ends", "sliding", "alone") for length in lengths]
    # As trained and at that length alone: what a sliding window of it gives is the bar for every row and length.
    bar = [cell.recipe.length] if not variant else []
    found = [(name, length) for name, length in found if name in ("windows", "ends") or length in bar]
    found += [("recall", distance) for distance in cell.judging.recall]
    return [each for each in found if each[0] in cell.judging.protocols]


def _judge(cell: Cell, model: Model, text: Tensor, protocol: str, length: int) -> Tensor:
    judging = cell.judging
    if protocol in PROTOCOLS:
        task = PROTOCOLS[protocol].task
        count = min(judging.answers, max(FEWEST, judging.total // length))
        return score(model, task, task.within(length), count, cell.seed)[:, None]
    match protocol:
        case "windows":
            return judge.non_overlapping(model, text, length, judging.total)
        case "ends":
            # Half of the trained length at most, so that even there every byte has as much before it.
            last = min(judge.LAST, cell.recipe.length // 2)
            return judge.at_ends(model, text, length, judging.longest, judging.ends, last)
        case "sliding":
            return judge.sliding(model, text, length, max(1, length // 4), judging.total // 4)
        case "alone":
            return judge.each_alone(model, text, length, judging.alone)
        case _:
            return judge.recall(model, text, [length], count=judging.copies)[length]


def _score(cell: Cell, variant: str, protocol: str, length: int, bits: Tensor) -> Score:
    """A mean over windows, which are independent where single bytes are not; and the loss by position, in bins."""
    mean, half = judge.interval(bits.mean(1))
    detail: dict[str, Any] = {"asked": depends(cell, variant, protocol)}
    if protocol == "windows":
        detail |= {"last": float(bits[:, -judge.LAST :].mean()), "by_position": _binned(bits.mean(0))}
    return Score(cell.key, variant, protocol, length, mean, half if half == half else None, bits.numel(), detail)


def _binned(values: Tensor) -> list[tuple[int, float]]:
    """The mean bits of positions in bins that double: [first position, mean] each."""
    edges = [0, 1, 2, 4, 8]
    while edges[-1] < len(values):
        edges += [edges[-1] * 3 // 2, edges[-1] * 2]
    edges = sorted({min(edge, len(values)) for edge in edges})
    return [(a, float(values[a:b].mean())) for a, b in itertools.pairwise(edges)]
