"""Tasks in a sweep: trained beside language, kept and gone on with as it is, and shown by the report."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from milepost.lab.cells import cell as cells
from milepost.lab.cells import work as at_work
from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.store import Store
from milepost.lab.cells.work import load
from milepost.lab.command import board
from milepost.lab.command.shown import table
from milepost.lab.judging import scoring
from milepost.lab.judging.scoring import Judging
from milepost.lab.report import Measure, gather, page, views
from milepost.lab.schemes import named as schemes
from milepost.lab.statistics.findings import Findings, Ran, Row
from milepost.lab.sweep.sweep import Sweep
from milepost.lab.tasks import TASKS, Needle, score
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe, Size
from milepost.lab.training.train import Trainer
from tests.lab.test_compare import done, refused, text  # noqa: F401
from tests.lab.test_sweep import TEXT, numbers, often, work

SIZE = Size(Shape(16, 1, 2, hidden=16), Recipe(length=24, batch=2, steps=7, rate=1e-2, warmup=2, compiled=True), 96)
JUDGING = Judging(96, total=256, answers=40, protocols=("windows",))
SWEEP = Sweep(("rope", "alibi"), SIZE, TEXT, judging=JUDGING, threads=1, tasks=("needle", "parity-check"))


@pytest.fixture(autouse=True, scope="module")
def _often():
    with pytest.MonkeyPatch.context() as patch:
        often(patch)
        patch.setitem(schemes.WITHOUT_TRAINING, "alibi", {})
        patch.setattr(torch, "compile", lambda function, **_: function)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    work(SWEEP, folder)
    return folder


def on(task: str, name: str = "rope") -> Cell:
    return next(cell for cell in SWEEP.cells() if (cell.name, cell.task) == (name, task))


@pytest.mark.parametrize("name", TASKS)
def test_the_longest_examples_that_fit_are_found(name: str):
    task = TASKS[name]
    for tokens in (task.tokens(task.shortest), 300, 1000):
        length = task.within(tokens)
        assert task.tokens(length) <= tokens < task.tokens(length + 1)
    with pytest.raises(ValueError, match="shortest examples"):
        task.within(task.tokens(task.shortest) - 1)


def test_there_is_a_cell_for_each_scheme_and_task_and_no_other_is_trained_again_for_it():
    assert [(cell.name, cell.task) for cell in SWEEP.cells()] == [
        (name, task) for name in ("rope", "alibi") for task in ("", "needle", "parity-check")
    ]
    assert len({cell.key for cell in SWEEP.cells()}) == 6
    alone = replace(SWEEP, tasks=()).cells()
    assert [cell.key for cell in alone] == [on("", name).key for name in ("rope", "alibi")]
    # A store of before there were tasks, own methods or own rates is still known: a key has none where there is none.
    settings = alone[0].settings() | {"longest": None}
    for name in ("judging", "variants", "task", "own"):
        settings.pop(name)
    for name in ("bias_rate", "learned_rate"):
        settings["recipe"].pop(name)
    for name in ("start", "tied"):
        settings["shape"].pop(name)
    assert alone[0].former_key == hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def test_batches_have_every_length_that_fits_and_enough_examples():
    source = on("needle").batches(TEXT)
    shapes = {tuple(source(step)[0].shape) for step in range(200)}
    # A mark and five digits at least, and five tokens more: the question mark, and the answer but for its last.
    assert shapes == {(32, length + 5) for length in range(6, 20)}
    assert not on("needle").recipe.compiled


def test_scores_are_those_of_the_trained_model(whole: Path):
    store = Store(whole / "lab.sqlite")
    for task in ("needle", "parity-check"):
        cell = on(task)
        model = load(cell, whole / f"{cell.key}.safetensors", "cpu").uncompiled()
        found = {(each.protocol, each.length): each for each in store.scores(cell.key) if not each.variant}
        judged_by = {
            "needle": {f"task:needle, depth {depth:g}": Needle(depth=depth) for depth in (0, 0.5, 1)},
            "parity-check": {"task:parity-check": TASKS["parity-check"]},
        }[task]
        assert set(found) == {(name, length) for name in judged_by for length in (24, 48, 96)}
        for name, each in judged_by.items():
            for length, count in ((24, 16), (48, 16), (96, 16)):
                right = score(model, each, each.within(length), count, 0)
                assert found[name, length].mean == pytest.approx(float(right.mean()), abs=1e-6)
                assert found[name, length].count == count
    store.close()


def test_hidden_numbers_are_judged_at_their_depth(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[float | None, int]] = []

    def noted(model: Model, task: Needle, length: int, count: int, seed: int) -> torch.Tensor:
        seen.append((task.depth, length))
        return torch.ones(count)

    monkeypatch.setattr(scoring, "score", noted)
    cell = replace(on("needle"), variants=())
    found = [each for each in at_work.judged(cell, cells.make(cell), TEXT, set()) if hasattr(each, "protocol")]
    # The question mark and all but the last digit of the answer take five tokens.
    assert seen == [(depth, length - 5) for depth in (0, 0.5, 1) for length in (24, 48, 96)]
    assert all(each.mean == 1 for each in found)


def test_more_examples_are_judged_where_they_are_short(tmp_path: Path):
    asked_for = replace(SWEEP, schemes=("nope",), tasks=("copy",), judging=replace(JUDGING, total=1024))
    work(asked_for, tmp_path)
    store = Store(tmp_path / "lab.sqlite")
    counts = {each.length: each.count for each in store.scores(asked_for.cells()[1].key)}
    assert counts == {24: 40, 48: 21, 96: 16}


def test_rows_without_training_are_judged_on_decoders_alone():
    assert {label for label, *_ in on("needle").wanted()} == {"", "window", "self-extend"}
    assert {label for label, *_ in on("parity-check").wanted()} == {""}


def test_interrupted_it_goes_on_to_the_same_numbers(whole: Path, tmp_path: Path):
    class Stop(Exception):
        pass

    def stop(cell: Cell, event: Event) -> None:
        if cell.task == "parity-check" and isinstance(event, Stepped) and event.step == 6:
            raise Stop

    with pytest.raises(Stop):
        work(SWEEP, tmp_path, stop)
    work(SWEEP, tmp_path)
    assert numbers(tmp_path) == numbers(whole)
    assert work(SWEEP, whole) == []


def test_the_report_and_the_terminal_tell_them(whole: Path):
    store = Store(whole / "lab.sqlite")
    found = gather(store, SWEEP)
    store.close()
    assert found.tasks() == (*cells.protocols("needle"), "task:parity-check")
    row, window = found.of("rope"), found.of("rope", "window")
    assert row is not None
    assert window is not None
    assert set(row.scores) == {"windows", *found.tasks()}
    assert set(window.scores) == {"windows", *cells.protocols("needle")}
    assert (found.ran.cells, found.ran.done) == (6, 6)
    html = page(found)
    assert ">parity-check<" in html
    assert "needle, depth 0.5" in html
    shown = io.StringIO()
    Console(width=100, file=shown).print(table(found))
    printed = shown.getvalue()
    measure = row.scores["task:parity-check"]
    assert f"{100 * measure[24].mean:.0f} → {100 * measure[96].mean:.0f}" in printed
    assert "24 tokens → into 96" in " ".join(printed.split())
    assert printed.count("a guess ") == 1
    assert "a guess, 50 %" in html


def test_pictures_are_drawn_checkpoint_by_checkpoint(whole: Path):
    store = Store(whole / "lab.sqlite")
    titles = [panel.title for panel in views.by_task(gather(store, SWEEP))]
    store.close()
    for depth in ("0", "0.5", "1"):
        assert titles.count(f"needle, depth {depth}") == 1
        assert titles.count(f"needle, depth {depth}: RoPE, changed without training") == 1
    # Nothing without training was judged there, and what was trained is drawn once.
    assert [title for title in titles if title.startswith("parity-check")] == ["parity-check"]


def right(*shares: float) -> Findings:
    """What a sweep of one task might find: a row for each share."""
    ran = Ran(24, (24,), (), (0,), {}, {}, {}, "", "", 0, 0, 8.0, "", {}, 0.0, 0, 0, "")
    rows = [
        Row(f"scheme{n}", "", "", "", (0,), 0, 0.0, {name: {24: Measure(share, None, 1, 8)} for name in MANY})
        for n, share in enumerate(shares)
    ]
    return Findings(tuple(rows), ran)


MANY = [*cells.protocols("needle"), *cells.protocols("passkey"), "task:modular-arithmetic-brackets", "task:copy"]


def test_the_best_is_told_where_there_is_one():
    assert page(right(0.5, 0.75)).count("best of its column") == len(MANY)
    assert "best of its column" not in page(right(0.5, 0.5))
    assert re.search(r">a guess</span></th>\s*<td>10.0 %", page(right(0.5)))


def test_many_tasks_fit_a_narrow_terminal():
    shown = io.StringIO()
    Console(width=80, file=shown).print(table(right(0.5, 1.0)))
    printed = shown.getvalue()
    assert "…" not in printed
    # Every answer of the row is there, at the trained length and at the longest, if over several lines.
    assert printed.rpartition("scheme1 ")[2].partition("a guess")[0].split().count("100") == 2 * len(MANY)
    assert printed.count("brackets") == 1


def test_a_task_is_trained_without_compiling_for_each_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str | None]] = []

    class Noted(Trainer):
        def __init__(self, model: Model, *given: Any) -> None:
            seen.append(list(model.backends))
            super().__init__(model, *given)

    monkeypatch.setattr(at_work, "Trainer", Noted)
    work(replace(SWEEP, schemes=("rope",), tasks=("copy",)), tmp_path)
    assert seen == [[None], ["sdpa"]]


def test_tensorboard_has_a_run_for_each_task(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs: dict[str, set[str]] = {}

    class Noted:
        def __init__(self, folder: str) -> None:
            self.names = runs.setdefault(Path(folder).name, set())

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.names.add(name)

        def close(self) -> None:
            pass

    monkeypatch.setattr(board, "writer", lambda: Noted)
    store = Store(whole / "lab.sqlite")
    board.log(store, SWEEP, tmp_path)
    store.close()
    assert set(runs) == {
        f"{name}, {task}seed 0" for name in ("rope", "alibi") for task in ("", "needle, ", "parity-check, ")
    }
    assert "loss, bits per byte" in runs["rope, seed 0"]
    assert runs["rope, parity-check, seed 0"] == {"loss, bits", "task:parity-check/as trained"}


def test_weights_and_biases_has_the_same_runs_and_sends_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs: dict[str, list[dict[str, float]]] = {}

    def begun(mode: str, dir: str, name: str, config: dict[str, object], **_: object) -> SimpleNamespace:
        assert (mode, dir, config["seed"]) == ("offline", str(tmp_path / "new"), 0)
        return SimpleNamespace(log=runs.setdefault(name, []).append, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=begun, Settings=SimpleNamespace))
    store = Store(whole / "lab.sqlite")
    board.log_wandb(store, SWEEP, tmp_path / "new")
    losses = {step: loss / math.log(2) for step, loss in store.losses(SWEEP.cells()[0].key)}
    scores = {(score.length, score.mean) for score in store.scores(SWEEP.cells()[0].key)}
    store.close()
    first = runs[SWEEP.cells()[0].called]
    assert {each["step"]: each["loss, bits per byte"] for each in first if "step" in each} == losses
    assert {(each.pop("length"), *each.values()) for each in first if "length" in each} == scores
    assert len(runs) == len(SWEEP.cells())


def test_scores_of_a_longer_sweep_are_left_out(whole: Path):
    store = Store(whole / "lab.sqlite")
    shorter = replace(SWEEP, judging=replace(JUDGING, longest=48))
    found = gather(store, shorter).of("rope")
    store.close()
    assert found is not None
    assert list(found.scores["task:parity-check"]) == [24, 48]


def test_the_command_takes_tasks(text: Path, tmp_path: Path):  # noqa: F811
    printed = done(text, tmp_path, "nope", "--tasks", "copy, sort", "--set", "steps=2").stdout
    assert "right answers, %" in printed
    assert "copy" in printed
    assert "sort" in printed


@pytest.mark.parametrize(
    ("tasks", "scheme", "message"),
    [
        ("coppy", "nope", "the task 'coppy' is not known; did you mean copy?"),
        ("copy,,sort", "nope", "--tasks 'copy,,sort': an empty name"),
        ("", "nope", "--tasks '': an empty name"),
        ("passkey", "nope", "the task passkey: even its shortest examples"),
        ("copy", "Rope(dim) + everything", "the scheme 'Rope(dim) + everything' sees ahead (everything)"),
        ("parity-check", "fire", "fire cannot be trained on parity-check, where tokens look ahead"),
        ("parity-check", "hwfa", "cannot be trained on parity-check, where tokens look ahead: it hides"),
        (
            "parity-check",
            "window-rope",
            "cannot be trained on parity-check, where tokens look ahead: it hides",
        ),
    ],
)
def test_tasks_that_cannot_be_are_refused(tasks: str, scheme: str, message: str, text: Path, tmp_path: Path):  # noqa: F811
    assert message in refused(text, tmp_path, scheme, "--tasks", tasks, "--set", "layers=2")
    assert not list(tmp_path.glob("*.safetensors"))
