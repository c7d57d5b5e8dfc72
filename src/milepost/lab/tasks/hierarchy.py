"""The fifteen tasks of the Chomsky-hierarchy set, as used for randomized positions (Ruoss, 2023, arXiv:2305.16843).

They come in the order of the least machine that can do them: a finite state, then a stack, then a tape.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from milepost.lab.tasks.task import NOT_JUDGED, Task

MODULUS = 5
"""Numbers are counted modulo five in the whole set."""


@dataclass(frozen=True)
class Encoded(Task):
    """A string rewritten by an encoder.

        s_1 … s_n _ … _   →   r_1 … r_m,   each read at its own blank

    The model sees the string and as many blanks as the result has places, and answers all of them at once.
    """

    bidirectional: ClassVar[bool] = True
    alphabet: ClassVar[str] = "01"
    """The symbols of a string, as one would write them."""
    possible: ClassVar[range] = range(2)
    """The symbols a result is made of."""

    @abstractmethod
    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Strings [b n] and their results [b m]; −100 past a result's end."""

    def places(self, length: int) -> int:
        """Return how many places the result of a string has: one, for a class."""
        return 1

    @property
    def symbols(self) -> int:
        """Return how many symbols a string may hold."""
        return len(self.alphabet)

    @property
    def answers(self) -> range:
        return self.possible

    @property
    def vocabulary(self) -> int:
        return max(self.symbols, self.answers.stop) + 1

    def tokens(self, length: int) -> int:
        return length + self.places(length)

    def draw(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings, results = self.pairs(size, length, generator)
        inputs = torch.cat([strings, torch.full_like(results, self.vocabulary - 1)], 1)
        return inputs, torch.cat([torch.full_like(strings, NOT_JUDGED), results], 1)


class Drawn(Encoded):
    """Strings whose symbols are drawn one by one, each as likely."""

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        strings = torch.randint(self.symbols, (size, length), generator=generator)
        return strings, self.result(strings)

    @abstractmethod
    def result(self, strings: Tensor) -> Tensor:
        """Return what becomes of strings [b n]."""


class Rearranged(Drawn):
    """Strings of such symbols, whose results are as long as they are."""

    def places(self, length: int) -> int:
        return length


class Written(Encoded):
    """Strings and results written character by character, with Python's own random numbers."""

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draw = Random(int(torch.randint(1 << 62, (), generator=generator)))
        strings, results = zip(*self.examples(size, length, draw), strict=True)
        ended = [result.ljust(self.places(length)) for result in results]
        return spelled(strings, self.alphabet), spelled(ended, self.alphabet)

    @abstractmethod
    def examples(self, size: int, length: int, draw: Random) -> Iterable[tuple[str, str]]:
        """Return so many strings and their results."""


def spelled(rows: Sequence[str], alphabet: str) -> Tensor:
    """Rows of characters as tokens, int64 [b t]: each by its place in the alphabet, a blank as −100."""
    table = torch.full((128,), NOT_JUDGED)
    table[list(alphabet.encode())] = torch.arange(len(alphabet))
    codes = torch.frombuffer(bytearray("".join(rows).encode()), dtype=torch.uint8)
    return table[codes.long()].view(len(rows), -1)


# Regular: a finite state is enough.


class EvenPairs(Drawn):
    """Whether 01 and 10 come an even number of times, together, 0 if so: 0 0 1 1 1 0 → 0."""

    def result(self, strings: Tensor) -> Tensor:
        return (strings[:, 1:] ^ strings[:, :-1]).sum(1, keepdim=True) % 2


class ParityCheck(Drawn):
    """Whether the number of ones is odd: 1 0 1 0 1 0 0 → 1."""

    def result(self, strings: Tensor) -> Tensor:
        return strings.sum(1, keepdim=True) % 2


class CycleNavigation(Drawn):
    """Where a walk on a ring of five ends that began at 0; 0 is a step back, 1 a rest, 2 a step on: 2 0 1 0 0 → 3."""

    alphabet = "012"
    possible = range(MODULUS)

    def result(self, strings: Tensor) -> Tensor:
        return (strings - 1).sum(1, keepdim=True) % MODULUS


class ModularArithmetic(Encoded):
    """The value modulo five of numbers joined by +, − and ×, which binds closer.

        1 + 2 × 3   →   2

    An expression has an odd number of symbols, so an even length gives one symbol less.
    """

    alphabet = "01234+-*"
    possible = range(MODULUS)

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        numbers = torch.randint(MODULUS, (size, (length + 1) // 2), generator=generator)
        signs = torch.randint(MODULUS, self.symbols, (size, numbers.shape[1] - 1), generator=generator)
        strings = numbers.repeat_interleave(2, 1)[:, :-1]
        strings[:, 1::2] = signs
        return strings, self._value(strings)[:, None]

    def _value(self, strings: Tensor) -> Tensor:
        """Return values [b], read from the left: a sum so far, and the product not yet added to it."""
        total, product = torch.zeros_like(strings[:, 0]), strings[:, 0]
        for place in range(1, strings.shape[1], 2):
            sign, number = strings[:, place], strings[:, place + 1]
            times = sign == self.alphabet.index("*")
            total = torch.where(times, total, total + product)
            number = torch.where(sign == self.alphabet.index("-"), -number, number)
            product = torch.where(times, product * number % MODULUS, number)
        return (total + product) % MODULUS


# Deterministic context-free: a stack is enough.


class StackManipulation(Written):
    """A stack, bottom first, then what is done to it: 2 pops, 3 pushes a 0, 4 pushes a 1; then the stack, top first.

        0 1 1 0  4 2 2   →   1 1 0 2

    Symbol 2 ends the result. To pop an empty stack does nothing. How much of the length is stack is drawn: 1 … n − 1.
    """

    alphabet = "01234"
    possible = range(3)

    def places(self, length: int) -> int:
        return length + 1

    def examples(self, size: int, length: int, draw: Random) -> Iterable[tuple[str, str]]:
        heights = [draw.randint(1, max(1, length - 1)) for _ in range(size)]
        strings = ["".join(draw.choices("01", k=n) + draw.choices("234", k=length - n)) for n in heights]
        return [(string, f"{_final_stack(string)}2") for string in strings]


def _final_stack(string: str) -> str:
    """Return what is left of the stack, top first; the first stack is pushed like everything after it."""
    stack: list[str] = []
    for symbol in string:
        if symbol != "2":
            stack.append({"3": "0", "4": "1"}.get(symbol, symbol))
        elif stack:
            stack.pop()
    return "".join(reversed(stack))


class ReverseString(Rearranged):
    """A string of bits, backwards: 0 1 1 0 1 0 → 0 1 0 1 1 0."""

    def result(self, strings: Tensor) -> Tensor:
        return strings.flip(1)


class ModularArithmeticBrackets(Written):
    """The value modulo five of an expression in +, - and *, every operation in brackets: ((2+4)*(-3)) → 2."""

    alphabet = "01234+-*()"
    possible = range(MODULUS)

    def examples(self, size: int, length: int, draw: Random) -> Iterable[tuple[str, str]]:
        return [_expression(length, "+-*", draw) for _ in range(size)]


def _expression(length: int, signs: str, draw: Random) -> tuple[str, str]:
    """Return a random expression of so many characters, every operation in brackets, and its value modulo five.

    The length of its left side is drawn first, each as likely; up to four characters it is d, -d, (d) or (-d).
    """
    if length < 5:
        digit = draw.randrange(MODULUS)
        text, value = (f"-{digit}", -digit % MODULUS) if length % 2 == 0 else (f"{digit}", digit)
        return (f"({text})" if length > 2 else text), str(value)
    left_length = draw.randrange(1, length - 3)
    left, a = _expression(left_length, signs, draw)
    right, b = _expression(length - 3 - left_length, signs, draw)
    sign = draw.choice(signs)
    value = int(a) + int(b) if sign == "+" else int(a) - int(b) if sign == "-" else int(a) * int(b)
    return f"({left}{sign}{right})", str(value % MODULUS)


class SolveEquation(Written):
    """The digit that x stands for in an equation modulo five, of + and - and brackets.

        (x-(1+3))=2   →   1

    Below three symbols there is no equation: the string is of zeros, and so is the answer.
    """

    alphabet = "01234+-()x="
    possible = range(MODULUS)

    def examples(self, size: int, length: int, draw: Random) -> Iterable[tuple[str, str]]:
        return [_equation(length, draw) if length > 2 else ("0" * length, "0") for _ in range(size)]


def _equation(length: int, draw: Random) -> tuple[str, str]:
    """Return an equation and x: the digit at a random place of its left side or, if none is there, the next."""
    text, value = _expression(length - 2, "+-", draw)
    place = draw.randrange(len(text))
    while not text[place].isdigit():
        place = (place + 1) % len(text)
    return f"{text[:place]}x{text[place + 1 :]}={value}", text[place]


# Context-sensitive: they need a tape.


class DuplicateString(Drawn):
    """A string of bits, twice: 1 0 1 → 1 0 1 1 0 1."""

    def places(self, length: int) -> int:
        return 2 * length

    def result(self, strings: Tensor) -> Tensor:
        return torch.cat([strings, strings], 1)


class MissingDuplicate(Encoded):
    """The bit under symbol 2, in a string of bits that is written twice.

        0 1 1 0 0 2 1 0   →   1

    An odd length ends in symbol 3; a length of 1 is the string 1, whose answer is 1.
    """

    alphabet = "0123"

    def pairs(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if length == 1:
            ones = torch.ones(size, 1, dtype=torch.long)
            return ones, ones
        half = torch.randint(2, (size, length // 2), generator=generator)
        twice = torch.cat([half, half], 1)
        place = torch.randint(twice.shape[1], (size, 1), generator=generator)
        odd = torch.full((size, length % 2), 3)
        return torch.cat([twice.scatter(1, place, 2), odd], 1), twice.gather(1, place)


class OddsFirst(Rearranged):
    """The bits at odd places, counted from 0, and then those at even ones.

        0 0 1 1 0 1 0 1   →   0 1 1 1 0 1 0 0

    The paper's words count from 1; this is what its code does.
    """

    def result(self, strings: Tensor) -> Tensor:
        return torch.cat([strings[:, 1::2], strings[:, ::2]], 1)


class OfTwo(Written):
    """Two numbers in bits, least first, with a 2 between them; the result likewise, and ended by a 2.

    How the length is shared between them is drawn, then each number, from 1 up; zeros may stand at its end, but not at
    the result's.
    """

    alphabet = "012"
    possible = range(3)

    @abstractmethod
    def of(self, a: int, b: int) -> int:
        """Return what is computed."""

    def examples(self, size: int, length: int, draw: Random) -> Iterable[tuple[str, str]]:
        for _ in range(size):
            if length <= 2:
                # Room for one number only. The largest never comes: so it is in the authors' code.
                number = draw.randrange(2**length - 1)
                yield _bits(number, length), f"{_bits(self.of(number, 0))[: self.places(length) - 1]}2"
                continue
            first = draw.randint(1, length - 2)
            second = length - 1 - first
            a, b = draw.randint(1, 2**first - 1), draw.randint(1, 2**second - 1)
            yield f"{_bits(a, first)}2{_bits(b, second)}", f"{_bits(self.of(a, b))}2"


class BinaryAddition(OfTwo):
    """The sum of two numbers: 0 0 1 2 0 1 1 0 1 → 0 1 0 1 1 2 (4 + 22 = 26)."""

    def places(self, length: int) -> int:
        return length + 1

    def of(self, a: int, b: int) -> int:
        return a + b


class BinaryMultiplication(OfTwo):
    """The product of two numbers: 0 0 1 2 0 1 1 0 1 → 0 0 0 1 1 0 1 2 (4 · 22 = 88)."""

    def places(self, length: int) -> int:
        return length

    def of(self, a: int, b: int) -> int:
        return a * b


class ComputeSqrt(Written):
    """The root of a number in bits, greatest first, rounded down: 1 0 0 1 0 1 → 1 1 0 (37, 6)."""

    def places(self, length: int) -> int:
        return (length + 1) // 2

    def examples(self, size: int, length: int, draw: Random) -> Iterable[tuple[str, str]]:
        numbers = [draw.randint(1, 2**length - 1) for _ in range(size)]
        return [(f"{n:0{length}b}", f"{math.isqrt(n):0{self.places(length)}b}") for n in numbers]


def _bits(number: int, length: int = 1) -> str:
    """Return a number in bits, least first, with zeros up to a length."""
    return f"{number:0{length}b}"[::-1]


class BucketSort(Rearranged):
    """Five symbols, sorted: 1 0 2 0 4 1 1 2 → 0 0 1 1 1 2 2 4."""

    alphabet = "01234"
    possible = range(5)

    def result(self, strings: Tensor) -> Tensor:
        return strings.sort(1).values


LEVELS: dict[str, dict[str, Encoded]] = {
    "regular": {
        "even-pairs": EvenPairs(),
        "modular-arithmetic": ModularArithmetic(),
        "parity-check": ParityCheck(),
        "cycle-navigation": CycleNavigation(),
    },
    "deterministic context-free": {
        "stack-manipulation": StackManipulation(),
        "reverse-string": ReverseString(),
        "modular-arithmetic-brackets": ModularArithmeticBrackets(),
        "solve-equation": SolveEquation(),
    },
    "context-sensitive": {
        "duplicate-string": DuplicateString(),
        "missing-duplicate": MissingDuplicate(),
        "odds-first": OddsFirst(),
        "binary-addition": BinaryAddition(),
        "binary-multiplication": BinaryMultiplication(),
        "compute-sqrt": ComputeSqrt(),
        "bucket-sort": BucketSort(),
    },
}
"""The tasks by the least machine that can do them."""

HIERARCHY: dict[str, Encoded] = {name: task for level in LEVELS.values() for name, task in level.items()}
