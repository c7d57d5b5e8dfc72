"""Copying, sums and needles: examples worked out by hand, and the rules behind them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from milepost.lab.tasks import Addition, Copy, Needle, Passkey, Reverse, Sort, Task
from milepost.lab.tasks.arithmetic import total


def drawn(task: Task, length: int, size: int = 64) -> tuple[Tensor, Tensor]:
    return task.batch(size, length, torch.Generator().manual_seed(0))


def answers(targets: Tensor) -> list[list[int]]:
    return [[token for token in row if token != -100] for row in targets.tolist()]


def found(task: Task, question: list[int], length: int) -> tuple[list[int], list[int]]:
    """The inputs and targets of an example that begins like this; so many are drawn that it comes."""
    inputs, targets = drawn(task, length, 100_000)
    row = (inputs[:, : len(question)] == torch.tensor(question)).all(1).nonzero()[0, 0]
    return inputs[row].tolist(), targets[row].tolist()


def test_a_copy_is_said_after_the_colon():
    inputs, targets = found(Copy(4), [3, 1, 2], 3)
    assert inputs == [3, 1, 2, 4, 3, 1]
    assert targets == [-100, -100, -100, 3, 1, 2]


def test_a_reversed_copy_is_said_backwards():
    inputs, targets = found(Reverse(4), [3, 1, 2], 3)
    assert inputs == [3, 1, 2, 4, 2, 1]
    assert targets == [-100, -100, -100, 2, 1, 3]


def test_a_sorted_copy_is_said_in_order():
    inputs, targets = found(Sort(4), [3, 1, 3], 3)
    assert inputs == [3, 1, 3, 4, 1, 3]
    assert targets == [-100, -100, -100, 1, 3, 3]


@pytest.mark.parametrize("task", [Copy(), Reverse(), Sort(), Addition(), Needle(), Passkey()])
def test_what_a_decoder_should_say_is_what_it_reads_next(task: Task):
    inputs, targets = drawn(task, task.shortest + 9)
    said = targets[:, :-1] != -100
    assert said.any()
    assert inputs[:, 1:][said].equal(targets[:, :-1][said])
    # Once the answer has begun, it goes on to the end.
    assert (targets != -100).long().diff(dim=1).min() == 0


def test_a_sum_worked_out_by_hand():
    inputs, targets = found(Addition(), [0, 7, 10, 9, 5, 11], 2)
    assert inputs == [0, 7, 10, 9, 5, 11, 1, 0]
    assert targets == [-100, -100, -100, -100, -100, 1, 0, 2]


def test_a_sum_with_units_first():
    inputs, targets = found(Addition(units_first=True), [7, 0, 10, 5, 9, 11], 2)
    assert inputs == [7, 0, 10, 5, 9, 11, 2, 0]
    assert targets == [-100, -100, -100, -100, -100, 2, 0, 1]


def test_a_carry_goes_all_the_way():
    assert total(torch.tensor([[9, 9, 9]]), torch.tensor([[0, 0, 1]])).tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize("units_first", [False, True])
def test_sums_of_long_numbers_are_right(units_first: bool):
    inputs, targets = drawn(Addition(units_first), 25)
    turn = -1 if units_first else 1
    for row, answer in zip(inputs.tolist(), answers(targets), strict=True):
        a, b, c = (int("".join(map(str, each[::turn]))) for each in (row[:25], row[26:51], answer))
        assert a + b == c
        assert len(answer) == 26


@pytest.mark.parametrize(("depth", "start"), [(0.0, 0), (0.25, 5), (0.5, 10), (1.0, 20)])
def test_a_needle_lies_at_the_depth_asked_for(depth: float, start: int):
    # 26 places, of which the mark and the number take 6: 20 are left to begin at.
    inputs, targets = drawn(Needle(depth=depth), 26)
    assert (inputs == 36).nonzero()[:, 1].tolist() == [start] * 64
    assert inputs[:, start + 1 : start + 6].tolist() == answers(targets)
    assert inputs[:, 26].tolist() == [37] * 64


def test_a_needle_without_a_depth_lies_anywhere():
    inputs, targets = drawn(Needle(), 26, 1000)
    start = (inputs == 36).nonzero()[:, 1]
    assert set(start.tolist()) == set(range(21))
    numbers = inputs.gather(1, start[:, None] + torch.arange(1, 6))
    assert numbers.tolist() == answers(targets)


def test_there_is_one_number_in_a_haystack():
    inputs, _ = drawn(Needle(), 40)
    assert (inputs[:, :40] < 10).sum(1).tolist() == [5] * 64


def test_a_passkey_as_it_is_read():
    inputs, targets = drawn(Passkey(digits=3, depth=0.0), 160, 1)
    number = bytes(answers(targets)[0]).decode()
    assert number.isdigit()
    text = bytes(inputs[0].tolist()).decode()
    assert text.startswith(f"The number to keep in mind is {number}. It will be asked for. ")
    assert text.endswith(f"Now it is asked for. The number to keep in mind is {number[:2]}")
    assert len(text) == 162


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0, None])
def test_a_passkey_is_told_once_before_it_is_asked(depth: float | None):
    task = Passkey(depth=depth)
    inputs, targets = drawn(task, 300)
    for row, answer in zip(inputs.tolist(), answers(targets), strict=True):
        text, number = bytes(row[:300]).decode(), bytes(answer).decode()
        assert text.count(f"keep in mind is {number}. It will be asked for. ") == 1
        assert sum(map(str.isdigit, text)) == 5


def test_a_deep_passkey_stands_right_before_the_question():
    inputs, _ = drawn(Passkey(depth=1.0), 300, 1)
    assert "It will be asked for. Now it is asked for." in bytes(inputs[0].tolist()).decode()
