"""The two experiments on tasks, run small from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.lab.cells.store import Store
from milepost.lab.tasks import HIERARCHY, Counting, trivial
from tests.examples import example_of

pytestmark = pytest.mark.slow

SMALL = ["--device", "cpu", "--steps", "3", "--batch", "4", "--width", "16", "--layers", "2", "--heads", "2"]
FEW = ["--statements", "3", "8", "--block", "64", "--count", "36", "--programs", "40"]


def test_counting_judges_three_schemes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    module, asked = example_of("lab_counting"), [*SMALL, *FEW, "--out", str(tmp_path / "deep")]
    module.main(asked)
    printed = capsys.readouterr().out
    assert "3 variables       5 variables" in printed
    lines = {line[:28].strip(): line[28:].split() for line in printed.splitlines() if "±" in line or "always" in line}
    assert list(lines) == ["absolute", "relative", "cope", "always the same answer"]
    lengths = range(3, 9)
    wrong = [1 - trivial(Counting(n, 64), lengths, 6) for n in (3, 5)]
    assert lines["always the same answer"] == [f"{100 * each:.1f}" for each in wrong]
    store = Store(tmp_path / "deep" / "lab.sqlite")
    for (scheme, n), (cell,) in module.cells_of(module.options_of(asked)).items():
        scores = store.scores(cell.key)
        assert [score.length for score in scores] == list(lengths)
        answers = [each for score in scores for each in score.windows]
        assert len(answers) == 36
        assert lines[scheme][0 if n == 3 else 3] == f"{100 * (1 - sum(answers) / 36):.1f}"
    store.close()


def test_the_schemes_of_counting_are_the_papers():
    module = example_of("lab_counting")
    made = {name: text.format(block=512, positions=513) for name, text in module.SCHEMES.items()}
    assert made == {
        "absolute": "Learned(512, width)",
        "relative": "Shaw(dim, reach=512 - 1, values=False)",
        "cope": "Cope(dim, 513)",
    }


def test_the_hierarchy_judges_counted_and_random_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    module = example_of("lab_hierarchy")
    sized = ["--trained", "6", "--judged", "6", "12", "--count", "8", "--tasks", "parity-check", "odds-first"]
    asked = [*SMALL, *sized, "--seeds", "0", "1", "--out", str(tmp_path)]
    module.main(asked)
    printed = capsys.readouterr().out
    assert "length  trivial   counted    random      even" in printed
    store = Store(tmp_path / "lab.sqlite")
    for name, cells in module.cells_of(module.options_of(asked)).items():
        assert [(cell.seed, cell.places) for cell in cells] == [(0, 0), (0, 2048), (1, 0), (1, 2048)]
        lines = [line.split() for line in printed.splitlines() if line.startswith(f"{name} ")]
        assert [line[1] for line in lines] == ["6", "12"]
        for column, way, which in ((3, "counted", 0), (4, "random", 1), (5, "even", 1)):
            means = [score.mean for cell in cells[which::2] for score in store.scores(cell.key)
                     if (score.protocol, score.length) == (way, 12)]  # fmt: skip
            assert lines[1][column] == f"{50 * sum(means):.1f}"
    store.close()


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
def test_counting_sees_as_many_programs_as_it_is_told(given: list[str], examples: int | None):
    module = example_of("lab_counting")
    cells = module.cells_of(module.options_of(given))
    assert {cell.examples for own in cells.values() for cell in own} == {examples}
    assert {(cell.on.variables, cell.on.block, cell.lengths) for own in cells.values() for cell in own} == {
        (3, 512, (3, 512)), (5, 512, (3, 512))
    }  # fmt: skip


def test_every_task_can_be_asked_for_at_once():
    module = example_of("lab_hierarchy")
    assert module.options_of(["--tasks", "all"]).tasks == ["all"]
    assert set(module.options_of([]).tasks) <= set(module.HIERARCHY)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lab_counting", ["--count", "0"], "--count 0: give at least 1"),
        ("lab_counting", ["--positions", "0"], "--positions 0: give at least 1"),
        ("lab_counting", ["--statements", "16", "3"], "--statements 16 3: the least comes first"),
        ("lab_hierarchy", ["--places", "0"], "--places 0: give at least 1"),
        ("lab_hierarchy", ["--count", "0"], "--count 0: give at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_option(name: str, given: list[str], message: str):
    module = example_of(name)
    with pytest.raises(ValueError, match=message):
        module.cells_of(module.options_of(given))


def test_expressions_of_ones_own_may_have_braces():
    module = example_of("lab_counting")
    (found,) = module.cells_of(module.options_of(["--schemes", "{x}", "--variables", "3"]))["{x}", 3]
    assert found.name == "{x}"
