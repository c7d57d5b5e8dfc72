"""A sweep: run twice it does nothing, stopped anywhere it goes on, and the numbers are the same bit for bit."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from milepost.lab.cells import cell as cells
from milepost.lab.cells import work as at_work
from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.store import Score, Store
from milepost.lab.judging.scoring import Judging
from milepost.lab.schemes import named as schemes
from milepost.lab.schemes import naming
from milepost.lab.schemes.expressions import tree_of
from milepost.lab.sweep import sweep
from milepost.lab.sweep.sweep import Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.model import Shape
from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe, Size
from milepost.lab.training.train import Trainer

WORDS = b"the quick brown fox jumps over a lazy dog and then sleeps "
TEXT = corpus.of_bytes(b"".join(WORDS[n % 57 : n % 57 + n % 23] for n in range(1200)), "words")
SIZE = Size(Shape(16, 1, 2, hidden=16), Recipe(length=16, batch=2, steps=14, rate=1e-2, warmup=2), 64)
JUDGING = Judging(64, total=128, ends=3, recall=(128,), copies=4, alone=4)
SWEEP = Sweep(("rope", "kerple"), SIZE, TEXT, judging=JUDGING, threads=1)
ROWS = {label: schemes.WITHOUT_TRAINING["rope"][label] for label in ("window", "self-extend")}


@pytest.fixture(autouse=True, scope="module")
def _often():
    with pytest.MonkeyPatch.context() as patch:
        often(patch)
        yield


def often(patch: pytest.MonkeyPatch) -> None:
    """Tell losses every third step and save each time; two rows without training will do."""
    patch.setattr(at_work, "REPORT", 3)
    patch.setattr(at_work, "SAVE", 0.0)
    patch.setitem(schemes.WITHOUT_TRAINING, "rope", ROWS)


def work(asked: Sweep, folder: Path, watch=None) -> list[tuple[Cell, Event]]:
    """Run a sweep in a folder; what happened."""
    seen: list[tuple[Cell, Event]] = []
    store = Store(folder / "lab.sqlite")
    try:
        run(asked, store, Local(folder), lambda *event: (seen.append(event), watch and watch(*event)))
    finally:
        store.close()
    return seen


def numbers(folder: Path) -> dict[str, list]:
    """All that a sound store holds but the seconds."""
    db = sqlite3.connect(folder / "lab.sqlite")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    columns_of = {"cells": "key, settings, step, done, parameters, equation", "losses": "*", "scores": "*"}
    found = {name: sorted(db.execute(f"SELECT {columns} FROM {name}"), key=str) for name, columns in columns_of.items()}
    db.close()
    return found


def trained(seen: list[tuple[Cell, Event]]) -> Counter[str]:
    """How many steps were made for each scheme."""
    found: Counter[str] = Counter()
    for cell, event in seen:
        found[cell.name] += len(event.losses) if isinstance(event, Stepped) else 0
    return +found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    work(SWEEP, folder)
    return folder


# Done once


def test_every_cell_is_trained_and_judged_as_asked(whole: Path):
    found = numbers(whole)
    rope, kerple = SWEEP.cells()
    assert {row[0]: row[2:4] for row in found["cells"]} == {rope.key: (14, 1), kerple.key: (14, 1)}
    assert {row[:2] for row in found["losses"]} == {(cell.key, n) for cell in (rope, kerple) for n in range(14)}
    wanted = {(cell.key, *each) for cell in (rope, kerple) for each in cell.wanted()}
    assert {row[:4] for row in found["scores"]} == wanted
    # Windows and ends at 16, 32 and 64, and both recalls, of RoPE, its two rows and KERPLE; as trained sliding, alone.
    assert len(wanted) == 8 * (1 + 2 + 1) + 2 * 2
    assert all(row[2] > 0 for row in found["losses"])


def test_run_again_it_does_nothing(whole: Path):
    before = numbers(whole)
    assert work(SWEEP, whole) == []
    assert numbers(whole) == before


def test_an_event_is_kept_before_anybody_hears_of_it(tmp_path: Path):
    def watch(cell: Cell, event: Event) -> None:
        db = sqlite3.connect(tmp_path / "lab.sqlite")
        if isinstance(event, Stepped):
            assert db.execute("SELECT step, done FROM cells").fetchone() == (event.step, event.done)
            kept = db.execute("SELECT step, loss FROM losses").fetchall()
            assert set(event.losses) <= set(kept)
        db.close()

    seen = work(replace(SWEEP, schemes=("kerple",), free=False), tmp_path, watch)
    assert [event.step for _, event in seen if isinstance(event, Stepped)] == [0, 3, 6, 9, 12, 14]


@pytest.mark.parametrize(("cost", "saves"), [(0.01, 3), (1.0, 2)])
def test_checkpoints_are_written_often_but_take_little_of_the_time(
    cost: float, saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now, saved = [0.0], list[float]()

    def passes(seconds: float) -> None:
        now[0] += seconds

    advance, save = Trainer.advance, Trainer.save
    monkeypatch.setattr(at_work, "SAVE", 2.0)
    monkeypatch.setattr(at_work.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Trainer, "advance", lambda self: (passes(0.5), advance(self))[1])
    monkeypatch.setattr(Trainer, "save", lambda self, path: (saved.append(now[0]), passes(cost), save(self, path)))
    work(replace(SWEEP, schemes=("nope",), judging=replace(JUDGING, protocols=())), tmp_path)
    # Fourteen steps of half a second, told by threes: after six, and after six more if writing was quick; at the end.
    assert len(saved) == saves
    assert saved[-1] >= 7


def test_every_scheme_starts_from_the_same_weights_and_reads_the_same_batches():
    rope, kerple, other = (*SWEEP.cells(), replace(SWEEP.cells()[0], seed=1))
    a, b, c = (dict(make(cell).named_parameters()) for cell in (rope, kerple, other))
    assert set(a) < set(b)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["tokens.weight"], c["tokens.weight"])
    assert len({rope.key, kerple.key, other.key}) == 3


# Interrupted


class Stop(Exception):
    """Whatever ends a run."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("when", ["after it was kept", "before it was kept", "while a model was saved"])
