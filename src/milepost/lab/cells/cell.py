"""One cell of a sweep: a scheme and a seed, trained and judged, reported as a stream of events.

Where a cell runs is not its business: the local engine reads its events as they come, Ray sends them from far away.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from milepost.lab.cells.events import Described as Described
from milepost.lab.cells.events import Event as Event
from milepost.lab.cells.events import Saved
from milepost.lab.cells.events import Stepped as Stepped
from milepost.lab.cells.store import Score
from milepost.lab.judging import judge
from milepost.lab.judging.costs import Cost, cost_of
from milepost.lab.judging.scoring import VALIDATION, scored
from milepost.lab.judging.scoring import Judging as Judging
from milepost.lab.schemes import own
from milepost.lab.schemes.expressions import spelled
from milepost.lab.schemes.named import build, learns_bias, learns_more, origins_of, rates_in_words, reads_longest
from milepost.lab.schemes.own import Source
from milepost.lab.tasks import PROTOCOLS, batches, named, protocols
from milepost.lab.tasks.run import written_for
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.parallel import World, spread_over
from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Batches, Trainer, precision, read_checkpoint

# Steps between two reports of the loss.
REPORT = 10
# Seconds between two checkpoints of a model in training; more where writing one takes long.
SAVE = 2.0
# Raised when what is judged, or what is kept of it, changes: scores are then made again, from the checkpoints.
JUDGED = 3
# Settings are chosen at the trained length, and where it has been doubled so often.
FAR = 3


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
    """Raised when training computes something else from the same settings: models are then trained again."""
    task: str = ""
    """The task it is trained on and judged by; language if empty."""
    own: tuple[Source, ...] = ()
    """Files of methods that its scheme and rows are from; their text goes wherever the cell goes."""

    @cached_property
    def key(self) -> str:
        """What the trained weights depend on, hashed: judging and variants may grow without training again.

        A scheme goes in as what it is built of, argument by argument, defaults too: a name that comes to stand for
        something else, in milepost or in an expression, is another cell. So is a method whose file has changed.
        """
        with own.using(self.own):
            settings = self._settings()
            from_where = origins_of(self.written)
            settings["name"] = _built(self.written, self.shape, self.recipe.length, self.judging.longest, from_where)
        if from_where:
            settings["own"] = from_where
        return _hashed(settings)

    @property
    def former_key(self) -> str:
        """The key in stores of before the scheme was spelled out in it."""
        settings = self._settings()
        settings["name"] = spelled(self.name)
        settings["longest"] = self.judging.longest if reads_longest(self.name) else None
        return _hashed(settings)

    def _settings(self) -> dict[str, Any]:
        left_out = {"judging", "variants", "own", *([] if self.task else ["task"])}
        settings = {name: value for name, value in asdict(self).items() if name not in left_out}
        recipe, shape = settings["recipe"], settings["shape"]
        # Rates that nothing has are left out, and so is what came later and is as it was before.
        if not shape["scaled"]:
            shape.pop("scaled")
        if not learns_bias(self.name):
            recipe.pop("bias_rate")
        if not learns_more(self.name) or self.recipe.learned_rate == 1.0:
            recipe.pop("learned_rate")
        return settings

    @property
    def written(self) -> str:
        """The scheme that is trained: as given, or with all in sight where its task looks ahead."""
        return written_for(named(self.task), self.name) if self.task else self.name

    @property
    def called(self) -> str:
        """What the cell is called among others."""
        if VALIDATION in self.judging.protocols:
            return f"{self.name}, rate {rates_in_words(self.recipe, self.name)}"
        return f"{self.name}, {self.task}, seed {self.seed}" if self.task else f"{self.name}, seed {self.seed}"

    def settings(self) -> dict[str, Any]:
        """The cell as what JSON can hold."""
        return asdict(self)

    def model(self) -> Reader:
        """The model as it starts. What another library made has cells of a class of its own, whose fields say which."""
        return make(self)


@cache
def _built(text: str, shape: Shape, trained: int, longest: int, from_where: tuple[str, ...]) -> dict[str, Any]:
    """All that a scheme is built of, layer by layer; of a method that is not milepost's, `from_where` says which."""
    with torch.random.fork_rng(devices=[]):
        return build(text, shape, trained, longest).to_dict()


