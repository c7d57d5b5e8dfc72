"""Cells on a task of one's own: lengths, examples that come again, random positions, and stops in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.lab.cells import work as at_work
from milepost.lab.cells.events import Event, Stepped
from milepost.lab.cells.on_task import OnTask
from milepost.lab.cells.store import Score
from milepost.lab.cells.work import load, work
from milepost.lab.command.experiment import worked
from milepost.lab.judging.scoring import Judging
from milepost.lab.sweep.recorded import recorded
from milepost.lab.tasks import HIERARCHY, TASKS, Copy, Counting, score
from milepost.lab.text.corpus import of_bytes
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe

REVERSE = HIERARCHY["reverse-string"]
NONE = of_bytes(b"", "no text")
CELL = OnTask(
    "rope", 0, Shape(width=32, layers=2, heads=2, hidden=64), Recipe(batch=8, steps=3, warmup=1),
    Judging(longest=1, answers=8), "", threads=1, on=REVERSE, lengths=(4, 8), judged=(8, 16),
)  # fmt: skip


def done(cell: OnTask, folder: Path) -> list[Event]:
    return list(work(cell, NONE, folder, "cpu", set()))


def weights(cell: OnTask, folder: Path) -> Tensor:
    folder.mkdir(exist_ok=True)
    done(cell, folder)
    model = load(cell, folder / f"{cell.key}.safetensors", "cpu")
    return torch.cat([each.detach().flatten() for each in model.parameters()])


# What a cell is


def test_lengths_in_tokens_are_those_of_the_longest_examples():
    assert (CELL.recipe.length, CELL.judging.longest) == (16, 32)
    assert replace(CELL, judged=()).judged == (8,)
    learned = replace(CELL, name="learned", judged=(30,)).model()
    assert learned.schedule[0].parts[0].length == 60


def test_what_is_judged_changes_no_weights_and_all_else_does():
    keys = [CELL] + [
        replace(CELL, **changed)
        for changed in (
            {"on": HIERARCHY["odds-first"]}, {"lengths": (4, 9)}, {"places": 64}, {"seed": 1}, {"name": "alibi"},
            {"on": Counting(3, 64), "lengths": (3, 8)}, {"on": Counting(4, 64), "lengths": (3, 8)},
            {"on": Counting(3, 64), "lengths": (3, 8), "examples": 40},
        )
    ]  # fmt: skip
    assert len({cell.key for cell in keys}) == len(keys)
    more = replace(CELL, judged=(8, 12, 16), judging=replace(CELL.judging, answers=16))
    assert more.key == CELL.key
    assert more.depends("", "counted") != CELL.depends("", "counted")


def test_a_task_decides_whether_the_model_looks_ahead():
    for name, ahead in (("reverse-string", True), ("copy", False)):
        task = TASKS[name]
        model = replace(CELL, on=task, lengths=(1, 6)).model()
        assert model.shape.vocabulary == task.vocabulary
        inputs, _ = task.batch(1, 6, torch.Generator().manual_seed(0))
        other = inputs.clone()
        other[0, 5] = 1 - other[0, 5].clamp(0, 1)
        with torch.no_grad():
            changed = (model(inputs) - model(other))[0, 0].abs().max() > 0
        assert bool(changed) == ahead


REFUSED = {
    "a decoder that sees ahead": ({"name": "Rope(dim) + everything", "on": Copy(), "lengths": (1, 4)}, "sees ahead"),
    "an encoder that does not": ({"name": "window-rope"}, "where tokens look ahead: it hides them"),
    "a scheme that nobody knows": ({"name": "ropee"}, r"the scheme 'ropee' is not known"),
    "a table that is too short": ({"name": "Learned(20, width)"}, "cannot be trained on ReverseString"),
    "fewer examples than a batch": ({"examples": 2, "on": Copy(), "lengths": (1, 8)}, "examples must be at least 8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_or_judged_is_refused_before_anything_is(case: str, tmp_path: Path):
    changed, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        worked([CELL, replace(CELL, **changed)], tmp_path / "out", "cpu", 1)
    assert not (tmp_path / "out").exists()


MADE = {
    "no task": ({"on": "sort"}, "on is a task, such as"),
    "lengths in the wrong order": ({"lengths": (9, 8)}, "the least length comes first"),
    "a length too short": ({"lengths": (0, 8)}, "length must be at least 1"),
    "a judged length too short": ({"judged": (0,)}, "length must be at least 1"),
    "no answers": ({"judging": Judging(1, answers=0)}, "answers must be at least 1"),
    "too few places": ({"places": 31}, "up to 32 tokens to place"),
    "places below zero": ({"places": -5}, "up to 32 tokens to place"),
    "places in a compiled graph": (
        {"places": 64, "recipe": replace(CELL.recipe, compiled=True)}, "not drawn in a compiled graph",
    ),
    "rows on an encoder": ({"variants": (("w", "Rope(dim)"),)}, "rows without training are for decoders"),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_a_cell_that_makes_no_sense_is_not_made(case: str):
    changed, message = MADE[case]
    with pytest.raises((ValueError, TypeError), match=message):
        replace(CELL, **changed)


def test_a_row_that_says_something_else_is_judged_again():
    cell = replace(CELL, on=Copy(), lengths=(1, 8), variants=(("w", "Rope(dim)"),))
    other = replace(cell, variants=(("w", "Rope(dim) + LogN(16)"),))
    assert cell.key == other.key
    assert cell.depends("w", "counted") != other.depends("w", "counted")
    assert cell.depends("", "counted") == other.depends("", "counted")


@pytest.mark.parametrize(
    ("jobs", "device", "message"), [(0, "cpu", "--jobs 0: give at least 1"), (1, "cuda", "torch sees no GPU here")]
)
def test_an_engine_that_would_do_nothing_is_refused(jobs: int, device: str, message: str, tmp_path: Path):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=message):
        worked([CELL], tmp_path, device, jobs)


def test_a_folder_that_is_a_file_is_named(tmp_path: Path):
    (tmp_path / "out").touch()
    with pytest.raises(OSError, match=r"--out .*out: the folder cannot be made \(File exists\)"):
        worked([CELL], tmp_path / "out", "cpu", 1)
    with pytest.raises(ValueError, match="at least one cell"):
        worked([], tmp_path / "other", "cpu", 1)


# Training


def test_it_is_trained_at_its_lengths_and_judged_at_others(tmp_path: Path):
    events = done(CELL, tmp_path)
    steps = [event for event in events if isinstance(event, Stepped)]
    assert steps[-1].done
    assert {CELL.batches(NONE)(step)[0].shape[1] for step in range(200)} == {8, 10, 12, 14, 16}
    scores = [event for event in events if isinstance(event, Score)]
    assert [(each.protocol, each.length, each.count) for each in scores] == [("counted", 8, 8), ("counted", 16, 8)]
    model = load(CELL, tmp_path / f"{CELL.key}.safetensors", "cpu")
    assert scores[1].windows == tuple(score(model, REVERSE, 16, 8, 0).tolist())


def test_lengths_that_vary_are_not_compiled_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    seen: list[Model] = []
    trainer = at_work.Trainer
    monkeypatch.setattr(at_work, "Trainer", lambda model, *rest: (seen.append(model), trainer(model, *rest))[1])
    done(CELL, tmp_path)
    assert seen[0].backends == ["sdpa", "sdpa"]


def test_random_places_are_drawn_anew_for_every_batch_and_again_for_the_same_one():
    model = replace(CELL, places=2048).model()
    seen: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[3]))
    batches = CELL.batches(NONE)
    for step in (0, 1, 0):
        model(batches(step)[0])
    assert seen[0].equal(seen[2])
    assert not seen[0].equal(seen[1][: len(seen[0])])
    assert all(each.diff().min() > 0 and each.max() < 2048 for each in seen)
    model.eval()(batches(0)[0])
    assert seen[3] is None, "once trained, it is told where tokens stand"


def test_random_places_change_what_is_learned(tmp_path: Path):
    plain, placed = (weights(replace(CELL, places=places), tmp_path) for places in (0, 2048))
    assert (placed - plain).abs().max() > 1e-4


def test_what_was_stopped_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(at_work, "SAVE", 0.0)
    monkeypatch.setattr(at_work, "REPORT", 1)
    cell = replace(CELL, places=2048, recipe=replace(CELL.recipe, steps=6))
    whole = weights(cell, tmp_path / "whole")
    (tmp_path / "half").mkdir()
    events = work(cell, NONE, tmp_path / "half", "cpu", set())
    next(event for event in events if getattr(event, "step", 0) == 4)
    events.close()
    torch.manual_seed(5)
    assert weights(cell, tmp_path / "half").equal(whole)


def test_scores_at_random_and_even_places_are_given_those(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cell = replace(CELL, places=2048, judged=(8,))
    assert cell.asked() == [("random", 8), ("even", 8)]
    seen: list[Tensor] = []
    states = Model.states

    def noted(self: Model, tokens: Tensor, caches=None, position=None) -> Tensor:
        if not self.training:
            seen.append(position)
        return states(self, tokens, caches, position)

    monkeypatch.setattr(Model, "states", noted)
    done(cell, tmp_path)
    assert seen[1].equal(mp.Randomized(2048).evenly(16))
    assert seen[0].shape == (16,)
    assert seen[0].diff().min() > 0
    assert not seen[0].equal(seen[1])


@pytest.mark.slow
def test_a_small_model_learns_to_copy_and_few_examples_by_heart(tmp_path: Path):
    recipe = Recipe(batch=64, steps=100, rate=5e-3, warmup=10, decay=0.0)
    shape = Shape(width=32, layers=1, heads=2, hidden=64)
    fresh = replace(CELL, shape=shape, recipe=recipe, on=Copy(4), lengths=(5, 5), judged=(5,))
    fresh = replace(fresh, judging=replace(CELL.judging, answers=256))
    (found,) = (event for event in done(fresh, tmp_path) if isinstance(event, Score))
    assert found.mean > 0.95
    few = replace(fresh, on=Copy(), recipe=replace(recipe, batch=4, rate=1e-2), lengths=(6, 6), judged=(6,), examples=4)
    (found,) = (event for event in done(few, tmp_path) if isinstance(event, Score))
    model = load(few, tmp_path / f"{few.key}.safetensors", "cpu")
    inputs, targets = few.batches(NONE)(0)
    with torch.no_grad():
        assert Copy().accuracy(model(inputs), targets).mean() > 0.95
    assert found.mean < 0.6, "others it does not know"


def test_what_examples_are_filled_up_with_is_not_seen():
    """A model answers a row the same alone and among longer ones."""
    cell = replace(CELL, on=Counting(2), lengths=(3, 39), examples=32)
    model = cell.model()
    inputs, targets = cell.batches(NONE)(0)
    shortest = int((targets != -100).nonzero()[:, 1].min()) + 1
    assert shortest < inputs.shape[1]
    row = int((targets[:, shortest - 1] != -100).nonzero()[0])
    with torch.no_grad():
        alone, among = model(inputs[row : row + 1, :shortest]), model(inputs)
    torch.testing.assert_close(alone[0, -1], among[row, shortest - 1])


# A sweep of them


def test_a_sweep_of_cells_does_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = [replace(CELL, seed=seed) for seed in (0, 1)]
    worked(cells, tmp_path / "deep" / "out", "cpu", 1).close()
    monkeypatch.setattr(at_work, "Trainer", None)
    store = worked(cells, tmp_path / "deep" / "out", "cpu", 1)
    assert [[score.length for score in store.scores(cell.key)] for cell in cells] == [[8, 16]] * 2
    store.close()


def test_its_store_has_no_report_and_says_so(tmp_path: Path):
    store = worked([CELL], tmp_path, "cpu", 1)
    with pytest.raises(ValueError, match="an experiment with tasks of its own, and has no report"):
        recorded(store)
    store.close()
