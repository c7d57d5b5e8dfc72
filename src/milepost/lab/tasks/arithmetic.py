"""Sums of long numbers, and counting: programs whose variables must be followed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.lab.tasks.task import NOT_JUDGED, Task, asked
from milepost.seams import demand


@dataclass(frozen=True)
class Addition(Task):
    """The sum of two numbers of `length` digits each, zeros in front included.

        0 7 + 9 5 =   →   1 0 2

    units_first writes all three numbers backwards, so that a carry is known before it is needed.
    """

    units_first: bool = False

    def __post_init__(self) -> None:
        demand.flag(self, "units_first", self.units_first)

    @property
    def vocabulary(self) -> int:
        return 12

    @property
    def answers(self) -> range:
        return range(10)

    def tokens(self, length: int) -> int:
        return 3 * length + 2

    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = (torch.randint(10, (size, length), generator=generator) for _ in range(2))
        numbers = a, b, total(a, b)
        a, b, c = (each.flip(1) for each in numbers) if self.units_first else numbers
        plus, equals = (torch.full((size, 1), 10 + which) for which in (0, 1))
        return asked(torch.cat([a, plus, b, equals], 1), c)


def total(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums [b n + 1] of numbers in digits [b n], greatest first."""
    places = torch.nn.functional.pad(a + b, (1, 0))
    for place in range(places.shape[1] - 1, 0, -1):
        places[:, place - 1] += places[:, place] // 10
    return places % 10


# How often a statement is drawn: pass, raise, assign; as the authors have it.
PASS, RAISE, ASSIGN = 50, 7, 1
LARGEST = 10
# The tokens: the numbers 0 … 10, these, and then one for each variable.
PASSES, RAISES, EQUALS, ENDS, PRINTS, BLANK, FIRST = range(LARGEST + 1, LARGEST + 8)


@dataclass(frozen=True)
class Counting(Task):
    """What a variable holds at the end of a program, as CoPE was tested (Golovneva et al., 2024, arXiv:2405.18719).

        pass;  b = 0 ;  pass;  b ++;  a = 0 ;  b ++;  print b   →   2

    length is the number of statements before `print`. Each is drawn by weight: pass; (50), v ++; (7) for one of the
    variables that are set, or v = 0 ; (1) for any; a variable that holds 10 is not raised, and another statement is
    drawn. At least one is set in every program. Statements have 1, 2 and 4 tokens, so rows differ and are filled up at
    their ends; of a program longer than `block`, answer included, the first tokens are cut off, as the authors do.
    """

    variables: int = 3
    block: int = 512

    def __post_init__(self) -> None:
        demand.whole(self, "variables", self.variables)
        demand.whole(self, "block", self.block, least=3)

    @property
    def vocabulary(self) -> int:
        return FIRST + self.variables

    @property
    def answers(self) -> range:
        return range(LARGEST + 1)

    def tokens(self, length: int) -> int:
        return min(4 * length + 2, self.block - 1)

    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        idle, passed = _passed(size, length, generator)
        assigns, variable, is_set, value = self._events(passed.shape, generator)
        # To raise what holds 10 fails, and is as if never drawn.
        happens = assigns | (_of(value, variable) <= LARGEST)
        number = idle[:, None] + (passed + happens).cumsum(1)
        last = (number <= length).sum(1) - 1
        rows = torch.arange(size)
        subject = _one_of(is_set[rows, last], generator)
        answer = _of(value[rows, last], subject).clamp(max=LARGEST)
        happens &= number <= length
        inputs, place = self._written(length, number, happens, assigns, variable, subject)
        targets = torch.full_like(inputs, NOT_JUDGED)
        targets[rows, place] = answer
        return inputs, targets

    def _events(self, shape: torch.Size, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All but passing: whether it assigns, and to what, [b e]; which variables are set then, and what to, [b e v].

        A variable holds as much as it was raised since it was last assigned, or 10 if that is more.
        """
        assigns = torch.randint(RAISE + ASSIGN, shape, generator=generator) >= RAISE
        assigns[:, 0] = True
        any_of = torch.randint(self.variables, shape, generator=generator)
        assigned = assigns[..., None] & (any_of[..., None] == torch.arange(self.variables))
        is_set = assigned.cumsum(1) > 0
        variable = torch.where(assigns, any_of, _one_of(is_set, generator))
        raised = ~assigns[..., None] & (variable[..., None] == torch.arange(self.variables))
        raises = raised.cumsum(1)
        return assigns, variable, is_set, raises - (raises * assigned).cummax(1).values

    def _written(
        self, length: int, number: Tensor, happens: Tensor, assigns: Tensor, variable: Tensor, subject: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Programs as tokens [b t], and where each is asked, [b]; number is the statement that an event is, from 1."""
        # Every statement has one token, an assignment three more, a rise one.
        more = happens * torch.where(assigns, 3, 1)
        start = number - 1 + more.cumsum(1) - more
        end = length + more.sum(1)
        # What does not happen is written in a column past the end, which nobody reads.
        spare = int(end.max()) + 2
        text = torch.where(torch.arange(spare + 1) < end[:, None], PASSES, BLANK)
        words = FIRST + variable, torch.where(assigns, EQUALS, RAISES), torch.tensor(0), torch.tensor(ENDS)
        for place, word in enumerate(words):
            written = happens if place < 2 else happens & assigns
            text.scatter_(1, torch.where(written, start + place, spare), word.expand_as(start))
        rows = torch.arange(len(end))
        text[rows, end], text[rows, end + 1] = PRINTS, FIRST + subject
        cut = (end + 3 - self.block).clamp(min=0)
        place = end + 1 - cut
        return text.gather(1, torch.arange(int(place.max()) + 1) + cut[:, None]), place


def _passed(size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return how many statements pass before the first event, [b], and then between each and the one before, [b e].

    The first event assigns, and comes within the length: to raise what is not set fails. There are events to spare: the
    chance that they end before the program does is below 1e-9.
    """
    stay = PASS / (PASS + ASSIGN)
    drawn = torch.rand(size, dtype=torch.float64, generator=generator)
    idle = ((-drawn * (1 - stay**length)).log1p() / math.log(stay)).long().clamp(max=length - 1)
    passed = torch.empty(size, length // 5 + 64, dtype=torch.long)
    passed.geometric_((RAISE + ASSIGN) / (PASS + RAISE + ASSIGN), generator=generator).sub_(1)
    passed[:, 0] = 0
    return idle, passed


def _one_of(is_set: Tensor, generator: torch.Generator) -> Tensor:
    """Return one of the variables that are set, [… v] to […], each as likely."""
    count = is_set.cumsum(-1)
    rank = (torch.rand(is_set.shape[:-1], dtype=torch.float64, generator=generator) * count[..., -1]).long()
    return (count > rank[..., None]).long().argmax(-1)


def _of(value: Tensor, variable: Tensor) -> Tensor:
    """Return the value [… v] of one variable […]."""
    return value.gather(-1, variable[..., None])[..., 0]