def _hashed(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


Known = set[tuple[str, str, int]]
"""Scores that need not be made again, each by its row, protocol and length."""


def make(cell: Cell) -> Model:
    """The model of a cell as it starts: the same weights under every scheme, but for what the scheme itself learns."""
    task = named(cell.task) if cell.task else None
    shape = cell.shape if task is None else replace(cell.shape, vocabulary=task.vocabulary)
    torch.manual_seed(cell.seed + 1)
    schedule = build(cell.written, shape, cell.recipe.length, cell.judging.longest)
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
    own.use(cell.own)
    here = World(0, 1, torch.device(device)) if here is None else here
    model = cell.model()
    if here.rank == 0:
        yield Described(model.count(), model.equation())
    path = folder / f"{cell.key}.safetensors"
    for event in _train(cell, model, corpus, path, here, spread):
        if here.rank == 0:
            yield event
    if here.rank == 0:
        yield from judged(cell, model if here.size == 1 else load(cell, path, here.device), corpus, known)


def _train(cell: Cell, model: Reader, corpus: Corpus, path: Path, here: World, spread: str) -> Iterator[Event]:
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
        # Reported before it is saved: a loss that was saved and not reported would not be computed again.
        yield Stepped(trainer.step, known, now - begun, tokens, trainer.done)
        if trainer.spread.agreed(trainer.done or now - saved > pause):
            trainer.save(path)
            # Whoever sends it elsewhere does so now, and the time that takes counts.
            yield Saved(trainer.step)
            saved = time.monotonic()
            # At most a hundredth of the time goes into them.
            pause = SAVE * max(1.0, 50 * (saved - now))
        losses, tokens, begun = [], 0, time.monotonic()


def load(cell: Cell, path: Path, device: str | torch.device) -> Reader:
    """The trained model of a cell."""
    model = cell.model()
    tensors, _ = read_checkpoint(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[f"model.{name}"])
    return model.to(device).eval()


def judged(cell: Cell, model: Reader, corpus: Corpus, known: Known) -> Iterator[Score | Cost]:
    """Scores of the model as trained, then of every training-free row, and what each of the lab's own costs."""
    device = model.device
    for label, each in _rows(cell, model):
        each.uncompiled()
        left = [found for found in asked(cell, label) if (label, *found) not in known]
        for protocol, length in left:
            text = corpus.validation if protocol == VALIDATION else corpus.test
            with torch.no_grad(), precision(cell.recipe, device):
                found = scored(cell.judging, each, text, protocol, length, cell.recipe.length, cell.seed)
            detail = found.detail | {"asked": depends(cell, label, protocol)}
            yield Score(cell.key, label, protocol, length, found.mean, found.half, found.count, detail, found.windows)
        if isinstance(each, Model) and any(protocol == "windows" for protocol, _ in left):
            with precision(cell.recipe, device):
                yield Cost(cell.key, label, cost_of(each, cell.judging.longest))


def _rows(cell: Cell, model: Reader) -> Iterator[tuple[str, Reader]]:
    """The model as trained, then under the scheme of every training-free row, by label."""
    yield "", model
    for label, text in cell.variants:
        if not isinstance(model, Model):
            raise TypeError(f"{cell.called}: the row {label} changes a scheme, and {type(model).__name__} has none")
        yield label, model.using(build(text, cell.shape, cell.recipe.length, cell.judging.longest))


def depends(cell: Cell, variant: str, protocol: str) -> list[Any]:
    """What a score depends on besides the weights."""
    judging, text = cell.judging, dict(cell.variants).get(variant, "")
    by_protocol = {
        "windows": [judging.total], "sliding": [judging.total], "ends": [judging.longest, judging.ends],
        "alone": [judging.alone], "recall": [judging.copies, judging.copied],
        "passages": [judging.copies, judging.copied], VALIDATION: [judging.total, judging.validation],
    }  # fmt: skip
    counts = [judging.answers, judging.total] if protocol in PROTOCOLS else by_protocol.get(protocol, [])
    others = [list(found)] if text and (found := origins_of(text)) else []
    return [JUDGED, text, judging.longest if text and reads_longest(text) else None, *counts, *others]


def wanted(cell: Cell) -> Known:
    """Every score that a cell should have."""
    labels = ["", *(label for label, _ in cell.variants)]
    return {(label, protocol, length) for label in labels for protocol, length in asked(cell, label)}


def asked(cell: Cell, variant: str = "") -> list[tuple[str, int]]:
    """The protocols and lengths that a row of a cell is judged by."""
    lengths = list(judge.lengths_up_to(cell.recipe.length, cell.judging.longest))
    if VALIDATION in cell.judging.protocols:
        # Nothing else: what is judged there chooses, and what chooses is never judged.
        return [(VALIDATION, length) for length in dict.fromkeys((lengths[0], lengths[: FAR + 1][-1]))]
    if cell.task:
        return [(protocol, length) for protocol in protocols(cell.task) for length in lengths]
    found = [(name, length) for name in ("windows", "ends", "sliding", "alone") for length in lengths]
    # As trained and at that length alone: what a sliding window of it gives is the bar for every row and length.
    bar = [cell.recipe.length] if not variant else []
    found = [(name, length) for name, length in found if name in ("windows", "ends") or length in bar]
    found += [(name, distance) for name in ("recall", "passages") for distance in cell.judging.recall]
    return [each for each in found if each[0] in cell.judging.protocols]