def test_interrupted_many_times_it_ends_with_the_same_numbers(
    seed: int, when: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn, left = random.Random(seed), [0]

    def count(*event: object) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Stop

    keep, save = sweep.keep, Trainer.save
    if when == "before it was kept":
        monkeypatch.setattr(sweep, "keep", lambda *event: (count(), keep(*event)))
    elif when == "while a model was saved":
        early = drawn.random() < 0.5
        monkeypatch.setattr(Trainer, "save", lambda *a: (early and count(), save(*a), early or count()))
    # Without checkpoints on the way a model begins again, to the same numbers.
    monkeypatch.setattr(at_work, "SAVE", 0.0 if seed == 0 else 1e9)
    stops = 0
    while True:
        left[0] = drawn.randint(1, 4 if when == "while a model was saved" else 20)
        try:
            work(SWEEP, tmp_path, count if when == "after it was kept" else None)
            break
        except Stop:
            stops += 1
            assert stops < 200
    assert stops
    assert numbers(tmp_path) == numbers(whole)


def killed_at_random(folder: Path, times: int) -> None:
    """Kill sweeps at random moments, and let them go on in another process."""
    often(pytest.MonkeyPatch())
    # What is loaded with the first step and the first score is loaded here, so that moments fall into the work.
    importlib.import_module("scipy.fft")
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight]).step()

    def begun(place: Path) -> int:
        pid = os.fork()
        if pid == 0:
            work(SWEEP, place)
            os._exit(0)
        return pid

    start = time.monotonic()
    assert os.waitpid(begun(folder / "0"), 0)[1] == 0
    took, killed, place = time.monotonic() - start, 0, folder / "1"
    while killed < times:
        pid = begun(place)
        time.sleep(random.uniform(0, took / 2))
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] == signal.SIGKILL:
            killed += 1
        else:
            place = folder / str(int(place.name) + 1)
    assert os.waitpid(begun(place), 0)[1] == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_it_ends_with_the_same_numbers(whole: Path, tmp_path: Path):
    script = "import sys, pathlib; from tests.lab.test_sweep import *; killed_at_random(pathlib.Path(sys.argv[1]), 6)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) >= 2
    for folder in tmp_path.iterdir():
        assert numbers(folder) == numbers(whole)


