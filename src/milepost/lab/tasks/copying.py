"""Strings to be said again: as they were, backwards, or in order."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.lab.tasks.task import Task, asked
from milepost.seams import demand


@dataclass(frozen=True)
class Said(Task):
    """A string of random symbols, a colon, and the string that should follow it.

        s_1 … s_n :   →   r_1 … r_n

    length is n.
    """

    size: int = 16
    """How many symbols there are."""

    def __post_init__(self) -> None:
        demand.whole(self, "size", self.size, least=2)

    @abstractmethod
    def said(self, strings: Tensor) -> Tensor:
        """Return what should follow strings [b n]."""

    @property
    def vocabulary(self) -> int:
        return self.size + 1

    @property
    def answers(self) -> range:
        return range(self.size)

    def tokens(self, length: int) -> int:
        return 2 * length

    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(self.size, (size, length), generator=generator)
        colon = torch.full((size, 1), self.size)
        return asked(torch.cat([strings, colon], 1), self.said(strings))


@dataclass(frozen=True)
class Copy(Said):
    """Say a string again: 3 1 2 : 3 1 2."""

    def said(self, strings: Tensor) -> Tensor:
        return strings


@dataclass(frozen=True)
class Reverse(Said):
    """Say a string backwards: 3 1 2 : 2 1 3."""

    def said(self, strings: Tensor) -> Tensor:
        return strings.flip(1)


@dataclass(frozen=True)
class Sort(Said):
    """Say the symbols of a string in order: 3 1 2 : 1 2 3."""

    def said(self, strings: Tensor) -> Tensor:
        return strings.sort(1).values
