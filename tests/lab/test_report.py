"""The report: what is gathered from a store, and the axes it is drawn on."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from milepost import Rope, Scheme, Stream, causal, sinks, window
from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.store import Score, Store
from milepost.lab.cells.work import judged
from milepost.lab.judging.scoring import Judging
from milepost.lab.report import gather, page, to_csv, to_json
from milepost.lab.report.figure import spread
from milepost.lab.report.gather import sees_all, thinned
from milepost.lab.report.scale import broken, doubling, straight
from milepost.lab.statistics.intervals import over_windows
from milepost.lab.sweep.sweep import Sweep
from milepost.lab.text import corpus
from milepost.lab.text.baselines import by_frequency, by_pairs
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe, Size
from milepost.seams.visible import Visible

TEXT = corpus.of_bytes(bytes(range(256)) * 40, "every byte in turn")
SMALL = Size(Shape(width=16, layers=2, heads=2, hidden=16), Recipe(length=32, batch=2, steps=4), 64)


def sweep(*schemes: str, seeds: tuple[int, ...] = (0,), **options: object) -> Sweep:
    judging = Judging(64, total=256, ends=2, recall=(128,), alone=2)
    return Sweep(schemes, SMALL, TEXT, seeds, judging, **options)  # type: ignore[arg-type]


def scored(store: Store, cell: Cell, mean: float, length: int = 32, variant: str = "") -> None:
    """Put one score of windows into a store."""
    store.add(cell.key, cell.settings())
    asked = cell.depends(variant, "windows")
    detail = {"last": mean, "by_position": [(0, 2 * mean), (1, mean)], "asked": asked}
    windows = tuple(mean + each for each in (-0.5, 0.25, 0.25))
    store.judged(Score(cell.key, variant, "windows", length, mean, 0.25, 64, detail, windows))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.db")


# What is gathered


def test_several_seeds_are_told_by_their_mean_and_students_interval(store: Store):
    asked, means = sweep("nope", seeds=(0, 1, 2)), [2.0, 2.3, 2.2]
    for cell, mean in zip(asked.cells(), means, strict=True):
        scored(store, cell, mean)
    found = gather(store, asked).rows[0]
    measure = found.scores["windows"][32]
    assert found.seeds == (0, 1, 2)
    assert measure.interval == measure.between
    assert math.isclose(measure.mean, statistics.mean(means))
    # 4.303 is Student's t for two degrees of freedom.
    assert math.isclose(measure.between or 0, 4.302653 * statistics.stdev(means) / math.sqrt(3), rel_tol=1e-6)
    assert found.positions[32] == [(0, pytest.approx(2 * statistics.mean(means))), (1, pytest.approx(measure.mean))]


def test_one_seed_keeps_the_interval_over_windows(store: Store):
    asked = sweep("nope")
    scored(store, asked.cells()[0], 2.0)
    measure = gather(store, asked).rows[0].scores["windows"][32]
    half = float(over_windows([1.5, 2.25, 2.25]))
    assert (measure.mean, measure.half, measure.between) == (2.0, pytest.approx(half), None)
    assert (measure.seeds, measure.judged, measure.interval) == (1, 64, measure.half)
    assert measure.by_seed == {0: (1.5, 2.25, 2.25)}


def test_losses_are_told_in_bits_and_averaged_over_seeds(store: Store):
    asked = sweep("nope", seeds=(0, 1))
    for cell, loss in zip(asked.cells(), (1.0, 2.0), strict=True):
        scored(store, cell, 2.0)
        store.trained(cell.key, 4, [(step, loss) for step in range(4)], 1.5, True)
    found = gather(store, asked)
    assert found.rows[0].losses == [(step, pytest.approx(1.5 / math.log(2))) for step in range(4)]
    assert found.ran.seconds == 3.0


def test_a_long_curve_is_thinned_to_means_and_ends_where_it_ended():
    curve = [(step, float(step)) for step in range(5000)]
    found = thinned(curve, points=40)
    assert len(found) <= 40
    assert found[-1][0] == 4999
    assert all(loss <= step for step, loss in found)
    assert thinned([]) == []


def test_a_sweep_that_is_not_finished_is_told_as_far_as_it_came(store: Store):
    asked = sweep("nope", "rope", free=False)
    scored(store, asked.cells()[0], 2.0)
    found = gather(store, asked)
    assert [each.name for each in found.rows] == ["nope"]
    assert (found.ran.cells, found.ran.done) == (2, 0)
    assert "Not finished: 0 of 2 models are fully judged." in page(found)


def test_scores_that_were_not_asked_for_are_left_out(store: Store):
    asked = sweep("nope")
    for length in (32, 64, 128):
        scored(store, asked.cells()[0], 2.0, length)
    assert list(gather(store, asked).rows[0].scores["windows"]) == [32, 64]


def test_what_a_cell_tells_is_what_the_report_shows(store: Store):
    asked = replace(sweep("alibi"), judging=Judging(64, total=256, ends=2, alone=2))
    cell = asked.cells()[0]
    store.add(cell.key, cell.settings())
    for score in judged(cell, make(cell), TEXT, set()):
        if isinstance(score, Score):
            store.judged(score)
    found = gather(store, asked, command="milepost compare --schemes alibi")
    assert [each.variant for each in found.rows] == ["", *(label for label, _ in cell.variants)]
    assert found.ran.done == 1
    assert {name: list(scores) for name, scores in found.rows[0].scores.items()} == {
        "alone": [32], "ends": [32, 64], "sliding": [32], "windows": [32, 64],
    }  # fmt: skip
    html = page(found)
    assert "milepost compare --schemes alibi" in html
    assert all(f"{each.scores['windows'][64].mean:.3f}" in html for each in found.rows)
    assert len(to_csv(found).splitlines()) == 1 + len(found.rows) * (4 + 2) + 2
    assert to_json(found)


def test_a_guess_costs_the_entropy_of_single_bytes():
    assert math.isclose(by_frequency(TEXT.test), 8.0, rel_tol=1e-3)
    # Three in four alike: 3/4 · log2(4/3) + 1/4 · log2(4).
    assert math.isclose(by_frequency(torch.tensor([7, 7, 7, 9], dtype=torch.uint8)), 0.75 * math.log2(4 / 3) + 0.5)


def test_byte_pairs_cost_what_a_table_of_them_says():
    """Trained on abab…, then judged on abba: b after a and a after b are near certain, b after b was never seen."""
    train, test = torch.tensor([1, 2] * 500, dtype=torch.uint8), torch.tensor([1, 2, 2, 1], dtype=torch.uint8)
    share = (500 + 1) / (1000 + 256)
    cost = [-math.log2((500 + share) / 501), -math.log2(share / 500), -math.log2((499 + share) / 500)]
    assert by_pairs(train, test) == pytest.approx(sum(cost) / 3)
    # In a text where each byte says which comes next, they cost next to nothing.
    assert by_pairs(TEXT.train, TEXT.test) < 0.4


def test_the_last_point_of_a_loss_curve_is_the_mean_of_a_stretch():
    """One batch alone would draw a cliff."""
    for steps in (300, 1000, 1500, 4096):
        curve = [(step, 3.0) for step in range(steps - 1)] + [(steps - 1, 103.0)]
        assert thinned(curve)[-1] == (steps - 1, pytest.approx(3.0, abs=100 / (steps // 20)))


def test_what_the_last_fifth_of_training_brought_is_kept(store: Store):
    (cell,) = (asked := replace(sweep("nope"), size=replace(SMALL, recipe=replace(SMALL.recipe, steps=100)))).cells()
    scored(store, cell, 2.0)
    noise = [(-1) ** step * 0.01 * (step % 7) for step in range(100)]
    store.trained(cell.key, 100, [(n, (9.0 if n < 80 else 8.0) + noise[n]) for n in range(100)], 1.0, True)
    gained = gather(store, asked).rows[0].gained
    assert gained is not None
    assert gained.mean == pytest.approx(1 / math.log(2), abs=0.01)
    assert gained.half is not None
    assert gained.half < 0.1


def test_layers_that_differ_are_told_apart(store: Store):
    asked = sweep("hwfa")
    scored(store, asked.cells()[0], 2.0)
    row = gather(store, asked).rows[0]
    assert "layer 0 of 0–1: out_i" in row.equation
    assert "layer 1 of 0–1: out_i" in row.equation
    assert "window" in row.equation
    assert [each.layers for each in row.equations] == ["layer 0 of 0–1", "layer 1 of 0–1"]


def test_which_layers_are_of_a_kind_is_said(store: Store):
    """As many of each, in another order, is another model."""
    printed: list[str] = []
    for text in ("[Rope(dim), Rope(dim), Nope(), Rope(dim)]", "[Rope(dim), Nope(), Rope(dim), Rope(dim)]"):
        asked = replace(sweep(text), size=replace(SMALL, shape=replace(SMALL.shape, layers=4)))
        scored(store, asked.cells()[0], 2.0)
        printed.append(gather(store, asked).rows[0].equation)
    assert "layers 0–1, 3 of 0–3: " in printed[0]
    assert "layer 2 of 0–3: " in printed[0]
    assert "layers 0, 2–3 of 0–3: " in printed[1]
    assert "layer 1 of 0–3: " in printed[1]


def test_a_scheme_that_is_given_twice_is_counted_once(store: Store):
    asked = sweep("rope", "Rope(dim)", "nope")
    scored(store, asked.cells()[0], 2.0)
    assert gather(store, asked).ran.schemes == ("rope", "nope")


def test_a_window_and_what_streams_are_known_to_forget():
    schemes = [causal, causal & window(8), causal & (window(8) | sinks(4)), causal & window(64)]
    assert [sees_all(Scheme(Rope(8), each), 64, heads=2) for each in schemes] == [True, False, False, True]
    assert not sees_all(Scheme(Rope(8), Stream(4, 28)), 64, heads=2)


def test_one_layer_or_head_that_sees_everything_forgets_nothing(store: Store):
    class Half(Visible):
        def see(self, batch: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return (head > 0) | (i - j < 8)

    assert sees_all(Scheme(Rope(8), causal & Half()), 64, heads=2)
    asked = sweep("hwfa", "window-rope")
    for cell in asked.cells():
        scored(store, cell, 2.0)
    assert [row.whole for row in gather(store, asked).rows] == [True, False]


def test_without_a_command_the_sweep_itself_says_how_to_run_it_again(store: Store):
    asked = sweep("nope")
    scored(store, asked.cells()[0], 2.0)
    again = gather(store, asked).ran.again
    assert f"size={SMALL!r}" in again
    assert all(f"    {each}=" in again for each in ("seeds", "judging", "free", "threads", "tasks", "every", "rows"))
    assert "every byte in turn" in again


# Axes


def test_a_straight_axis_puts_values_in_proportion_and_marks_round_ones():
    axis = straight(1.0, 3.0, bottom=200, top=0)
    assert [axis.at(value) for value in (1.0, 1.5, 3.0, 9.0)] == [200, 150, 0, 0]
    assert [label for _, label in axis.ticks] == ["1.0", "1.5", "2.0", "2.5", "3.0"]


def test_on_a_doubling_axis_every_doubling_is_as_wide():
    axis = doubling([128, 256, 512, 1024], left=0, right=300)
    assert [axis.at(value) for value in (128, 256, 512, 1024)] == pytest.approx([0, 100, 200, 300])
    assert [label for _, label in axis.ticks] == ["128", "256", "512", "1,024"]


def test_what_breaks_is_compressed_and_what_holds_is_not():
    axis = broken([1.4, 1.5, 1.6, 5.6], [1.5], bottom=100, top=0)
    assert axis.broken is not None
    assert 1.5 < axis.broken < 2.5
    assert axis.at(axis.broken) == pytest.approx(20)
    places = [axis.at(value) for value in (1.4, 1.5, 1.6, 3.0, 5.6)]
    assert places == sorted(places, reverse=True)
    assert min(axis.at(1.5) - axis.at(1.6), axis.at(1.4) - axis.at(1.5)) > 10


def test_what_every_row_scores_before_it_breaks_is_never_compressed():
    axis = broken([1.4, 2.6, 2.7, 9.0], [1.4, 2.6], bottom=100, top=0)
    assert axis.broken is not None
    assert axis.broken > 2.6


def test_a_row_that_is_spoiled_from_the_first_does_not_press_the_others_flat():
    axis = broken([1.4, 1.5, 1.6, 5.0, 5.2], [1.4, 1.5, 1.5, 5.0], bottom=100, top=0)
    assert axis.broken is not None
    assert axis.broken < 2.5


def test_an_axis_is_not_broken_where_all_hold():
    assert broken([1.4, 1.5, 1.6, 1.7], [1.5], bottom=100, top=0).broken is None


def test_names_are_moved_apart_as_little_as_may_be():
    assert spread([10, 50, 90], 12, 0, 100) == [10, 50, 90]
    assert spread([48, 50, 52], 12, 0, 100) == [38, 50, 62]
    assert spread([0, 0, 1], 12, 0, 100) == [0, 12, 24]
    assert spread([99, 100, 100], 12, 0, 100) == [76, 88, 100]
