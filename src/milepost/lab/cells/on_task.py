"""A cell on a task of one's own: at any lengths, with examples that come again, or at random positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from milepost.cache import Cache
from milepost.lab.cells.cell import Cell, started
from milepost.lab.judging.scoring import Scored
from milepost.lab.schemes.named import build, refuse_ahead, refuse_blind, refuse_hidden, try_out
from milepost.lab.statistics.intervals import interval
from milepost.lab.tasks.score import score, written_for
from milepost.lab.tasks.task import Task, batches, dealt
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.reader import Reader
from milepost.lab.training.train import Batches
from milepost.methods.samplers import Randomized
from milepost.schedule import Schedule
from milepost.seams import demand

COUNTED, RANDOM, EVEN = "counted", "random", "even"
"""Where tokens stand when a model is judged: at 0, 1, 2 …, at random places, or at evenly spaced ones."""


@dataclass(frozen=True, kw_only=True)
class OnTask(Cell):
    """What is trained and judged is `on`; lengths are the task's, not yet tokens.

    The recipe's length and the longest that is judged are in tokens, as for every cell: for tables, and for rows that
    ask how long the training was. `judging.answers` examples are judged at each length.
    """

    on: Task
    lengths: tuple[int, int]
    """The least and the greatest length that is trained at; between them all are as likely."""
    judged: tuple[int, ...] = ()
    """The lengths that are judged; the greatest one trained at if there are none."""
    examples: int | None = None
    """How many examples are drawn once, and seen again every epoch; every batch is fresh if None."""
    places: int = 0
    """How many random places tokens may stand at, drawn anew for every batch; with 0 they are counted."""

    def __post_init__(self) -> None:
        if not isinstance(self.on, Task):
            raise TypeError(f"OnTask(on={self.on!r}): on is a task, such as milepost.lab.tasks.Sort()")
        least, most = self.lengths
        if least > most:
            raise ValueError(f"OnTask(lengths={self.lengths}): the least length comes first")
        if not self.judged:
            object.__setattr__(self, "judged", (most,))
        for length in (least, *self.judged):
            demand.whole(self.on, "length", length, least=self.on.shortest)
        demand.whole(self.judging, "answers", self.judging.answers)
        if self.variants and self.on.bidirectional:
            raise ValueError(f"OnTask({self.on!r}): rows without training are for decoders; leave out variants")
        if self.places and self.recipe.compiled:
            raise ValueError("OnTask(places=…): random places are not drawn in a compiled graph; leave out compiled")
        longest = self.on.tokens(max(self.judged))
        object.__setattr__(self, "task", f"{self.on!r}, at random places" if self.places else repr(self.on))
        object.__setattr__(self, "recipe", replace(self.recipe, length=self.on.tokens(self.lengths[1])))
        object.__setattr__(self, "judging", replace(self.judging, longest=max(longest, self.recipe.length)))
        if 0 < self.places < self.judging.longest or self.places < 0:
            raise ValueError(
                f"OnTask(places={self.places}): there are up to {self.judging.longest} tokens to place; give as many "
                f"places at least, or 0 to count them"
            )

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        settings.pop("judged")
        return settings

    @property
    def written(self) -> str:
        return written_for(self.on, self.name)

    def check(self) -> None:
        try:
            # As it was given first: what is not known should be named as the user did.
            build(self.name, self.shape, self.recipe.length, self.judging.longest)
            schedule = self.model().schedule
            try_out(schedule, self.shape, self.judging.longest)
            if self.on.bidirectional:
                refuse_hidden(schedule, self.shape.heads)
            else:
                refuse_ahead(schedule, self.name)
            refuse_blind(schedule, self.name, self.shape.heads, self.recipe.length, self.judging.longest)
        except (ValueError, TypeError) as error:
            ahead = ", where tokens look ahead" if self.on.bidirectional else ""
            raise ValueError(f"{self.name} cannot be trained on {self.on!r}{ahead}: {error}") from None
        if self.examples is not None:
            demand.whole(self, "examples", self.examples, least=self.recipe.batch)

    def model(self) -> Model:
        scattered = partial(Scattered, places=Randomized(self.places)) if self.places else Model
        return started(self, self.on.vocabulary, scattered)

    def batches(self, corpus: Corpus) -> Batches:
        least, most = self.lengths
        every = range(least, most + 1)
        if self.examples is None:
            return batches(self.on, self.recipe.batch, every, self.seed)
        return dealt(self.on, self.recipe.batch, every, self.seed, self.examples)

    def asked(self, variant: str = "") -> list[tuple[str, int]]:
        return [(way, length) for way in ((RANDOM, EVEN) if self.places else (COUNTED,)) for length in self.judged]

    def scored(self, model: Reader, corpus: Corpus, protocol: str, length: int) -> Scored:
        places = Randomized(self.places) if self.places else None
        ways = {} if places is None else {RANDOM: places.sample, EVEN: places.evenly}
        right = score(model, self.on, length, self.judging.answers, self.seed, ways.get(protocol))
        mean, half = interval(right)
        return Scored(mean, half, len(right), tuple(map(float, right)), {})

    def depends(self, variant: str, protocol: str) -> list[Any]:
        return [*super().depends(variant, protocol), self.judging.answers]


class Scattered(Model):
    """A model whose tokens stand at random places while it is trained.

    Which ones is drawn from the tokens themselves, so that a step that is made again has the same.
    """

    def __init__(self, shape: Shape, schedule: Schedule, places: Randomized) -> None:
        super().__init__(shape, schedule)
        self.places = places

    def states(self, tokens: Tensor, caches: list[Cache] | None = None, position: Tensor | None = None) -> Tensor:
        if self.training and position is None:
            weights = torch.arange(1, tokens.numel() + 1, device=tokens.device)
            generator = torch.Generator().manual_seed(int((tokens.flatten() * weights).sum()))
            position = self.places.sample(tokens.shape[1], generator=generator).to(tokens.device)
        return super().states(tokens, caches, position)
