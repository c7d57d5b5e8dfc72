"""One number in a long text, asked for at its end: found from any depth, or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.lab.tasks.task import Task, asked
from milepost.seams import demand


def hidden(haystack: Tensor, needle: Tensor, depth: float | None, generator: torch.Generator) -> Tensor:
    """Return the haystack [b n] with the needle [b m] written over a part of it: at the depth or, if None, anywhere."""
    size, room = len(haystack), haystack.shape[1] - needle.shape[1]
    if depth is None:
        start = torch.randint(room + 1, (size,), generator=generator)
    else:
        start = torch.full((size,), round(depth * room))
    return haystack.scatter(1, start[:, None] + torch.arange(needle.shape[1]), needle)


def check_depth(owner: object, depth: float | None) -> None:
    """Demand a share of the text, or None."""
    if depth is not None:
        demand.finite(owner, "depth", depth, least=0)
        if depth > 1:
            raise ValueError(f"{demand.asked(owner, 'depth', depth)}: depth runs from 0, the start, to 1, the end")


@dataclass(frozen=True)
class Needle(Task):
    """Find the one marked number among letters, and say it when asked.

        g q ! 4 0 7 x m w ?   →   4 0 7

    length counts the letters, the mark and the number, not the question mark. depth is where the number stands, from
    0 (the start) to 1 (just before the question); None draws it for each example, as one does in training.
    """

    digits: int = 5
    letters: int = 26
    depth: float | None = None

    def __post_init__(self) -> None:
        demand.whole(self, "digits", self.digits)
        demand.whole(self, "letters", self.letters)
        check_depth(self, self.depth)

    @property
    def vocabulary(self) -> int:
        return 10 + self.letters + 2

    @property
    def answers(self) -> range:
        return range(10)

    @property
    def shortest(self) -> int:
        return self.digits + 1

    def tokens(self, length: int) -> int:
        return length + self.digits

    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        mark, question = (torch.full((size, 1), 10 + self.letters + which) for which in (0, 1))
        letters = 10 + torch.randint(self.letters, (size, length), generator=generator)
        number = torch.randint(10, (size, self.digits), generator=generator)
        text = hidden(letters, torch.cat([mark, number], 1), self.depth, generator)
        return asked(torch.cat([text, question], 1), number)


@dataclass(frozen=True)
class Passkey(Task):
    """The same in plain English bytes, which a model of language can be asked without being trained on it.

    length counts all bytes before the answer. The words that come before the number come again in the question.
    """

    digits: int = 5
    depth: float | None = None

    FILLER = b"The rain came down on the hills, and the river took it to the sea. Then the sun stood over the fields. "
    BEFORE, AFTER = b"The number to keep in mind is ", b". It will be asked for. "
    QUESTION = b"Now it is asked for. The number to keep in mind is "

    def __post_init__(self) -> None:
        demand.whole(self, "digits", self.digits)
        check_depth(self, self.depth)

    @property
    def vocabulary(self) -> int:
        return 256

    @property
    def answers(self) -> range:
        return range(ord("0"), ord("9") + 1)

    @property
    def shortest(self) -> int:
        return len(self.BEFORE + self.AFTER + self.QUESTION) + self.digits

    def tokens(self, length: int) -> int:
        return length + self.digits - 1

    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        number = ord("0") + torch.randint(10, (size, self.digits), generator=generator)
        needle = torch.cat([_rows(self.BEFORE, size), number, _rows(self.AFTER, size)], 1)
        filler = _rows((self.FILLER * (length // len(self.FILLER) + 1))[: length - len(self.QUESTION)], size)
        text = hidden(filler, needle, self.depth, generator)
        return asked(torch.cat([text, _rows(self.QUESTION, size)], 1), number)


def _rows(text: bytes, size: int) -> Tensor:
    return torch.tensor(list(text)).expand(size, -1)
