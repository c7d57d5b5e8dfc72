"""The fifteen tasks of the Chomsky-hierarchy set: examples by hand, and each rule again in plain Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milepost.lab.tasks import HIERARCHY
from milepost.lab.tasks.hierarchy import LEVELS

ALPHABETS = {
    "modular-arithmetic": "01234+-*",
    "modular-arithmetic-brackets": "01234+-*()",
    "solve-equation": "01234+-()x=",
}
"""The symbols of a string as one would write them; elsewhere they are written as numbers."""


def pairs(name: str, length: int, size: int, seed: int = 0) -> list[tuple[str, str]]:
    """Strings and results, written out."""
    task = HIERARCHY[name]
    inputs, targets = task.batch(size, length, torch.Generator().manual_seed(seed))
    n = inputs.shape[1] - task.places(length)
    return list(zip(written(inputs[:, :n], ALPHABETS.get(name)), written(targets[:, n:]), strict=True))


def written(rows: Tensor, alphabet: str | None = None) -> list[str]:
    alphabet = "0123456789" if alphabet is None else alphabet
    return ["".join(alphabet[token] for token in row if token != -100) for row in rows.tolist()]


HAND = [
    ("even-pairs", "001110", "0"),
    ("even-pairs", "0101001", "1"),
    ("even-pairs", "1", "0"),
    ("modular-arithmetic", "1+2*3", "2"),
    ("modular-arithmetic", "1-1-1", "4"),
    ("modular-arithmetic", "2-3*4", "0"),
    ("modular-arithmetic", "3", "3"),
    ("parity-check", "1010100", "1"),
    ("parity-check", "01111", "0"),
    # Symbols 0, 1, 2 are steps of -1, 0 and 1: one on, and then one back, a rest and two back.
    ("cycle-navigation", "20100", "3"),
    ("cycle-navigation", "2220", "2"),
    ("stack-manipulation", "0110422", "1102"),
    ("stack-manipulation", "110222", "2"),
    # To pop an empty stack does nothing.
    ("stack-manipulation", "12223", "02"),
    ("stack-manipulation", "1", "12"),
    ("reverse-string", "011010", "010110"),
    ("modular-arithmetic-brackets", "(2*(-3))", "4"),
    ("modular-arithmetic-brackets", "(1-4)", "2"),
    ("modular-arithmetic-brackets", "(-2)", "3"),
    ("modular-arithmetic-brackets", "-2", "3"),
    ("solve-equation", "(x+3)=2", "4"),
    ("solve-equation", "(2-x)=3", "4"),
    ("solve-equation", "-x=1", "4"),
    ("solve-equation", "x=3", "3"),
    ("solve-equation", "00", "0"),
    ("duplicate-string", "101", "101101"),
    ("missing-duplicate", "01100210", "1"),
    ("missing-duplicate", "1011213", "0"),
    ("missing-duplicate", "1", "1"),
    # Counted from 0, as in the authors' code.
    ("odds-first", "00110101", "01110100"),
    ("odds-first", "110", "110"),
    # 4 + 22 = 26, 1 + 3 = 4, each least bit first.
    ("binary-addition", "001201101", "010112"),
    ("binary-addition", "1211", "0012"),
    ("binary-addition", "0", "02"),
    ("binary-addition", "01", "012"),
    # 4 · 22 = 88, 1 · 3 = 3.
    ("binary-multiplication", "001201101", "00011012"),
    ("binary-multiplication", "1211", "112"),
    ("binary-multiplication", "0", "2"),
    ("binary-multiplication", "01", "02"),
    # 37 and 7, greatest bit first: the roots are 6 and 2.
    ("compute-sqrt", "100101", "110"),
    ("compute-sqrt", "111", "10"),
    ("bucket-sort", "30142", "01234"),
    ("bucket-sort", "4404", "0444"),
]


@pytest.mark.parametrize(("name", "string", "result"), HAND)
def test_an_example_by_hand(name: str, string: str, result: str):
    task, symbols = HIERARCHY[name], ALPHABETS.get(name, "0123456789")
    wanted = torch.tensor([symbols.index(each) for each in string])
    for size in (500, 20_000):
        inputs, targets = task.batch(size, len(string), torch.Generator().manual_seed(0))
        same = (inputs[:, : len(string)] == wanted).all(1)
        # So many are drawn that this one comes.
        if same.any():
            break
    assert set(written(targets[same])) == {result}


def stack_left(string: str) -> str:
    stack = ""
    for symbol in string:
        stack = {"2": stack[:-1], "3": stack + "0", "4": stack + "1"}.get(symbol, stack + symbol)
    return stack[::-1] + "2"


def number(bits: str) -> int:
    """Bits, least first."""
    return sum(2**place for place, bit in enumerate(bits) if bit == "1")


def bits(value: int) -> str:
    return bin(value)[:1:-1]


def missing(string: str) -> str:
    string = string.rstrip("3")
    half, place = len(string) // 2, string.index("2")
    return string[place + half if place < half else place - half]


def solution(string: str) -> str:
    left, right = string.split("=")
    return "".join(digit for digit in "01234" if eval(left.replace("x", digit)) % 5 == int(right))


def in_two(string: str, of: Callable[[int, int], int]) -> str:
    a, b = string.split("2")
    return bits(of(number(a), number(b))) + "2"


RULES: dict[str, Callable[[str], str]] = {
    "even-pairs": lambda s: str(sum(s[i : i + 2] in ("01", "10") for i in range(len(s))) % 2),
    "modular-arithmetic": lambda s: str(eval(s) % 5),
    "parity-check": lambda s: str(s.count("1") % 2),
    "cycle-navigation": lambda s: str((s.count("2") - s.count("0")) % 5),
    "stack-manipulation": stack_left,
    "reverse-string": lambda s: s[::-1],
    "modular-arithmetic-brackets": lambda s: str(eval(s) % 5),
    "solve-equation": solution,
    "duplicate-string": lambda s: s + s,
    "missing-duplicate": missing,
    "odds-first": lambda s: s[1::2] + s[::2],
    "binary-addition": lambda s: in_two(s, lambda a, b: a + b),
    "binary-multiplication": lambda s: in_two(s, lambda a, b: a * b),
    "compute-sqrt": lambda s: bits(math.isqrt(number(s[::-1])))[::-1].zfill((len(s) + 1) // 2),
    "bucket-sort": lambda s: "".join(sorted(s)),
}


@pytest.mark.parametrize("name", HIERARCHY)
@pytest.mark.parametrize("length", [5, 12, 41, 120])
def test_every_result_follows_the_rule(name: str, length: int):
    for string, result in pairs(name, length, 50):
        assert result == RULES[name](string)


@pytest.mark.parametrize("name", HIERARCHY)
def test_strings_are_of_the_length_asked_for(name: str):
    for length in (1, 2, 3, 4, 9, 40):
        wanted = length - 1 + length % 2 if name == "modular-arithmetic" else length
        assert {len(string) for string, _ in pairs(name, length, 20)} == {wanted}


PLACES = {
    "stack-manipulation": 21, "reverse-string": 20, "duplicate-string": 40, "odds-first": 20, "binary-addition": 21,
    "binary-multiplication": 20, "compute-sqrt": 10, "bucket-sort": 20,
}  # fmt: skip


@pytest.mark.parametrize("name", HIERARCHY)
def test_the_answer_is_read_at_blanks_after_the_string(name: str):
    task = HIERARCHY[name]
    inputs, targets = task.batch(6, 20, torch.Generator().manual_seed(0))
    places = PLACES.get(name, 1)
    assert task.places(20) == places
    assert (inputs[:, -places:] == task.vocabulary - 1).all()
    assert (inputs[:, :-places] < task.symbols).all()
    assert (targets[:, :-places] == -100).all()


def test_numbers_share_the_length_in_every_way_and_are_not_zero():
    for name in ("binary-addition", "binary-multiplication"):
        strings = [string for string, _ in pairs(name, 8, 2000)]
        assert {string.index("2") for string in strings} == {1, 2, 3, 4, 5, 6}
        assert all("1" in part for string in strings for part in string.split("2"))


def test_where_there_is_room_for_one_number_the_largest_never_comes():
    for name in ("binary-addition", "binary-multiplication"):
        assert {string for string, _ in pairs(name, 1, 100)} == {"0"}
        assert {string for string, _ in pairs(name, 2, 100)} == {"00", "10", "01"}


def test_a_stack_takes_any_share_of_the_length_but_all_of_it():
    heights = [len(re.match("[01]*", string)[0]) for string, _ in pairs("stack-manipulation", 6, 3000)]
    assert set(heights) == {1, 2, 3, 4, 5}
    for height in range(1, 6):
        assert abs(heights.count(height) / 3000 - 0.2) < 5 * math.sqrt(0.16 / 3000)


def test_the_sides_of_an_expression_share_its_length_alike():
    # Of seven characters, brackets and a sign leave four for the two sides.
    forms = [re.sub(r"\d", "d", string) for string, _ in pairs("modular-arithmetic-brackets", 7, 3000)]
    sides = ("d", "(d)"), ("-d", "-d"), ("(d)", "d")
    for form in (wanted := {f"({a}{sign}{b})" for sign in "+-*" for a, b in sides}):
        assert abs(forms.count(form) / 3000 - 1 / 9) < 5 * math.sqrt(8 / 81 / 3000)
    assert set(forms) == wanted


def test_x_is_the_only_unknown_and_may_be_any_digit():
    strings = [string for string, _ in pairs("solve-equation", 7, 500)]
    assert all(string.count("x") == 1 and string.count("=") == 1 for string in strings)
    assert {string.index("x") for string in strings} == {1, 3}


def test_the_gap_in_a_doubled_string_may_be_anywhere():
    assert {string.index("2") for string, _ in pairs("missing-duplicate", 9, 500)} == set(range(8))


def test_the_levels_hold_four_four_and_seven_tasks():
    assert [len(tasks) for tasks in LEVELS.values()] == [4, 4, 7]
    assert list(RULES) == list(HIERARCHY)


def test_guesses_score_as_the_paper_says_where_every_answer_is_a_bit_or_a_class():
    ended = {"stack-manipulation", "binary-addition", "binary-multiplication"}
    fifths = {"modular-arithmetic", "cycle-navigation", "modular-arithmetic-brackets", "solve-equation", "bucket-sort"}
    for name, task in HIERARCHY.items():
        assert task.random == (1 / 3 if name in ended else 1 / 5 if name in fifths else 1 / 2)
