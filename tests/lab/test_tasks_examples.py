"""The two experiments on tasks, run small from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from milepost.lab.tasks import HIERARCHY, Counting, trivial
from tests.examples import example_of

pytestmark = pytest.mark.slow

SMALL = ["--device", "cpu", "--steps", "3", "--batch", "4", "--width", "16", "--layers", "2", "--heads", "2"]


def test_counting_judges_three_schemes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "deep" / "counting.json"
    sized = ["--statements", "3", "20", "--block", "64", "--count", "12", "--lengths", "3"]
    rows = example_of("lab_counting").main([*SMALL, *sized, "--variables", "3", "5", "--out", str(out)])
    assert [(row["variables"], row["scheme"]) for row in rows] == [
        (n, name) for n in (3, 5) for name in ("absolute", "relative", "cope")
    ]
    assert all(0 <= row["error"] <= 1 and list(row["by_length"]) == ["3", "11", "20"] for row in rows)
    written = json.loads(out.read_text())
    assert [row["error"] for row in written] == [row["error"] for row in rows]
    printed = capsys.readouterr().out
    assert "3 variables       5 variables" in printed
    assert all(f"\n{name} " in printed for name in ("absolute", "relative", "cope"))
    wrong = [1 - trivial(Counting(n, 64), [3, 11, 20], 4) for n in (3, 5)]
    last = next(line for line in printed.splitlines() if line.startswith("always the same answer"))
    assert last.split()[-2:] == [f"{100 * each:.1f}" for each in wrong]


def test_the_schemes_of_counting_are_the_papers():
    module = example_of("lab_counting")
    made = {name: text.format(block=512, positions=513) for name, text in module.SCHEMES.items()}
    assert made == {
        "absolute": "Learned(512, width)",
        "relative": "Shaw(dim, reach=512 - 1, values=False)",
        "cope": "Cope(dim, 513)",
    }


def test_the_hierarchy_judges_counted_and_random_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "hierarchy.json"
    sized = ["--trained", "6", "--judged", "6", "12", "--count", "8"]
    rows = example_of("lab_hierarchy").main(
        [*SMALL, *sized, "--tasks", "parity-check", "odds-first", "--out", str(out)]
    )
    assert [(row["task"], row["randomized"]) for row in rows] == [
        (name, way) for name in ("parity-check", "odds-first") for way in (False, True)
    ]
    assert [list(row["accuracy"]) for row in rows] == [["counted"], ["random", "even"]] * 2
    for row in json.loads(out.read_text()):
        assert all(0 <= mean <= 1 for by_length in row["accuracy"].values() for mean, _ in by_length.values())
    printed = capsys.readouterr().out
    assert "length  trivial   counted    random      even" in printed
    assert printed.count("\nodds-first  ") == 2


def test_a_trivial_answer_is_the_symbol_that_comes_most_often():
    """By hand: a bit is as often 0 as 1, one of five symbols comes a fifth of the time; ends of sums are blank."""
    assert abs(trivial(HIERARCHY["odds-first"], [50], 512) - 0.5) < 0.02
    assert abs(trivial(HIERARCHY["bucket-sort"], [50], 512) - 0.2) < 0.02
    task = HIERARCHY["stack-manipulation"]
    _, targets = task.batch(256, 30, torch.Generator().manual_seed(30))
    shares = [[row.count(each) / sum(n != -100 for n in row) for row in targets.tolist()] for each in task.answers]
    assert trivial(task, [30], 256) == pytest.approx(max(sum(each) / 256 for each in shares))


def test_a_trivial_answer_is_one_for_all_lengths():
    """Programs of one statement set a variable to 0; in long ones most hold more."""
    task = Counting(3)
    answers: list[int] = []
    for length in (1, 400):
        _, targets = task.batch(64, length, torch.Generator().manual_seed(length))
        answers += [each for row in targets.tolist() for each in row if each != -100]
    assert answers[:64] == [0] * 64
    assert trivial(task, [1, 400], 64) == pytest.approx(answers.count(0) / 128)
    assert trivial(task, [400], 64) == pytest.approx(max(answers[64:].count(n) for n in range(11)) / 64)


@pytest.mark.parametrize(("given", "examples"), [([], 10_000), (["--programs", "40"], 40), (["--programs", "0"], None)])
def test_counting_sees_as_many_programs_as_it_is_told(
    given: list[str], examples: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module, seen = example_of("lab_counting"), []

    def trained_on(*asked, **named):
        seen.append(named["examples"])
        return real(*asked, **named | {"examples": None})

    real = module.trained_on
    monkeypatch.setattr(module, "trained_on", trained_on)
    sized = ["--statements", "3", "9", "--count", "2", "--lengths", "1", "--variables", "1", "--schemes", "rope"]
    module.main([*SMALL, *sized, *given, "--out", str(tmp_path / "counting.json")])
    assert seen == [examples]


def test_every_task_can_be_asked_for_at_once():
    module = example_of("lab_hierarchy")
    assert module.options_of(["--tasks", "all"]).tasks == ["all"]
    assert set(module.options_of([]).tasks) <= set(module.HIERARCHY)
