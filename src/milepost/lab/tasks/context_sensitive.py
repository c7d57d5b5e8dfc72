"""The context-sensitive tasks of the Chomsky-hierarchy set: they need a tape (arXiv:2305.16843)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milepost.lab.tasks.context_free import random_from
from milepost.lab.tasks.task import Encoded, spelled


@dataclass(frozen=True)
class Rearranged(Encoded):
    """Strings of bits, written anew."""

    symbols: ClassVar[int] = 2
    possible: ClassVar[range] = range(2)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(2, (size, length), generator=generator)
        return strings, self.result(strings)

    @abstractmethod
    def result(self, strings: Tensor) -> Tensor:
        """Return what becomes of strings [b n]."""


@dataclass(frozen=True)
class DuplicateString(Rearranged):
    """A string of bits, twice.

    1 0 1   →   1 0 1 1 0 1
    """

    def places(self, length: int) -> int:
        return 2 * length

    def result(self, strings: Tensor) -> Tensor:
        return torch.cat([strings, strings], 1)


@dataclass(frozen=True)
class OddsFirst(Rearranged):
    """The bits at odd places, counted from 0, and then those at even ones.

        0 0 1 1 0 1 0 1   →   0 1 1 1 0 1 0 0

    The paper's words count from 1; this is what its code does.
    """

    def places(self, length: int) -> int:
        return length

    def result(self, strings: Tensor) -> Tensor:
        return torch.cat([strings[:, 1::2], strings[:, ::2]], 1)


@dataclass(frozen=True)
class BucketSort(Encoded):
    """Five symbols, sorted.

    1 0 2 0 4 1 1 2   →   0 0 1 1 1 2 2 4
    """

    symbols: ClassVar[int] = 5
    possible: ClassVar[range] = range(5)

    def places(self, length: int) -> int:
        return length

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(5, (size, length), generator=generator)
        return strings, strings.sort(1).values


@dataclass(frozen=True)
class MissingDuplicate(Encoded):
    """The bit under symbol 2, in a string of bits that is written twice.

        0 1 1 0 0 2 1 0   →   1

    An odd length ends in symbol 3; a length of 1 is the string 1, whose answer is 1.
    """

    symbols: ClassVar[int] = 4
    possible: ClassVar[range] = range(2)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if length == 1:
            ones = torch.ones(size, 1, dtype=torch.long)
            return ones, ones
        half = torch.randint(2, (size, length // 2), generator=generator)
        twice = torch.cat([half, half], 1)
        place = torch.randint(twice.shape[1], (size, 1), generator=generator)
        odd = torch.full((size, length % 2), 3)
        return torch.cat([twice.scatter(1, place, 2), odd], 1), twice.gather(1, place)


@dataclass(frozen=True)
class OfTwo(Encoded):
    """Two numbers in bits, least first, with a 2 between them; the result likewise, and ended by a 2.

    How the length is shared between them is drawn, then each number, from 1 up; zeros may stand at its end, but not at
    the result's.
    """

    symbols: ClassVar[int] = 3
    possible: ClassVar[range] = range(3)

    @abstractmethod
    def of(self, a: int, b: int) -> int:
        """Return what is computed."""

    @abstractmethod
    def too_short(self, number: int, length: int) -> str:
        """Return the result where a length of 1 or 2 leaves room for one number only."""

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draw = random_from(generator)
        strings: list[str] = []
        results: list[str] = []
        for _ in range(size):
            if length <= 2:
                # The largest number of so many bits never comes: so it is in the authors' code.
                number = draw.randrange(2**length - 1)
                strings.append(bits(number, length))
                results.append(self.too_short(number, length))
                continue
            first = draw.randint(1, length - 2)
            second = length - 1 - first
            a, b = draw.randint(1, 2**first - 1), draw.randint(1, 2**second - 1)
            strings.append(f"{bits(a, first)}2{bits(b, second)}")
            results.append(bits(self.of(a, b)))
        return spelled(strings, "012"), spelled([f"{each}2".ljust(self.places(length)) for each in results], "012")


@dataclass(frozen=True)
class BinaryAddition(OfTwo):
    """The sum of two numbers in bits, least first.

    0 0 1 2 0 1 1 0 1   →   0 1 0 1 1 2   (4 + 22 = 26)
    """

    def places(self, length: int) -> int:
        return length + 1

    def of(self, a: int, b: int) -> int:
        return a + b

    def too_short(self, number: int, length: int) -> str:
        return bits(number)


@dataclass(frozen=True)
class BinaryMultiplication(OfTwo):
    """The product of two numbers in bits, least first.

    0 0 1 2 0 1 1 0 1   →   0 0 0 1 1 0 1 2   (4 · 22 = 88)
    """

    def places(self, length: int) -> int:
        return length

    def of(self, a: int, b: int) -> int:
        return a * b

    def too_short(self, number: int, length: int) -> str:
        return "0" * (length - 1)


@dataclass(frozen=True)
class ComputeSqrt(Encoded):
    """The root of a number in bits, greatest first, rounded down.

    1 0 0 1 0 1   →   1 1 0   (37, 6)
    """

    symbols: ClassVar[int] = 2
    possible: ClassVar[range] = range(2)

    def places(self, length: int) -> int:
        return (length + 1) // 2

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draw = random_from(generator)
        numbers = [draw.randint(1, 2**length - 1) for _ in range(size)]
        strings = [bits(number, length)[::-1] for number in numbers]
        results = [bits(math.isqrt(number), self.places(length))[::-1] for number in numbers]
        return spelled(strings, "01"), spelled(results, "01")


def bits(number: int, length: int = 1) -> str:
    """Return a number in bits, least first, with zeros up to a length."""
    return f"{number:0{length}b}"[::-1]
