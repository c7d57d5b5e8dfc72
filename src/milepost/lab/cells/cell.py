"""One cell of a sweep: a scheme and a seed, and all that decides its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from milepost.lab.judging import judge
from milepost.lab.judging.scoring import VALIDATION, Judging, Scored, scored
from milepost.lab.schemes import own
from milepost.lab.schemes.expressions import spelled
from milepost.lab.schemes.named import build, learns_bias, learns_more, origins_of, rates_in_words, reads_longest
from milepost.lab.schemes.own import Source
from milepost.lab.tasks import PROTOCOLS, batches, named, protocols
from milepost.lab.tasks.score import written_for
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Batches
from milepost.schedule import Schedule
from milepost.seams.arguments import named_as_in_0_1

# Raised when what is judged, or what is kept of it, changes: scores are then made again, from the checkpoints.
JUDGED = 3
# Settings are chosen at the trained length, and where it has been doubled so often.
FAR = 3
Known = set[tuple[str, str, int]]
"""Scores that need not be made again, each by its row, protocol and length."""


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
    version: int = 1
    """Raised when training computes something else from the same settings: models are then trained again."""
    task: str = ""
    """The task it is trained on and judged by; language if empty."""
    own: tuple[Source, ...] = ()
    """Files of methods that its scheme and rows are from; their text goes wherever the cell goes."""

    @cached_property
    def key(self) -> str:
        """Return what the trained weights depend on, hashed: judging and variants may grow without training again.

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
        """Return the key in stores of before the scheme was spelled out in it."""
        settings = self._settings()
        settings["name"] = spelled(self.name)
        settings["longest"] = self.judging.longest if reads_longest(self.name) else None
        return _hashed(settings)

    def _settings(self) -> dict[str, Any]:
        left_out = {"judging", "variants", "own", *([] if self.task else ["task"])}
        settings = {name: value for name, value in asdict(self).items() if name not in left_out}
        recipe, shape = settings["recipe"], settings["shape"]
        # Rates that nothing has are left out, and so is what came later and is as it was before.
        # A start by inputs has the name that it had before there was another.
        start = shape.pop("start")
        shape |= {"small": {}, "inputs": {"scaled": True}}.get(start, {"start": start})
        if shape["tied"]:
            shape.pop("tied")
        if not learns_bias(self.name):
            recipe.pop("bias_rate")
        if not learns_more(self.name) or self.recipe.learned_rate == 1.0:
            recipe.pop("learned_rate")
        return settings

    @property
    def written(self) -> str:
        """Return the scheme that is trained: as given, or with all in sight where its task looks ahead."""
        return written_for(named(self.task), self.name) if self.task else self.name

    @property
    def called(self) -> str:
        """Return what the cell is called among others."""
        if VALIDATION in self.judging.protocols:
            return f"{self.name}, rate {rates_in_words(self.recipe, self.name)}"
        return f"{self.name}, {self.task}, seed {self.seed}" if self.task else f"{self.name}, seed {self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return the cell as what JSON can hold."""
        return asdict(self)

    # What another library's models or another experiment need: a class of its own, with these methods and fields that
    # say what its numbers depend on.

    def check(self) -> None:
        """Refuse what could not be trained or judged, before anything is. A sweep does so for cells of its own."""

    def model(self) -> Reader:
        """Return the model as it starts."""
        return make(self)

    def batches(self, corpus: Corpus) -> Batches:
        """Return what it is trained on: the text, or its task at every length that has room."""
        recipe = self.recipe
        if not self.task:
            return corpus.batches(self.seed, recipe.batch, recipe.length)
        task = named(self.task)
        return batches(task, recipe.batch, range(task.shortest, task.within(recipe.length) + 1), self.seed)

    def asked(self, variant: str = "") -> list[tuple[str, int]]:
        """Return the protocols and lengths that a row is judged by."""
        lengths = list(judge.lengths_up_to(self.recipe.length, self.judging.longest))
        if VALIDATION in self.judging.protocols:
            # Nothing else: what is judged there chooses, and what chooses is never judged.
            return [(VALIDATION, length) for length in dict.fromkeys((lengths[0], lengths[: FAR + 1][-1]))]
        if self.task:
            return [(protocol, length) for protocol in protocols(self.task) for length in lengths]
        found = [(name, length) for name in ("windows", "ends", "sliding", "alone") for length in lengths]
        # As trained and at that length alone: what a sliding window of it gives is the bar for every row and length.
        bar = [self.recipe.length] if not variant else []
        found = [(name, length) for name, length in found if name in ("windows", "ends") or length in bar]
        found += [(name, distance) for name in ("recall", "passages") for distance in self.judging.recall]
        return [each for each in found if each[0] in self.judging.protocols]

    def scored(self, model: Reader, corpus: Corpus, protocol: str, length: int) -> Scored:
        """Return what a row's model has by one of these."""
        text = corpus.validation if protocol == VALIDATION else corpus.test
        return scored(self.judging, model, text, protocol, length, self.recipe.length, self.seed)

    def depends(self, variant: str, protocol: str) -> list[Any]:
        """Return what a score depends on besides the weights."""
        judging, text = self.judging, dict(self.variants).get(variant, "")
        by_protocol = {
            "windows": [judging.total], "sliding": [judging.total], "ends": [judging.longest, judging.ends],
            "alone": [judging.alone], "recall": [judging.copies, judging.copied],
            "passages": [judging.copies, judging.copied], VALIDATION: [judging.total, judging.validation],
        }  # fmt: skip
        counts = [judging.answers, judging.total] if protocol in PROTOCOLS else by_protocol.get(protocol, [])
        others = [list(found)] if text and (found := origins_of(text)) else []
        return [JUDGED, text, judging.longest if text and reads_longest(text) else None, *counts, *others]

    def wanted(self) -> Known:
        """Return every score that it should have."""
        labels = ["", *(label for label, _ in self.variants)]
        return {(label, protocol, length) for label in labels for protocol, length in self.asked(label)}


@cache
def _built(text: str, shape: Shape, trained: int, longest: int, from_where: tuple[str, ...]) -> dict[str, Any]:
    """All that a scheme is built of, layer by layer; of a method that is not milepost's, `from_where` says which."""
    with torch.random.fork_rng(devices=[]):
        return named_as_in_0_1(build(text, shape, trained, longest).to_dict())


def _hashed(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def make(cell: Cell) -> Model:
    """Return the model of a cell as it starts."""
    return started(cell, named(cell.task).vocabulary if cell.task else cell.shape.vocabulary)


def started(cell: Cell, vocabulary: int, kind: Callable[[Shape, Schedule], Model] = Model) -> Model:
    """Return a model with the same weights under every scheme, but for what the scheme itself learns."""
    shape = replace(cell.shape, vocabulary=vocabulary)
    torch.manual_seed(cell.seed + 1)
    schedule = build(cell.written, shape, cell.recipe.length, cell.judging.longest)
    torch.manual_seed(cell.seed)
    return kind(shape, schedule)
