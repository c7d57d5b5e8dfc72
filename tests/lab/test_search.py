"""A fair recipe: rates and settings are chosen on a text that is never judged, from as many runs for every scheme."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from milepost.cli import app
from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event
from milepost.lab.cells.store import Score, Store
from milepost.lab.cells.work import load
from milepost.lab.command.progress import Watched
from milepost.lab.judging import judge
from milepost.lab.report import gather, page, to_json
from milepost.lab.schemes import named as schemes
from milepost.lab.schemes.choices import choices
from milepost.lab.sweep.search import (
    SEED,
    Place,
    as_chosen,
    cells_of_rates,
    cells_of_rows,
    learns,
    recipe_at,
    rounds_of_rates,
    tried,
    walk,
    with_rates,
)
from milepost.lab.sweep.sweep import Local, Sweep, run
from milepost.lab.text import corpus
from milepost.lab.training.recipe import Recipe
from tests.lab.test_compare import asked as called
from tests.lab.test_compare import done, refused
from tests.lab.test_sweep import JUDGING, SIZE, WORDS

BYTES = b"".join(WORDS[n % 57 : n % 57 + n % 23] for n in range(2400))
TEXT = corpus.of_bytes(BYTES, "words", third=True)
SHORT = replace(SIZE, longest=32, recipe=replace(SIZE.recipe, steps=3))
JUDGED = replace(JUDGING, longest=32, total=64, recall=(), protocols=("windows",))
SWEEP = Sweep(("rope", "kerple", "shaw"), SHORT, TEXT, judging=JUDGED, free=False, threads=1, search=3)
PIVOTS = "Rope(dim) + Pivot(Rerope(8), trained, {0.25|0.5|1})"


# The third part


def test_one_text_is_cut_into_three_parts_that_share_nothing():
    assert TEXT.train.numpy().tobytes() + TEXT.validation.numpy().tobytes() + TEXT.test.numpy().tobytes() == BYTES
    assert len(TEXT.validation) == len(TEXT.test) == len(BYTES) // 20


def test_what_is_judged_is_the_same_with_and_without_a_third_part():
    assert torch.equal(TEXT.test, corpus.of_bytes(BYTES, "words").test)


def test_of_many_files_whole_ones_choose(tmp_path: Path):
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text(f"text {number}; ")
    three, two = corpus.of_path(tmp_path, third=True), corpus.of_path(tmp_path)
    parts = [each.numpy().tobytes().split(b"\x00") for each in (three.train, three.validation, three.test)]
    assert all(parts)
    assert len({each for part in parts for each in part}) == sum(map(len, parts)) == 200
    assert torch.equal(three.test, two.test)
    assert len(two.train) == len(three.train) + len(three.validation) + 1


def test_bytes_to_train_on_that_leave_the_third_part_alone_give_the_cells_of_a_plain_run():
    plain, third = (each.first(1000) for each in (corpus.of_bytes(BYTES, "words"), TEXT))
    assert plain.digest == third.digest


# The grid


def bowl(model: float, own: float) -> Callable[[Place], float]:
    """Bits that are fewest at a place."""
    return lambda place: 1.5 + (place[0] - model) ** 2 + (place[1] - own) ** 2


@pytest.mark.parametrize("runs", [3, 4, 9, 12])
@pytest.mark.parametrize("name", ["rope", "t5", "shaw", "Learned(longest, width) + T5Bias(heads)", "hwfa"])
def test_every_scheme_has_as_many_runs_and_all_differ(name: str, runs: int):
    made = [recipe_at(Recipe(rate=1e-3), name, place) for place in walk(runs, learns(name), bowl(-1.0, 1.0))]
    assert len({*made}) == runs
    assert made[0] == Recipe(rate=1e-3), "the default is one of them"


@pytest.mark.parametrize("best", [(2.0, 1.0), (0.0, 0.0), (-1.0, -1.0), (1.0, 2.0), (3.0, 0.0)])
def test_a_walk_comes_to_where_bits_are_fewest(best: Place):
    assert best in walk(9, True, bowl(*best))
    assert (best[0], 0.0) in walk(6, False, bowl(best[0], 0.0))


def test_four_runs_take_a_step_of_each_rate_and_one_from_the_best():
    assert walk(4, True, bowl(2.0, 1.0)) == [(0, 0), (1, 0), (1, 1), (2, 1)]
    assert walk(4, True, bowl(0.0, 0.0)) == [(0, 0), (1, 0), (0, 1), (-1, 0)]
    assert walk(4, True, bowl(0.0, 2.0)) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert walk(4, False, bowl(3.0, 0.0)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert walk(4, False, bowl(0.0, 0.0)) == [(0, 0), (1, 0), (-1, 0), (0.5, 0)]


def test_steps_that_are_shorter_once_stay_so():
    made = walk(12, False, bowl(0.3, 0.0))
    assert made[:6] == [(0, 0), (1, 0), (-1, 0), (0.5, 0), (0.75, 0), (0.25, 0)]
    assert min(abs(place[0] - 0.3) for place in made) < 0.05


def test_where_all_diverged_rates_go_down():
    assert walk(4, False, lambda place: math.nan) == [(0, 0), (1, 0), (-1, 0), (0.5, 0)]
    assert walk(4, False, lambda place: math.nan if place[0] >= 0 else 2.0)[-1] == (-2, 0)


def test_a_walk_waits_for_what_it_hangs_on():
    assert walk(9, True, lambda place: None) == [(0, 0), (1, 0)]
    assert walk(9, True, lambda place: 2.0 if place == (0, 0) else None) == [(0, 0), (1, 0)]


def test_a_place_is_so_many_steps_from_the_default_rates():
    found = recipe_at(Recipe(rate=1e-3), "t5", (-1.0, 1.0))
    assert (found.rate, found.bias_rate, found.learned_rate) == (5e-4, 100.0, 1.0)
    found = recipe_at(Recipe(rate=1e-3), "shaw", (0.5, -1.0))
    assert (found.rate, found.bias_rate, found.learned_rate) == (1.414e-3, 10.0, 0.1)
    assert recipe_at(Recipe(rate=1e-3), "rope", (2.0, 0.0)) == Recipe(rate=4e-3)


@pytest.mark.parametrize("runs", [1, 2, -3])
def test_too_few_runs_are_refused(runs: int):
    with pytest.raises(ValueError, match=f"--search {runs}: give at least 3"):
        walk(runs, False, lambda place: 2.0)


# What is tried


def test_runs_that_choose_are_judged_on_validation_text_alone_and_share_no_seed_with_judged_ones():
    cells = cells_of_rates(SWEEP)
    assert Counter(cell.name for cell in cells) == {"rope": 2, "kerple": 2, "shaw": 2}, "the third hangs on these"
    assert len({cell.key for cell in cells}) == 6
    for cell in cells:
        assert cell.asked() == [("validation", 16), ("validation", 32)]
        assert cell.seed == SEED
    assert cells[0].called == "rope, rate 0.01"
    assert cells[2].called == "kerple, rate 0.01, scheme × 10"
    assert SEED not in {cell.seed for cell in SWEEP.cells()}


def test_progress_tells_a_run_that_chooses_from_the_model_that_is_judged():
    cells = cells_of_rates(replace(SWEEP, schemes=("rope",)))
    assert set(Watched(cells[:1]).names.values()) == {"rope · 0.01"}
    assert set(Watched(SWEEP.cells()).names.values()) == {"rope", "kerple", "shaw"}


def test_settings_are_chosen_at_the_trained_length_and_8_times_it():
    far = replace(SWEEP, size=replace(SHORT, longest=256), judging=replace(JUDGED, longest=256))
    assert cells_of_rates(far)[0].asked() == [("validation", 16), ("validation", 128)]


def test_a_text_too_short_to_choose_by_is_refused():
    few = replace(SWEEP, corpus=replace(TEXT, validation=TEXT.validation[:32]))
    with pytest.raises(ValueError, match="32 bytes to choose settings by, but 33 are needed"):
        cells_of_rates(few)


def filled(store: Store, sweep: Sweep, bits: dict[str, list[float]]) -> None:
    """Scores as if all had been trained: by scheme, the bits of each run."""
    left = {name: list(each) for name, each in bits.items()}
    for cells in rounds_of_rates(sweep, store):
        for cell in cells:
            store.add(cell.key, cell.settings())
            mean = left[cell.name].pop(0)
            for protocol, length in cell.asked():
                detail = {"asked": cell.depends("", protocol)}
                store.judged(Score(cell.key, "", protocol, length, mean + length / 1000, 0.1, 9, detail, (mean,)))
    assert not any(left.values())


def test_the_fewest_bits_win_and_what_diverged_never_does(tmp_path: Path):
    store = Store(tmp_path / "lab.sqlite")
    filled(store, SWEEP, {"rope": [3.0, 2.0, 4.0], "kerple": [float("nan"), 5.0, 4.0], "shaw": [float("nan")] * 3})
    found = with_rates(SWEEP, store)
    rope, kerple, shaw = found.cells()
    assert rope.recipe.rate == 2 * SHORT.recipe.rate
    assert (kerple.recipe.rate, kerple.recipe.bias_rate) == (2 * SHORT.recipe.rate, 100)
    # None is known to be good, so it stays what it was.
    assert shaw.recipe == SHORT.recipe
    store.close()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Path]:
    """A search run to its end: rates, then the settings of a row, then the models that are judged."""
    folder = tmp_path_factory.mktemp("searched")
    asked_for = replace(SWEEP, schemes=("rope", "kerple"), rows=(("rope", PIVOTS),))
    store = Store(folder / "lab.sqlite")
    sweep = asked_for
    for cells in rounds_of_rates(sweep, store):
        run(sweep, store, Local(folder), cells=cells)
    sweep = with_rates(sweep, store)
    run(sweep, store, Local(folder), cells=cells_of_rows(sweep))
    sweep = as_chosen(asked_for, store)
    run(sweep, store, Local(folder))
    store.close()
    return asked_for, folder


def test_rates_and_settings_chosen_are_those_with_the_fewest_bits(searched: tuple[Sweep, Path]):
    asked_for, folder = searched
    store = Store(folder / "lab.sqlite")
    found = tried(asked_for, store)
    by_scheme: dict[tuple[str, str], list] = {}
    for each in found:
        by_scheme.setdefault((each.name, each.row), []).append(each)
    assert {key: len(each) for key, each in by_scheme.items()} == {
        ("rope", ""): 3,
        ("kerple", ""): 3,
        ("rope", PIVOTS): 3,
    }
    for runs in by_scheme.values():
        (chosen,) = [each for each in runs if each.chosen]
        assert chosen.mean == min(each.mean for each in runs)
        assert all(set(each.bits) == {16, 32} for each in runs)
    final = as_chosen(asked_for, store)
    rope, kerple = final.cells()
    best = {each.name: each for each in found if each.chosen and not each.row}
    assert rope.recipe.rate == best["rope"].rate
    assert (kerple.recipe.rate, kerple.recipe.bias_rate) == (best["kerple"].rate, best["kerple"].times)
    (row,) = [each.setting for each in found if each.chosen and each.row]
    assert (row, row) in rope.variants
    store.close()


def test_bits_are_those_of_the_validation_text(searched: tuple[Sweep, Path]):
    asked_for, folder = searched
    cell = cells_of_rates(asked_for)[0]
    model = load(cell, folder / f"{cell.key}.safetensors", "cpu")
    store = Store(folder / "lab.sqlite")
    first = tried(asked_for, store)[0]
    store.close()
    with torch.no_grad():
        on = {
            each: float(judge.non_overlapping(model, each, 16, JUDGED.total).mean())
            for each in (TEXT.validation, TEXT.test)
        }
    assert first.bits[16] == pytest.approx(on[TEXT.validation], abs=1e-5)
    assert abs(on[TEXT.validation] - on[TEXT.test]) > 1e-4, "the two texts cannot be told apart by their bits"


def test_the_report_says_what_was_chosen_and_shows_the_grid(searched: tuple[Sweep, Path]):
    asked_for, folder = searched
    store = Store(folder / "lab.sqlite")
    found = gather(store, asked_for)
    store.close()
    html = page(found)
    assert "Chosen on validation text" in html
    for each in found.tried:
        shown = each.setting.replace("&", "&amp;")
        assert (f"<strong>{shown}</strong>" if each.chosen else f"<td>{shown}</td>") in html
    kept = json.loads(to_json(found))["tried"]
    assert len(kept) == 9
    assert "rate" not in found.ran.recipe, "each scheme has its own"


def test_judged_text_chooses_nothing(searched: tuple[Sweep, Path]):
    asked_for, folder = searched
    other = replace(asked_for, corpus=replace(TEXT, validation=TEXT.validation.flip(0)))
    store = Store(folder / "lab.sqlite")
    assert not any(each.bits for each in tried(other, store)), "scores of another validation text were taken"
    assert [cell.key for cell in cells_of_rates(other, store)] == [cell.key for cell in cells_of_rates(asked_for)]
    assert len(cells_of_rates(asked_for, store)) == 6
    store.close()


# Settings of rows


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nope()", ["Nope()"]),
        ("Rerope({8|16})", ["Rerope(8)", "Rerope(16)"]),
        ("Rerope({ 8 | 8 })", ["Rerope(8)"]),
        ("{A()|B()} + C({1|2})", ["A() + C(1)", "A() + C(2)", "B() + C(1)", "B() + C(2)"]),
    ],
)
def test_what_stands_in_braces_is_tried_one_by_one(text: str, found: list[str]):
    assert choices(text) == found


@pytest.mark.parametrize("text", ["Rerope({8|})", "Rerope({8", "Rerope(8})", "Rerope({})", "Rerope({{8|9}})"])
def test_braces_that_say_nothing_are_refused(text: str):
    with pytest.raises(ValueError, match=r"settings to choose from are written \{0.25\|0.5\|1\}"):
        choices(text)


def test_every_row_of_ours_has_as_many_settings_and_ours_is_one_of_them():
    for name, rows in schemes.TO_TUNE.items():
        known = schemes.WITHOUT_TRAINING[name] | schemes.AND_THE_REST[name]
        for label, text in rows.items():
            assert len(choices(text)) == 3, label
            built = [schemes.build(each, SIZE.shape, 64, 512) for each in (known[label], *choices(text))]
            assert any(built[0].same_as(each) for each in built[1:]), label


def test_a_setting_that_cannot_be_judged_is_refused_before_anything_runs():
    bad = replace(SWEEP, rows=(("rope", "Rope(dim) + Rerope({8|0})"),))
    with pytest.raises(ValueError, match="window"):
        bad.cells()


# From the command line


@pytest.fixture(scope="module")
def novel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_bytes(BYTES)
    return path


@pytest.mark.slow
def test_a_search_from_the_command_line_is_resumed_and_reported(novel: Path, tmp_path: Path):
    words = ["nope", "kerple", "--search", "3", "--set", "steps=2"]
    first = done(novel, tmp_path, *words)
    assert "learning rates, chosen on validation text: NoPE 0.0" in first.stdout
    # Of both schemes three runs that choose and one that is judged, counted through.
    counted = re.findall(r"(\d) of (\d) models done", first.stderr)
    assert counted == [(str(n), "8") for n in range(1, 8)]
    assert "Chosen on validation text" in (tmp_path / "report.html").read_text()
    again = done(novel, tmp_path, *words)
    assert again.stdout == first.stdout
    assert "6 of 6 runs that choose rates are done already" in again.stderr
    assert "2 of 2 models are done already" in again.stderr
    assert "train" not in again.stderr
    reported = CliRunner().invoke(app(), ["report", str(tmp_path)], env={"COLUMNS": "120"})
    assert reported.stdout == first.stdout, "the store alone gives another table"


def test_a_search_that_is_stopped_reports_the_grid_so_far(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(self: Watched, cell: Cell, event: Event) -> None:
        if cell.name == "alibi":
            raise KeyboardInterrupt

    monkeypatch.setattr(Watched, "__call__", stop)
    found = called(novel, tmp_path, "nope", "alibi", "--search", "3", "--set", "steps=1")
    assert found.exit_code == 130
    page = (tmp_path / "report.html").read_text()
    assert "Chosen on validation text" in page
    assert "Not finished: 0 of 2 models" in page


def test_a_search_by_too_few_runs_or_too_many_is_refused(novel: Path, tmp_path: Path):
    assert "--search 2: give at least 3" in refused(novel, tmp_path, "rope", "--search", "2")
    assert "give at most 64" in refused(novel, tmp_path, "rope", "--search", "1000000000")
    assert "--tune --no-free" in refused(novel, tmp_path, "rope", "--tune")
