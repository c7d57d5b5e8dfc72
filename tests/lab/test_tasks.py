"""What every task obeys: shapes, purity, lengths, and what a guess scores."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost.lab.tasks import HIERARCHY, TASKS, Copy, Counting, Needle, Passkey, Reverse, Sort, Task, batches, named

EVERY = pytest.mark.parametrize("name", TASKS)


def drawn(task: Task, length: int, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    return task.batch(size, length, torch.Generator().manual_seed(seed))


def some_length(task: Task) -> int:
    return task.shortest + 8


@EVERY
def test_inputs_and_targets_are_whole_numbers_of_one_shape(name: str):
    task = TASKS[name]
    inputs, targets = drawn(task, some_length(task))
    assert inputs.shape == targets.shape
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.min() >= 0
    assert inputs.max() < task.vocabulary
    judged = targets[targets != -100]
    assert set(judged.tolist()) <= set(task.answers)
    assert (targets != -100).any(1).all()


@EVERY
def test_a_batch_is_as_wide_as_its_length_says(name: str):
    task = TASKS[name]
    for length in (task.shortest, task.shortest + 1, task.shortest + 30):
        wide = drawn(task, length)[0].shape[1]
        if name == "counting":
            assert length + 2 <= wide <= task.tokens(length)
        elif name == "modular-arithmetic":
            assert wide == length - (length + 1) % 2 + 1
        else:
            assert wide == task.tokens(length)


@EVERY
def test_a_batch_depends_on_its_seed_and_step_alone(name: str):
    task = TASKS[name]
    lengths = range(some_length(task), some_length(task) + 5)
    torch.manual_seed(1)
    first = batches(task, 4, lengths, seed=7)(12)
    torch.manual_seed(2)
    stream = batches(task, 4, lengths, seed=7)
    others = [stream(13), stream(11), batches(task, 4, lengths, seed=8)(12)]
    again = stream(12)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not any(first[0].equal(other[0]) for other in others)


@EVERY
def test_a_guess_scores_what_the_task_says(name: str):
    task, size = TASKS[name], 400
    _, targets = drawn(task, some_length(task), size)
    logits = torch.randn(*targets.shape, task.vocabulary, generator=torch.Generator().manual_seed(1))
    # Five standard errors of a mean over rows, none of which varies more than a single guess.
    bound = 5 * math.sqrt(task.random * (1 - task.random) / size)
    assert abs(float(task.accuracy(logits, targets).mean()) - task.random) < bound


@EVERY
def test_the_right_answers_score_one(name: str):
    task = TASKS[name]
    _, targets = drawn(task, some_length(task))
    logits = torch.nn.functional.one_hot(targets.clamp(min=0), task.vocabulary).float()
    assert task.accuracy(logits, targets).tolist() == [1] * 8
    assert task.exact(logits, targets).tolist() == [1] * 8


def test_accuracy_counts_tokens_and_exact_counts_whole_answers():
    task = Copy(4)
    targets = torch.tensor([[-100, 1, 2, 3], [-100, 0, 0, 0], [-100, -100, -100, 2]])
    said = torch.tensor([[0, 1, 2, 0], [3, 0, 0, 0], [0, 0, 0, 1]])
    logits = torch.nn.functional.one_hot(said, task.vocabulary).float()
    assert task.accuracy(logits, targets).tolist() == pytest.approx([2 / 3, 1, 0])
    assert task.exact(logits, targets).tolist() == [0, 1, 0]


def test_tokens_that_are_no_answers_are_not_guessed():
    targets = torch.tensor([[-100, 1]])
    logits = torch.tensor([[[0.0, 0, 0, 0, 0], [0, 1, 0, 0, 9]]])
    assert Copy(4).accuracy(logits, targets).tolist() == [1]


def test_only_the_hierarchy_is_for_encoders():
    assert {name for name, task in TASKS.items() if task.bidirectional} == set(HIERARCHY)
    assert len(HIERARCHY) == 15


def test_every_length_of_a_range_comes_and_no_other():
    stream = batches(Copy(), 2, range(3, 8), seed=0)
    assert {stream(step)[0].shape[1] // 2 for step in range(60)} == {3, 4, 5, 6, 7}


def test_lengths_may_be_a_list():
    stream = batches(Copy(), 2, [4, 9], seed=0)
    assert {stream(step)[0].shape[1] // 2 for step in range(20)} == {4, 9}


def test_a_task_is_the_same_as_another_made_alike():
    assert Needle(depth=0.5) == Needle(depth=0.5)
    assert Copy(4) != Copy(5)
    assert Copy(4) != Reverse(4)


def test_an_unknown_task_is_refused_with_the_nearest():
    assert named("sort") == Sort()
    with pytest.raises(ValueError, match=r"^the task 'coppy' is not known; did you mean copy\?$"):
        named("coppy")
    with pytest.raises(ValueError, match=r"^the task 'zzz' is not known; there are copy, reverse, sort, addition, "):
        named("zzz")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: drawn(Needle(digits=5), 5), r"^Needle\(length=5\): length must be at least 6$"),
        (lambda: drawn(Copy(), 0), r"^Copy\(length=0\): length must be at least 1$"),
        (lambda: drawn(Copy(), 3, size=0), r"^Copy\(size=0\): size must be at least 1$"),
        (lambda: batches(Passkey(), 4, range(1, 200), 0), r"^Passkey\(length=1\): length must be at least 110$"),
        (lambda: batches(Copy(), 0, range(1, 9), 0), r"^batches\(size=0\): size must be at least 1$"),
        (
            lambda: batches(Copy(), 4, range(5, 5), 0),
            r"^batches\(lengths=range\(5, 5\)\): there must be at least one length, such as range\(1, 41\)$",
        ),
        (lambda: Copy(1), r"^Copy\(size=1\): size must be at least 2$"),
        (lambda: Counting(0), r"^Counting\(variables=0\): variables must be at least 1$"),
        (lambda: Needle(depth=1.5), r"^Needle\(depth=1.5\): depth runs from 0, the start, to 1, the end$"),
        (lambda: Passkey(depth=-1), r"^Passkey\(depth=-1\): depth must be at least 0$"),
    ],
)
def test_what_cannot_be_is_refused_by_name(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
