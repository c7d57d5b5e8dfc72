"""CoPE's counting: programs read by an interpreter of their own, and drawn as the authors draw them."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from torch import Tensor

from milepost.lab.schemes.named import build
from milepost.lab.tasks import Counting
from milepost.lab.training.model import Model, Shape

BLANK = 16
WORDS = [*map(str, range(11)), "pass;", "++;", "=", ";", "print", "<pad>", *"abcdefgh"]


def drawn(task: Counting, length: int, size: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    return task.batch(size, length, torch.Generator().manual_seed(seed))


def program(row: list[int]) -> list[str]:
    return [WORDS[token] for token in row if token != BLANK]


def statements(words: list[str]) -> list[list[str]]:
    """One list of words for each statement; `print` and its variable are the last."""
    found: list[list[str]] = [[]]
    for word in words:
        found[-1].append(word)
        if word.endswith(";"):
            found.append([])
    return found


def value_of(words: list[str]) -> int:
    """What the variable printed holds, as one reads the program."""
    values: dict[str, int] = {}
    for statement in statements(words):
        match statement:
            case ["pass;"]:
                pass
            case [name, "=", "0", ";"]:
                values[name] = 0
            case [name, "++;"]:
                values[name] += 1
                assert values[name] <= 10, "no variable is raised past 10"
            case ["print", name]:
                return values[name]
            case _:
                raise AssertionError(f"no statement: {statement}")
    raise AssertionError("nothing is printed")


@pytest.mark.parametrize("variables", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 3, 60, 300])
def test_the_answer_is_what_the_program_prints(variables: int, length: int):
    inputs, targets = drawn(Counting(variables, block=4096), length)
    assert not inputs.eq(BLANK).all(1).any()
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        words = program(row)
        assert len(statements(words)) == length + 1
        last = len(words) - 1
        assert wanted[last] == value_of(words)
        assert wanted[:last] + wanted[last + 1 :] == [-100] * (len(row) - 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a = 0 ; a ++; a ++; print a", 2),
        ("pass; a = 0 ; a ++; print a", 1),
        ("a = 0 ; a ++; b = 0 ; print a", 1),
        ("a = 0 ; a ++; b = 0 ; print b", 0),
        ("b = 0 ; b ++; b = 0 ; print b", 0),
    ],
)
def test_a_program_by_hand(text: str, value: int):
    inputs, targets = drawn(Counting(2), 3, 20_000)
    wanted = torch.tensor([WORDS.index(word) for word in text.split()])
    same = (inputs[:, : len(wanted)] == wanted).all(1)
    assert same.any()
    assert (targets[same, len(wanted) - 1] == value).all()
    assert value_of(text.split()) == value


def authors_way(variables: int, length: int, draw: Random) -> tuple[list[str], int]:
    """The statements one after the other, drawn again whenever one fails: (what they are, what is printed)."""
    while True:
        values: dict[int, int] = {}
        kinds: list[str] = []
        while len(kinds) < length:
            kind = draw.choices(["set", "pass", "raise"], [1, 50, 7])[0]
            if kind == "set":
                values[draw.randrange(variables)] = 0
            elif kind == "raise":
                name = draw.choice(sorted(values)) if values else None
                if name is None or values[name] == 10:
                    continue
                values[name] += 1
            kinds.append(kind)
        if values:
            return kinds, values[draw.choice(sorted(values))]


def assert_as_often(ours: list[bool], theirs: list[bool]) -> None:
    """Two shares that differ by less than five standard errors of their difference."""
    a, b = sum(ours) / len(ours), sum(theirs) / len(theirs)
    both = (sum(ours) + sum(theirs)) / (len(ours) + len(theirs))
    assert abs(a - b) < 5 * math.sqrt(both * (1 - both) * (1 / len(ours) + 1 / len(theirs))) + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "length"), [(1, 100), (3, 6), (3, 150)])
def test_programs_are_drawn_as_the_authors_draw_them(variables: int, length: int):
    inputs, targets = drawn(Counting(variables, block=4096), length, 2000)
    written = [statements(program(row))[:-1] for row in inputs.tolist()]
    printed = targets.max(1).values.tolist()
    draw = Random(0)
    theirs = [authors_way(variables, length, draw) for _ in range(1000)]
    for value in range(11):
        assert_as_often([each == value for each in printed], [each == value for _, each in theirs])
    for kind, size in (("pass", 1), ("raise", 2), ("set", 4)):
        for place in {0, 1, length // 2, length - 1}:
            ours = [len(program[place]) == size for program in written]
            assert_as_often(ours, [kinds[place] == kind for kinds, _ in theirs])
    for most in (1, 2, length // 10, length // 7):
        ours = [sum(len(each) == 2 for each in program) <= most for program in written]
        assert_as_often(ours, [kinds.count("raise") <= most for kinds, _ in theirs])


def test_statements_come_by_weight():
    inputs, _ = drawn(Counting(3, block=4096), 60, 5000)
    # Within nine of the first assignment no variable can hold 10, and nothing fails.
    sizes = [[len(each) for each in statements(program(row))[:-1]] for row in inputs.tolist()]
    seen = [size for row in sizes for size in row[row.index(4) + 1 :][:9]]
    for size, weight in ((1, 50), (2, 7), (4, 1)):
        share = weight / 58
        assert abs(seen.count(size) / len(seen) - share) < 5 * math.sqrt(share * (1 - share) / len(seen))


def test_variables_are_raised_and_asked_alike():
    inputs, _ = drawn(Counting(3, block=4096), 300, 1000)
    asked = [program(row)[-1] for row in inputs.tolist()]
    for name in "abc":
        # With 300 statements all three are set in nearly every program.
        assert abs(asked.count(name) / 1000 - 1 / 3) < 5 * math.sqrt(2 / 9 / 1000)


def test_a_long_program_loses_its_beginning():
    whole, wanted = drawn(Counting(3, block=4096), 200)
    cut, still = drawn(Counting(3, block=128), 200)
    assert cut.shape[1] == 127
    for long, short, a, b in zip(whole.tolist(), cut.tolist(), wanted.tolist(), still.tolist(), strict=True):
        assert program(short) == program(long)[-127:]
        assert max(a) == max(b) == b[126]


def test_blanks_at_the_end_of_a_row_change_nothing():
    task = Counting(2)
    inputs, targets = drawn(task, 12, 8)
    assert (inputs == BLANK).any(), "rows should differ in length"
    shape = Shape(width=16, layers=2, heads=2, vocabulary=task.vocabulary)
    torch.manual_seed(0)
    model = Model(shape, build("rope", shape, 64, 64)).double()
    judged = targets != -100
    with torch.no_grad():
        plain = model(inputs)[judged]
        wider = torch.cat([inputs, torch.full((8, 5), BLANK)], 1)
        wider[wider == BLANK] = 3
        other = model(wider)[:, : inputs.shape[1]][judged]
    assert (plain - other).abs().max() < 1e-12
