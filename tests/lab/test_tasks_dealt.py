"""Examples drawn once and dealt anew every epoch."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from milepost.lab.tasks import HIERARCHY, Copy, Counting, dealt
from milepost.lab.tasks.task import NOT_JUDGED


def rows(batch: tuple[Tensor, Tensor]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Inputs and targets of each row without what it is filled up with."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for inputs, targets in zip(*batch, strict=True):
        end = int((targets != NOT_JUDGED).nonzero().max()) + 1
        assert (targets[end:] == NOT_JUDGED).all()
        found.append((tuple(inputs[:end].tolist()), tuple(targets[:end].tolist())))
    return found


def epoch(stream, number: int, each: int) -> list:
    return [row for step in range(number * each, (number + 1) * each) for row in rows(stream(step))]


def test_every_epoch_has_the_same_examples_in_another_order():
    stream = dealt(Copy(), 4, range(6, 13), 0, 40)
    first, second = epoch(stream, 0, 10), epoch(stream, 1, 10)
    assert Counter(first) == Counter(second)
    assert len(set(first)) == 40
    assert first != second
    assert Counter(len(inputs) for inputs, _ in first).keys() == {Copy().tokens(n) for n in range(6, 13)}


def test_a_step_is_the_same_whenever_it_is_asked_for():
    stream = dealt(Copy(), 4, range(6, 13), 3, 40)
    forwards = [rows(stream(step)) for step in range(25)]
    again = dealt(Copy(), 4, range(6, 13), 3, 40)
    assert [rows(again(step)) for step in reversed(range(25))] == forwards[::-1]
    other = epoch(dealt(Copy(), 4, range(6, 13), 4, 40), 0, 10)
    assert not set(other) & {row for batch in forwards for row in batch}


def test_a_batch_that_would_not_be_full_is_left_out_and_not_always_the_same():
    stream = dealt(Copy(), 4, range(6, 13), 0, 42)
    drawn = [Counter(epoch(stream, number, 10)) for number in range(6)]
    assert all(len(each) == 40 for each in drawn)
    assert len(set().union(*drawn)) == 42


def test_rows_of_about_one_length_come_together():
    stream = dealt(Copy(), 8, range(1, 100), 0, 800)
    lengths = [[len(inputs) for inputs, _ in rows(stream(n))] for n in range(99)]
    spread = [max(each) - min(each) for each in lengths]
    assert sum(spread) / len(spread) < 0.2 * Copy().tokens(99)
    # They do not come in order of their lengths.
    widths = torch.tensor([stream(n)[0].shape[1] for n in range(99)])
    assert (widths.diff() < 0).sum() > 30


def test_programs_keep_their_answers():
    """Each variable followed by hand through the tokens of Counting, whose rows differ in length by themselves."""
    task = Counting(3)
    inputs, targets = dealt(task, 16, range(3, 60), 0, 64)(2)
    for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
        place = next(n for n, each in enumerate(target) if each != NOT_JUDGED)
        counts: dict[int, int] = {}
        for before, token in pairwise(row[: place + 1]):
            if token == 13:
                counts[before] = 0
            elif token == 12:
                counts[before] += 1
        assert target[place] == counts[row[place]]


def test_what_cannot_be_dealt_is_refused():
    for make, message in (
        (lambda: dealt(HIERARCHY["odds-first"], 4, range(1, 9), 0, 8), "an encoder would see"),
        (lambda: dealt(Copy(), 4, range(1, 9), 0, 3), r"^dealt\(examples=3\): examples must be at least 4$"),
        (lambda: dealt(Copy(), 0, range(1, 9), 0, 3), r"^dealt\(size=0\): size must be at least 1$"),
        (lambda: dealt(Copy(), 4, range(1, 1), 0, 8), r"^dealt\(lengths=range\(1, 1\)\): there must be at least one"),
        (lambda: dealt(Copy(), 4, [0], 0, 8), "length must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