def test_half_a_checkpoint_is_not_left_lying_about(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no disk space left for"):
            work(SWEEP, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lab.sqlite", ".locks"}
    work(SWEEP, tmp_path)
    assert numbers(tmp_path) == numbers(whole)


# Grown


def test_a_scheme_added_later_is_all_that_is_trained(whole: Path, tmp_path: Path):
    first = work(replace(SWEEP, schemes=("kerple",)), tmp_path)
    assert trained(first) == {"kerple": 14}
    second = work(SWEEP, tmp_path)
    assert {cell.name for cell, _ in second} == {"rope"}
    assert trained(second) == {"rope": 14}
    assert numbers(tmp_path) == numbers(whole)


def test_rows_without_training_added_later_train_nothing(whole: Path, tmp_path: Path):
    work(replace(SWEEP, free=False), tmp_path)
    second = work(SWEEP, tmp_path)
    assert trained(second) == {}
    assert {cell.name for cell, _ in second} == {"rope"}
    assert numbers(tmp_path)["scores"] == numbers(whole)["scores"]


@pytest.mark.parametrize("before", [{"longest": 32}, {"total": 64, "ends": 2, "alone": 2}, {"recall": ()}])
def test_judged_otherwise_later_nothing_is_trained_and_no_old_number_stays(before: dict, whole: Path, tmp_path: Path):
    asked = replace(SWEEP, schemes=("rope",))
    work(replace(asked, judging=replace(JUDGING, **before)), tmp_path)
    assert trained(work(asked, tmp_path)) == {}
    (cell,) = asked.cells()
    for name in ("losses", "scores"):
        assert numbers(tmp_path)[name] == [row for row in numbers(whole)[name] if row[0] == cell.key]


def test_a_table_as_long_as_the_longest_text_is_trained_anew_for_a_longer_one():
    short = replace(SWEEP, judging=replace(JUDGING, longest=32))
    same = {"rope": True, "learned": False, "Learned(longest, width)": False, "Learned(64, 16)": True}
    for name in same:
        (a,), (b,) = (replace(each, schemes=(name,)).cells() for each in (SWEEP, short))
        assert (a.key == b.key) is same[name], name


@pytest.mark.parametrize(
    "spellings",
    [("rope", "RoPE", "Rope", "rope(dim)", "Rope(dim)"), ("kerple", "KERPLE"),
     ("t5", "T5", "T5Bias(heads, reach=min(128, max(32, trained // 2)))"),
     ("Rope(dim, theta=1e5)", "RoPE(dim, theta=100000.0)", "rope( dim,theta=1e5 )")],
)  # fmt: skip
def test_a_scheme_has_one_key_whichever_way_it_is_written(spellings: tuple[str, ...]):
    assert len({replace(SWEEP, schemes=(text,)).cells()[0].key for text in spellings}) == 1
    (cell,) = replace(SWEEP, schemes=spellings).cells()
    assert cell.name == spellings[0]
    own = "Rope(dim) + Rerope(4)"
    if spellings[0] == "rope":
        for text in spellings:
            (cell,) = replace(SWEEP, schemes=("rope",), rows=((text, own),)).cells()
            assert cell.variants[-1] == (own, own)


# Refused before anything is trained


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (replace(SWEEP, schemes=("rope", "ropee")), "the scheme 'ropee' is not known"),
        (replace(SWEEP, corpus=corpus.of_bytes(b"short" * 20, "a note")), "a note: 5 bytes to judge on, but 65 are"),
        (replace(SWEEP, judging=replace(JUDGING, recall=(64,))), "recall: copies of 128 bytes cannot stand 64 apart"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_trained(asked: Sweep, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        work(asked, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_scores_that_were_judged_another_way_are_made_again_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = replace(SWEEP, schemes=("kerple",), free=False)
    first = work(asked, tmp_path)
    assert work(asked, tmp_path) == []
    monkeypatch.setattr(cells, "JUDGED", cells.JUDGED + 1)
    again = work(asked, tmp_path)
    assert trained(again) == {}
    scores = [[event for _, event in seen if isinstance(event, Score)] for seen in (first, again)]
    assert [(each.protocol, each.length, each.mean) for each in scores[0]] == [
        (each.protocol, each.length, each.mean) for each in scores[1]
    ]


def test_a_local_run_does_not_wait_for_processes_that_a_scheduler_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert trained(work(replace(SWEEP, schemes=("kerple",), free=False), tmp_path)) == {"kerple": 14}


def test_a_row_that_cannot_be_built_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(schemes.WITHOUT_TRAINING, "rope", {"none": "Rope(dim) + Rerope(0)"})
    with pytest.raises(ValueError, match=r"Rerope\(window=0\)"):
        SWEEP.cells()


def test_out_of_memory_while_judging_says_so_and_keeps_what_was_trained(tmp_path: Path, monkeypatch):
    """Smaller parts of a batch would not help: nothing is trained any more."""

    def scored(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB.")

    short = replace(SWEEP, schemes=("kerple",), judging=replace(JUDGING, protocols=("windows",)))
    with monkeypatch.context() as patch:
        patch.setattr(Cell, "scored", scored)
        with pytest.raises(RuntimeError, match=r"while judging, at up to 64 bytes.* fewer --jobs") as raised:
            work(short, tmp_path)
    assert "accumulate" not in str(raised.value)
    # All it needs is to be judged.
    assert not trained(work(short, tmp_path)).get("kerple")


def test_a_gpu_out_of_memory_is_told_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    advance, tried = Trainer.advance, list[weakref.ref[Reader]]()

    def small(self: Trainer) -> torch.Tensor:
        # On a GPU, a model that did not fit would take the room of the next.
        assert not any(each() is not None for each in tried)
        if self.recipe.accumulate < 4:
            tried.append(weakref.ref(self.model))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB.")
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", small)
    recipes = [replace(SIZE.recipe, batch=8, accumulate=parts) for parts in (2, 4)]
    short = replace(SWEEP, schemes=("kerple",), judging=replace(JUDGING, protocols=("windows",)))
    before, after = (replace(short, size=replace(SIZE, recipe=recipe)) for recipe in recipes)
    message = r"batches of 8 × 16 bytes in 2 parts: --set accumulate=4 fits, .* \(CUDA out of memory\)"
    with pytest.raises(RuntimeError, match=message):
        work(before, tmp_path)
    assert trained(work(after, tmp_path)) == {"kerple": 14}


# Keys


def test_a_name_that_comes_to_stand_for_something_else_is_another_cell(monkeypatch: pytest.MonkeyPatch):
    asked = replace(SWEEP, schemes=("partial",), free=False)
    before = asked.cells()[0].key
    monkeypatch.setitem(naming.TRAINED, "partial", "Partial(Rope(dim // 4), of=dim)")
    tree_of.cache_clear()
    cells._built.cache_clear()
    after = asked.cells()[0].key
    monkeypatch.undo()
    tree_of.cache_clear()
    cells._built.cache_clear()
    assert before != after
    assert asked.cells()[0].key == before


def test_models_of_an_earlier_version_are_judged_again_and_not_trained(whole: Path, tmp_path: Path):
    """Then cells were kept under another key, and scores without their windows."""
    work(SWEEP, tmp_path)
    store = Store(tmp_path / "lab.sqlite")
    for cell in SWEEP.cells():
        store.rename(cell.key, cell.former_key)
        (tmp_path / f"{cell.key}.safetensors").rename(tmp_path / f"{cell.former_key}.safetensors")
    for score in [score for cell in SWEEP.cells() for score in store.scores(cell.former_key)]:
        old = score.detail | {"asked": [2, *score.detail["asked"][1:]]}
        store.judged(replace(score, detail=old, windows=()))
    assert len(sweep.missing(SWEEP, store)) == 2
    assert sweep.outdated(store, SWEEP.cells()) == 2
    store.close()
    again = work(SWEEP, tmp_path)
    assert trained(again) == {}
    assert numbers(tmp_path) == numbers(whole)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_a_model_that_computed_something_else_under_its_name_is_not_taken_over(tmp_path: Path):
    (cell,) = (asked := replace(SWEEP, schemes=("kerple",), free=False)).cells()
    store = Store(tmp_path / "lab.sqlite")
    store.add(cell.former_key, cell.settings())
    store.describe(cell.former_key, 5, "another equation")
    sweep.missing(asked, store)
    assert store.knows(cell.former_key)
    assert store.cell(cell.key)["parameters"] == 0
    store.close()


def test_a_model_that_starts_as_all_did_before_keeps_its_key():
    """How weights start, and whether the output has its own, came later; stores of before know neither."""
    cell = SWEEP.cells()[0]
    plain = {name: value for name, value in cell.settings()["shape"].items() if name not in ("start", "tied")}
    assert cell._settings()["shape"] == plain  # pyright: ignore[reportPrivateUsage]
    by_inputs = replace(cell, shape=replace(cell.shape, start="inputs"))
    assert by_inputs._settings()["shape"] == plain | {"scaled": True}  # pyright: ignore[reportPrivateUsage]
    others: tuple[dict[str, Any], ...] = (
        {},
        {"start": "inputs"},
        {"start": "torch"},
        {"tied": False},
        {"tied": False, "start": "torch"},
    )
    assert len({replace(cell, shape=replace(cell.shape, **other)).key for other in others}) == len(others)


def test_a_row_of_ones_own_that_is_one_of_ours_stands_beside_it():
    window = "Rope(dim) + (causal & window(trained))"
    sweep = replace(SWEEP, schemes=("rope",), rows=(("rope", f"mine = {window}"), ("rope", "Rope(dim) + LogN(9)")))
    rows = dict(sweep.cells()[0].variants)
    assert rows["window"] == rows[window] == window
    assert sweep.called("rope") == {window: "mine", "Rope(dim) + LogN(9)": "Rope(dim) + LogN(9)"}
