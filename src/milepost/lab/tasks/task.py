"""What a task is: examples of any length, made from a seed, and how their answers are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from milepost.seams import demand

NOT_JUDGED = -100
"""The target of a token that no answer is read at."""

# Examples that are drawn once come from a seed that no step and no judge draws from. Of seeds torch reads 32 bits.
DRAWN_ONCE = 3 << 30
# Out of how many batches those of about one length are put together.
POOL = 16


@dataclass(frozen=True)
class Task(ABC):
    """Examples to train and to judge a model on.

    A decoder is asked as in language: the target of token i is what should follow it. An encoder (`bidirectional`)
    reads its answers at the places where they stand.
    """

    bidirectional: ClassVar[bool] = False
    """Whether tokens may look ahead."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Return how many tokens there are."""

    @property
    @abstractmethod
    def answers(self) -> range:
        """Return the tokens an answer is made of; others are never guessed."""

    @property
    def shortest(self) -> int:
        """Return the least length."""
        return 1

    @property
    def random(self) -> float:
        """Return the accuracy of a guess: one of the `answers` for every judged token, each as likely."""
        return 1 / len(self.answers)

    @abstractmethod
    def tokens(self, length: int) -> int:
        """Return how many tokens an example of this length has at most."""

    @abstractmethod
    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make a batch; ask `batch` for one, which checks the length."""

    def within(self, tokens: int) -> int:
        """Return the greatest length whose examples have at most so many tokens."""
        # Every step of length has a token of its own, at least.
        for length in range(tokens, self.shortest - 1, -1):
            if self.tokens(length) <= tokens:
                return length
        raise ValueError(
            f"even its shortest examples, of length {self.shortest}, have up to {self.tokens(self.shortest)} tokens, "
            f"and there is room for {tokens}"
        )

    def batch(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Examples of one length: inputs and targets, int64 [size, t] each; −100 where nothing is judged."""
        demand.whole(self, "size", size)
        demand.whole(self, "length", length, least=self.shortest)
        return self.draw(size, length, generator)

    def accuracy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The share of judged tokens that are right, for each example: logits [b t vocabulary] to float32 [b]."""
        right, judged = self._right(logits, targets)
        return right.sum(1) / judged.sum(1)

    def exact(self, logits: Tensor, targets: Tensor) -> Tensor:
        """1 where every judged token of an example is right, 0 elsewhere: logits [b t vocabulary] to float32 [b]."""
        right, judged = self._right(logits, targets)
        return (right == judged).all(1).float()

    def _right(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        judged = targets != NOT_JUDGED
        chosen = logits[..., self.answers.start : self.answers.stop].argmax(-1) + self.answers.start
        return (chosen == targets) & judged, judged


def asked(question: Tensor, answer: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a decoder that is given the question [b n] and must go on with the answer [b m]."""
    inputs = torch.cat([question, answer[:, :-1]], 1)
    return inputs, torch.cat([torch.full_like(question[:, 1:], NOT_JUDGED), answer], 1)


def batches(task: Task, size: int, lengths: Sequence[int], seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return the training batch of each step: a pure function of seed and step, so that any step can be redone.

    lengths: those a batch may have, each as likely, such as range(1, 41); one draw is shared by all its rows.
    """
    _checked(batches, task, size, lengths)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        chosen = int(torch.randint(len(lengths), (), generator=generator))
        return task.batch(size, lengths[chosen], generator)

    return batch


def dealt(
    task: Task, size: int, lengths: Sequence[int], seed: int, examples: int
) -> Callable[[int], tuple[Tensor, Tensor]]:
    """The training batch of each step, as `batches`, out of `examples` drawn once: every epoch deals all of them anew.

    Rows of about one length come together, shorter ones filled up at their ends, where a decoder does not look; a batch
    that would not be full is left out of its epoch.
    """
    _checked(dealt, task, size, lengths)
    demand.whole(dealt, "examples", examples, least=size)
    if task.bidirectional:
        raise ValueError(f"dealt({task!r}): an encoder would see what rows of other lengths are filled up with")
    rows = _drawn(task, lengths, examples, torch.Generator().manual_seed(DRAWN_ONCE + seed))
    each = examples // size

    @lru_cache(maxsize=1)
    def deal(epoch: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(DRAWN_ONCE + seed * 1_000_003 + epoch + 1)
        order = [int(row) for row in torch.randperm(examples, generator=generator)]
        for pool in range(0, examples, POOL * size):
            part = slice(pool, min(pool + POOL * size, each * size))
            order[part] = sorted(order[part], key=lambda row: len(rows[row][0]))
        turns = [int(turn) for turn in torch.randperm(each, generator=generator)]
        return [order[turn * size : (turn + 1) * size] for turn in turns]

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chosen = deal(step // each)[step % each]
        inputs, targets = ([rows[row][which] for row in chosen] for which in (0, 1))
        return pad_sequence(inputs, True), pad_sequence(targets, True, NOT_JUDGED)

    return batch


def _checked(maker: Callable[..., Any], task: Task, size: int, lengths: Sequence[int]) -> None:
    """Refuse what no batch can be made of."""
    demand.whole(maker, "size", size)
    if not len(lengths):
        call = f"{maker.__name__}(lengths={lengths!r})"
        raise ValueError(f"{call}: there must be at least one length, such as range(1, 41)")
    demand.whole(task, "length", min(lengths), least=task.shortest)


def _drawn(
    task: Task, lengths: Sequence[int], examples: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Return the inputs and targets of so many examples, [t] each, up to the last token that is judged."""
    drawn = torch.randint(len(lengths), (examples,), generator=generator)
    often = [int(count) for count in drawn.bincount(minlength=len(lengths))]
    rows: list[tuple[Tensor, Tensor]] = []
    for length, count in zip(lengths, often, strict=True):
        if count:
            for inputs, targets in zip(*task.batch(count, length, generator), strict=True):
                end = int((targets != NOT_JUDGED).nonzero().max()) + 1
                rows.append((inputs[:end], targets[:end]))
    return rows
