"""The deterministic context-free tasks of the Chomsky-hierarchy set: a stack is enough (arXiv:2305.16843)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from milepost.lab.tasks.regular import MODULUS
from milepost.lab.tasks.task import Encoded, spelled


def random_from(generator: torch.Generator) -> Random:
    """Python's own random numbers, begun from a generator of torch."""
    return Random(int(torch.randint(1 << 62, (), generator=generator)))


@dataclass(frozen=True)
class StackManipulation(Encoded):
    """A stack, bottom first, then what is done to it: 2 pops, 3 pushes a 0, 4 pushes a 1; then the stack, top first.

        0 1 1 0  4 2 2   →   1 1 0 2

    Symbol 2 ends the result. To pop an empty stack does nothing. How much of the length is stack is drawn: 1 … n − 1.
    """

    symbols: ClassVar[int] = 5
    possible: ClassVar[range] = range(3)

    def places(self, length: int) -> int:
        return length + 1

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draw = random_from(generator)
        heights = [draw.randint(1, max(1, length - 1)) for _ in range(size)]
        strings = ["".join(draw.choices("01", k=n) + draw.choices("234", k=length - n)) for n in heights]
        results = [f"{final_stack(string)}2".ljust(length + 1) for string in strings]
        return spelled(strings, "01234"), spelled(results, "012")


def final_stack(string: str) -> str:
    """Return what is left of the stack, top first; the first stack is pushed like everything after it."""
    stack: list[str] = []
    for symbol in string:
        if symbol != "2":
            stack.append({"3": "0", "4": "1"}.get(symbol, symbol))
        elif stack:
            stack.pop()
    return "".join(reversed(stack))


@dataclass(frozen=True)
class ReverseString(Encoded):
    """A string of bits, backwards.

    0 1 1 0 1 0   →   0 1 0 1 1 0
    """

    symbols: ClassVar[int] = 2
    possible: ClassVar[range] = range(2)

    def places(self, length: int) -> int:
        return length

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(2, (size, length), generator=generator)
        return strings, strings.flip(1)


def expression(length: int, signs: str, draw: Random) -> tuple[str, int]:
    """Return a random expression of so many characters, every operation in brackets, and its value modulo five.

    The length of its left side is drawn first, each as likely; up to four characters it is d, -d, (d) or (-d).
    """
    if length < 5:
        digit = draw.randrange(MODULUS)
        text, value = (f"-{digit}", -digit % MODULUS) if length % 2 == 0 else (f"{digit}", digit)
        return (f"({text})" if length > 2 else text), value
    left_length = draw.randrange(1, length - 3)
    left, a = expression(left_length, signs, draw)
    right, b = expression(length - 3 - left_length, signs, draw)
    sign = draw.choice(signs)
    value = a + b if sign == "+" else a - b if sign == "-" else a * b
    return f"({left}{sign}{right})", value % MODULUS


@dataclass(frozen=True)
class ModularArithmeticBrackets(Encoded):
    """The value modulo five of an expression in +, - and *, every operation in brackets.

    ((2+4)*(-3))   →   2
    """

    ALPHABET = "01234+-*()"

    symbols: ClassVar[int] = len(ALPHABET)
    possible: ClassVar[range] = range(MODULUS)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draw = random_from(generator)
        made = [expression(length, "+-*", draw) for _ in range(size)]
        return spelled([text for text, _ in made], self.ALPHABET), torch.tensor([[value] for _, value in made])


@dataclass(frozen=True)
class SolveEquation(Encoded):
    """The digit that x stands for in an equation modulo five, of + and - and brackets.

        (x-(1+3))=2   →   1

    Below three symbols there is no equation: the string is of zeros, and so is the answer.
    """

    ALPHABET = "01234+-()x="

    symbols: ClassVar[int] = len(ALPHABET)
    possible: ClassVar[range] = range(MODULUS)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if length < 3:
            return torch.zeros(size, length, dtype=torch.long), torch.zeros(size, 1, dtype=torch.long)
        draw = random_from(generator)
        made = [_equation(length, draw) for _ in range(size)]
        return spelled([text for text, _ in made], self.ALPHABET), torch.tensor([[digit] for _, digit in made])


def _equation(length: int, draw: Random) -> tuple[str, int]:
    """An equation and what x is: the digit at a random place of its left side or, if none stands there, the next."""
    text, value = expression(length - 2, "+-", draw)
    place = draw.randrange(len(text))
    while not text[place].isdigit():
        place = (place + 1) % len(text)
    return f"{text[:place]}x{text[place + 1 :]}={value}", int(text[place])
