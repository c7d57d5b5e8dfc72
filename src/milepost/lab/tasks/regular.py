"""The regular tasks of the Chomsky-hierarchy set: a finite state is enough (Ruoss et al., 2023, arXiv:2305.16843)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milepost.lab.tasks.task import Encoded

MODULUS = 5
"""Numbers are counted modulo five in the whole set."""


@dataclass(frozen=True)
class EvenPairs(Encoded):
    """Whether 01 and 10 come an even number of times, together: 0 if so, 1 if not.

    0 0 1 1 1 0   →   0
    """

    symbols: ClassVar[int] = 2
    possible: ClassVar[range] = range(2)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(2, (size, length), generator=generator)
        return strings, (strings[:, 1:] ^ strings[:, :-1]).sum(1, keepdim=True) % 2


@dataclass(frozen=True)
class ParityCheck(Encoded):
    """Whether the number of ones is odd.

    1 0 1 0 1 0 0   →   1
    """

    symbols: ClassVar[int] = 2
    possible: ClassVar[range] = range(2)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(2, (size, length), generator=generator)
        return strings, strings.sum(1, keepdim=True) % 2


@dataclass(frozen=True)
class CycleNavigation(Encoded):
    """Where a walk on a ring of five ends that began at 0: symbol 0 is a step back, 1 a rest, 2 a step on.

    2 0 1 0 0   →   3
    """

    symbols: ClassVar[int] = 3
    possible: ClassVar[range] = range(MODULUS)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(3, (size, length), generator=generator)
        return strings, (strings - 1).sum(1, keepdim=True) % MODULUS


@dataclass(frozen=True)
class ModularArithmetic(Encoded):
    """The value modulo five of numbers joined by + (symbol 5), − (6) and × (7), which binds closer.

        1 + 2 × 3   →   2

    An expression has an odd number of symbols, so an even length gives one symbol less.
    """

    symbols: ClassVar[int] = MODULUS + 3
    possible: ClassVar[range] = range(MODULUS)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        numbers = torch.randint(MODULUS, (size, (length + 1) // 2), generator=generator)
        signs = torch.randint(MODULUS, MODULUS + 3, (size, numbers.shape[1] - 1), generator=generator)
        strings = numbers.repeat_interleave(2, 1)[:, :-1]
        strings[:, 1::2] = signs
        return strings, value_of(strings)[:, None]


def value_of(strings: Tensor) -> Tensor:
    """The values [b] of expressions [b n], read from the left: a sum so far, and the product not yet added to it."""
    total, product = torch.zeros_like(strings[:, 0]), strings[:, 0]
    for place in range(1, strings.shape[1], 2):
        sign, number = strings[:, place], strings[:, place + 1]
        times = sign == MODULUS + 2
        total = torch.where(times, total, total + product)
        number = torch.where(sign == MODULUS + 1, -number, number)
        product = torch.where(times, product * number % MODULUS, number)
    return (total + product) % MODULUS
