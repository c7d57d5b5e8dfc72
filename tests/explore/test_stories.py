"""What every story is: settings that compute, texts in both languages, a guess about something that is there."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import milepost as mp
from milepost.explore.composer.reading import read_all
from milepost.explore.composer.settings import SETTINGS
from milepost.explore.controls import Choice, NotPossibleError, Slider, Switch, Words, read
from milepost.explore.scene import Digits, Lines, Map, Say, Table, plain
from milepost.explore.server.told import axes
from milepost.explore.stories.all import BY_NAME, STORIES
from milepost.explore.stories.story import Story
from milepost.explore.stories.unseen import LOSS, MEASURED, TEXTS, measured

SEED = int(os.environ["MILEPOST_SEED"])
PAGE = 500_000
"""An exported page with every scene of a story, in bytes, the page itself among them."""
EVERY = pytest.mark.parametrize("story", STORIES, ids=[each.name for each in STORIES])


def says_of(value: Any) -> Iterator[Say]:
    """Every text in both languages inside something."""
    if isinstance(value, Say):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from says_of(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from says_of(each)


def size(scene: Any) -> int:
    return len(json.dumps(plain(scene), ensure_ascii=False, separators=(",", ":")).encode())


def ends(control: Any) -> list[Any]:
    if isinstance(control, Slider):
        return [control.read(control.low), control.read(control.high)]
    if isinstance(control, Choice):
        return [value for value, _ in control.options]
    return [False, True] if isinstance(control, Switch) else [control.start]


def drawn(control: Any, draw: random.Random) -> Any:
    if not isinstance(control, Slider):
        return draw.choice(ends(control))
    low, high = control.low, control.high
    if control.scale == "doubling":
        return control.read(2 ** draw.uniform(math.log2(low), math.log2(high)))
    return control.read(min(high, low + control.step * draw.randint(0, round((high - low) / control.step))))


def ran(code: str) -> dict[str, Any]:
    """Run the lines of a scene, and return what they named."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    assert printed.getvalue()
    return names


def test_the_stories_have_names_of_their_own():
    assert len(BY_NAME) == len(STORIES)


@EVERY
def test_every_text_is_in_both_languages(story: Story):
    scene = story.scene({})
    labels = [each for control in story.controls for each in says_of(control)]
    texts = [*says_of(story), *labels, *says_of(scene)]
    for each in texts:
        # One word for a score.
        assert "得分" not in each.zh, each
        assert each.en.strip(), each
        assert each.zh.strip(), each
        assert not any("\u4e00" <= letter <= "\u9fff" for letter in each.en), each
    for each in (story.question, story.lead, story.look_for, story.guess.question, *story.guess.answers, scene.says):
        assert any("\u4e00" <= letter <= "\u9fff" for letter in each.zh), each
        assert each.en != each.zh


@EVERY
def test_the_guess_is_about_what_the_scene_has(story: Story):
    figure = story.scene({}).figures[story.guess.figure]
    if story.guess.answers:
        assert 0 <= story.guess.right < len(story.guess.answers)
        assert not isinstance(figure, Lines)
    else:
        assert isinstance(figure, Lines)
        line = figure.lines[story.guess.line]
        assert not line.quiet
        assert np.isfinite(line.values).any()


@EVERY
def test_every_setting_computes_and_fits_into_a_page(story: Story):
    start = {each.name: each.start for each in story.controls}
    settings = [start | {each.name: end} for each in story.controls for end in ends(each)]
    draw = random.Random(f"{SEED} {story.name}")
    settings += [{each.name: drawn(each, draw) for each in story.controls} for _ in range(20)]
    sizes = [size(story.scene({}))]
    for given in settings:
        scene = story.scene(given)
        assert scene.says.en, given
        assert scene.says.zh, given
        for figure in scene.figures:
            if isinstance(figure, Lines):
                for line in figure.lines:
                    assert len(line.values) == len(figure.at), (given, line.name)
                    # A logarithm is of something above 0.
                    assert figure.y_scale == "even" or np.nanmin(line.values) > 0, (given, line.name)
            elif isinstance(figure, Map):
                assert np.shape(figure.values) == (len(figure.ys), len(figure.xs)), given
            elif isinstance(figure, Table):
                assert all(len(row) == len(figure.head) for row in figure.rows), given
        sizes.append(size(scene))
    assert max(sizes) < 60_000
    assert sum(isinstance(each, Slider) for each in story.controls) < 2 or max(sizes) < 12_000
    scenes = math.prod(len(each.grid(story.grid)) for each in story.controls)
    assert scenes * float(np.mean(sizes)) < PAGE - 100_000, f"{scenes} scenes of {np.mean(sizes):,.0f}"


@EVERY
def test_the_controls_are_few_and_marks_move_them(story: Story):
    assert 1 <= len(story.controls) <= 3
    known = {each.name for each in story.controls}
    for figure in plain(story.scene({}))["figures"]:
        asked = {each["control"] for each in (*figure.get("marks", ()), *figure.get("arrows", ()))}
        assert asked <= known | {""}


@EVERY
def test_what_is_no_setting_is_refused_by_its_name(story: Story):
    for control in story.controls:
        for wrong in (None, [], math.nan, {"a": 1}):
            with pytest.raises(NotPossibleError) as caught:
                story.scene({control.name: wrong})
            assert caught.value.control == control.name
        if isinstance(control, Words):
            with pytest.raises(NotPossibleError) as caught:
                story.scene({control.name: " "})
            assert caught.value.control == control.name


@EVERY
def test_schemes_to_try_are_schemes(story: Story):
    assert 1 <= len(story.try_own) <= 4
    assert story.try_trained < story.try_length
    names = {name: getattr(mp, name) for name in mp.__all__}
    for text in story.try_own:
        assert isinstance(eval(f"Scheme({text})", names), mp.Scheme)


# What each one shows


def test_order_nope_outputs_move_along_and_rope_outputs_change():
    scene = BY_NAME["order"].scene({})
    table, before, after, rope_before, rope_after = scene.figures
    assert isinstance(table, Table)
    nope, rope = (np.array([row[n] for row in table.rows], dtype=float) for n in (1, 2))
    assert nope.max() <= 1e-15
    assert rope.max() > 0.5
    maps = [np.array(each.values) for each in (before, after, rope_before, rope_after) if isinstance(each, Map)]
    np.testing.assert_allclose(maps[0], maps[1], atol=1e-15)
    assert np.abs(maps[2] - maps[3]).max() > 0.05
    np.testing.assert_allclose([each.sum(1) for each in maps], 1)
    # The right answer says that nothing changes.
    assert BY_NAME["order"].guess.right == 0


def test_order_leaks_in_through_the_causal_mask():
    table = BY_NAME["order"].scene({"causal": True}).figures[0]
    assert isinstance(table, Table)
    assert table.rows[-1][1] > 0.5  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize("causal", [False, True])
def test_order_of_chinese_words_and_its_code(causal: bool):
    scene = BY_NAME["order"].scene({"sentence": "位置编码", "shuffle": 3, "causal": causal})
    table = scene.figures[0]
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows[:-1]] == list("位置编码")
    moved = ran(scene.code)["moved"]
    for n, name in enumerate(("NoPE", "RoPE"), 1):
        np.testing.assert_allclose([row[n] for row in table.rows[:-1]], moved[name], atol=0)


@pytest.mark.parametrize("sentence", ["word", "a a a", "x " * 17])
def test_order_needs_words_that_can_be_shuffled(sentence: str):
    if sentence == "word":
        assert BY_NAME["order"].scene({"sentence": sentence})
        return
    with pytest.raises(NotPossibleError, match=r"^sentence: write"):
        BY_NAME["order"].scene({"sentence": sentence})


@pytest.mark.parametrize(("m", "n"), [(20, 8), (0, 63), (63, 63)])
def test_turn_the_product_stands_still_when_both_move(m: int, n: int):
    scene = BY_NAME["turn"].scene({"m": m, "n": n})
    both, arrows, by_distance = scene.figures
    assert isinstance(both, Lines)
    # One pair that turns by a tenth a token; the key is (0.8, 0.6), an angle of its own.
    own = math.atan2(0.6, 0.8)
    expected = math.cos(0.1 * (m - n) - own)
    np.testing.assert_allclose(both.lines[0].values, expected, atol=1e-14)
    np.testing.assert_allclose(both.lines[1].values, [math.cos(0.1 * (m + s - n) - own) for s in range(64)], atol=1e-14)
    assert isinstance(by_distance, Lines)
    assert by_distance.marks[0].at == m - n
    np.testing.assert_allclose(by_distance.lines[0].values, np.cos(0.1 * np.arange(-63, 64) - own), atol=1e-14)
    for arrow, start, position in zip(plain(arrows)["arrows"], (0.0, own), (m, n), strict=True):
        turns = (start + 0.1 * position) / math.tau
        assert math.cos(math.tau * (arrow["turns"] - turns)) == pytest.approx(1, abs=1e-9)
        assert arrow["turns_per_step"] == pytest.approx(0.1 / math.tau, rel=1e-5)
    product = ran(scene.code)["product"]
    np.testing.assert_allclose(both.lines[0].values, [product(m + s, n + s) for s in range(64)], atol=1e-15)


def test_clocks_of_which_46_turn_fully_in_training():
    scene = BY_NAME["clocks"].scene({"position": 20_000})
    turns, dials = scene.figures
    assert isinstance(turns, Lines)
    expected = 4096 * 10_000.0 ** (-np.arange(64) / 64) / math.tau
    np.testing.assert_allclose(turns.lines[0].values, expected, rtol=1e-12)
    assert turns.marks[0].at == 45.5
    assert "46 of 64 pairs" in scene.says.en
    assert "1.000 radians" in scene.says.en
    for dial, n in zip(plain(dials)["dials"], range(64), strict=True):
        assert dial["seen"] == pytest.approx(min(expected[n], 1), rel=1e-5)
        assert dial["reached"] == pytest.approx(expected[n] * 20_000 / 4096, rel=1e-5)
        assert dial["hand"] == pytest.approx(expected[n] * 20_000 / 4096 % 1, abs=1e-5)
    found = ran(scene.code)["found"]
    np.testing.assert_array_equal(found["turns in training"], turns.lines[0].values)
    assert (found["turns"] % 1).tolist() == [each.hand for each in dials.dials]  # pyright: ignore


def test_clocks_of_a_larger_base_turn_less():
    marks = [BY_NAME["clocks"].scene({"base": base}).figures[0].marks[0].at for base in ("10000", "500000", "1000000")]  # pyright: ignore
    # The pairs n with 4096 · base^(−n/64) ≥ 2π.
    full = [sum(4096 * base ** (-n / 64) >= math.tau for n in range(64)) for base in (1e4, 5e5, 1e6)]
    assert marks == [each - 0.5 for each in full]


@pytest.mark.parametrize(("position", "passed", "stand"), [(16_384, 18, 12), (4096, 0, 0), (32_768, 18, 12)])
def test_clocks_that_stand_in_a_new_arc_are_fewer_than_those_that_passed_one(position: int, passed: int, stand: int):
    # Whatever it has turned since, a hand stands somewhere; what training showed of it is an arc that begins at 0.
    step = 10_000.0 ** (-np.arange(64) / 64)[:, None]
    shown = np.minimum(4096 * step, math.tau)
    new = np.mod(np.arange(4096, position + 1) * step, math.tau) > shown + 1e-9
    ever, now = new.any(1).sum(), new[:, -1].sum()
    assert (ever, now) == (passed, stand)
    scene = BY_NAME["clocks"].scene({"position": position})
    if not ever:
        assert "no hand leaves what training showed" in scene.says.en
        return
    assert f"{ever} pairs have passed through arcs that training never reached; {now} stand in one" in scene.says.en
    assert f"{ever} 对经过了" in scene.says.zh
    assert f"{now} 对" in scene.says.zh.split("经过了")[1]


def test_clocks_open_where_something_is_new_and_give_nothing_away():
    story = BY_NAME["clocks"]
    scene = story.scene({})
    assert "stand in one" in scene.says.en
    empty = axes(story, scene)
    assert empty is not None
    assert empty["lines"] == []
    assert empty["marks"] == []
    # A mark that says where training ended stays.
    other = BY_NAME["unseen"]
    assert (axes(other, other.scene({})) or {})["marks"]


SMOLLM2 = Path(__file__).parents[2] / "docs" / "look" / "unseen_angles_32768.json"


def test_what_was_measured_on_smollm2_is_what_the_look_into_it_found():
    data, found = measured(), json.loads(SMOLLM2.read_text(encoding="utf-8"))
    assert {"model", "text", "measured", "license"} <= set(data)
    assert f"{data['unseen pairs']} of {data['pairs']} pairs" in found["title"]
    assert data["position"] == found["arrays"]["position"]["values"]
    for name, losses in data["loss"].items():
        np.testing.assert_allclose(losses, np.mean(found["arrays"][f"loss, {name}"]["values"], 0), atol=0.0005001)
    for name, (mean, interval) in data["more"].items():
        # Over which positions, as the story says.
        past = np.array(found["arrays"]["position"]["values"]) > 8192
        losses = {each: np.array(found["arrays"][f"loss, {each}"]["values"]) for each in (name, "window")}
        assert (losses[name] - losses["window"])[:, past].mean() == pytest.approx(mean, abs=6e-4)
        assert f"{name} {mean:+.3f} ± {interval:.3f}" in found["says"]
    assert set(data["more"]) == set(data["loss"]) - {"window"}


def test_unseen_angles_break_the_model_and_slowing_the_others_mends_nothing():
    scene = BY_NAME["unseen"].scene({})
    losses, dials = scene.figures[:2]
    assert isinstance(losses, Lines)
    assert "not computed here" in losses.title.en
    past = np.array(losses.at) > 8192
    # The failure itself is no pale line.
    assert [each.quiet for each in losses.lines] == [False, False, False, True]
    assert f"Mean over positions {8192:,} to {32_768:,}" in scene.says.en
    mine, others, stock, window = (np.array(each.values)[past].mean() for each in losses.lines)
    assert mine - window == pytest.approx(0.301, abs=0.01)
    assert others - window == pytest.approx(4.307, abs=0.01)
    assert stock - window == pytest.approx(4.318, abs=0.01)
    # Pairs that do not turn fully in training, which is the number that was changed in the model.
    turns = 8192 * 100_000.0 ** (-np.arange(32) / 32) / math.tau
    seen = [each["seen"] for each in plain(dials)["dials"]]
    np.testing.assert_allclose(seen, np.minimum(turns, 1), rtol=1e-5)
    assert sum(each < 1 for each in seen) == measured()["unseen pairs"] == 12
    names = ran(scene.code)
    assert (names["found"]["unseen arc"] > 0).sum() == 12
    np.testing.assert_array_equal(names["bound"]["outside, by ridge"], scene.figures[3].lines[0].values)  # pyright: ignore


@pytest.mark.parametrize("change", ["slowed", "frozen", "dropped"])
def test_unseen_pairs_changed_cost_within_the_trained_length_too(change: str):
    data, says = measured(), BY_NAME["unseen"].scene({"change": change}).says
    for which, those in (("unseen", 12), ("other", 20)):
        stock, changed = data["loss"]["unchanged"], data["loss"][f"{which} pairs {change}"]
        more = [a - b for a, b, at in zip(changed, stock, data["position"], strict=True) if at < 8192]
        written = f"{sum(more) / len(more):+.2f}"
        assert f"{written} for the {those}" in says.en
        assert written in says.zh
        # Slowing the others ruins the model where it needs no help; so does every change but the mild one.
        assert (float(written) > 2) == ((which, change) != ("unseen", "slowed"))


def test_unseen_text_to_look_for_holds_in_what_was_measured():
    data, says = measured(), BY_NAME["unseen"].look_for.en
    at, stock = np.array(data["position"]), np.array(data["loss"]["unchanged"])
    window = np.array(data["loss"]["window"])
    assert "from about 11,000" in says
    assert data["length"] == MEASURED
    assert f"{TEXTS} windows of {MEASURED:,}" in data["text"]
    assert (stock[at < 10_900] < 2.7).all()
    assert (stock[at > 11_100] > 3.1).all()
    assert window[(at > 8192) & (at < 10_000)].min() - window[at < 8192].max() > 0.3
    assert {name for name, (more, _) in data["more"].items() if more < 1} == {"unseen pairs slowed"}


def test_unseen_guess_names_the_loss_at_trained_positions():
    data = measured()
    within = np.array(data["position"]) < data["trained"]
    assert round(float(np.array(data["loss"]["unchanged"])[within].mean()), 1) == LOSS
    assert f"about {LOSS} nats" in BY_NAME["unseen"].guess.question.en


def test_unseen_bound_depends_on_its_ridge_by_six_orders():
    past: list[float] = []
    for ridge in ("1e-10", "1"):
        score, by_ridge = BY_NAME["unseen"].scene({"ridge": ridge}).figures[2:]
        assert isinstance(score, Lines)
        assert isinstance(by_ridge, Lines)
        trained = np.array(score.at) <= 2048
        sizes = np.array(score.lines[0].values)
        assert sizes[trained].max() < 1
        past.append(sizes[~trained].max())
        values = np.array(by_ridge.lines[0].values)
        assert values.max() / values.min() > 1e6
        assert by_ridge.marks[0].at == float(ridge)
    assert past[0] > 1e4
    assert past[1] < 2


@pytest.mark.parametrize(
    ("method", "factor", "new", "widest", "step"),
    [
        ("direct", 8, 18, 0.87, 1.0),
        ("pi", 8, 0, 0.0, 0.125),
        ("ntk", 8, 17, 0.35, 1.0),
        ("ntk", 16, 2, 0.05, 1.0),
        ("yarn", 8, 0, 0.0, 1.0),
    ],
)
def test_stretches_by_the_angles_that_they_meet_anew(method: str, factor: int, new: int, widest: float, step: float):
    scene = BY_NAME["stretches"].scene({"method": method, "factor": factor})
    slower, dials = scene.figures[:2]
    arcs = [min(each["reached"], 1) - each["seen"] for each in plain(dials)["dials"]]
    assert sum(each > 1e-6 for each in arcs) == new
    assert max(arcs) == pytest.approx(widest, abs=0.005)
    assert isinstance(slower, Lines)
    assert 1 / slower.lines[0].values[0] == pytest.approx(step, rel=1e-12)
    assert f"{step:.3f} radians" in scene.says.en
    assert (f"{new} of 64 pairs meet" in scene.says.en) == (new > 0)
    names = ran(scene.code)
    np.testing.assert_array_equal(names["slower"], slower.lines[0].values)
    assert (names["found"]["unseen arc"] > 0).sum() == new


def test_stretches_ntk_slows_the_pairs_by_a_power_of_the_factor():
    slower = BY_NAME["stretches"].scene({"method": "ntk", "factor": 8}).figures[0]
    assert isinstance(slower, Lines)
    np.testing.assert_allclose(slower.lines[0].values, 8.0 ** (np.arange(64) / 63), rtol=1e-12)


@pytest.mark.parametrize(("method", "base", "squeezed"), [("direct", 10, 1), ("pi", 10, 8), ("ntk", 20, 1)])
def test_stretches_as_digits(method: str, base: int, squeezed: int):
    digits = plain(BY_NAME["stretches"].scene({"method": method, "factor": 8}).figures[2])
    assert digits["kind"] == "digits"
    assert digits["base"] == pytest.approx(base)
    for name, row, new in digits["rows"]:
        position = int(name["en"].replace(",", ""))
        last = position / squeezed % base
        written = [*(position // squeezed // base**n % base for n in (3, 2, 1)), last]
        assert row == pytest.approx(written, rel=1e-5)
        # The first place alone has angles that were never met: 999 of them, in thousandths of a radian.
        assert new == [method == "direct" and position > 999, False, False, False]


@pytest.mark.parametrize("method", ["direct", "pi", "ntk", "yarn"])
@pytest.mark.parametrize("factor", [2, 8, 21])
def test_stretches_code_gives_the_digits(method: str, factor: int):
    scene = BY_NAME["stretches"].scene({"method": method, "factor": factor})
    shown = plain(scene.figures[2])
    assert ran(scene.code)["digits"] == pytest.approx(np.array([row[1] for row in shown["rows"]]), rel=1e-5)
    # Pairs that are slowed unequally are no digits of a base.
    assert ("base" in shown["title"]["en"].replace("no one base", "")) == (method != "yarn")
    assert ("进制的" in shown["title"]["zh"]) == (method != "yarn")


def test_stretches_text_to_look_for_holds_at_factor_8():
    turned, says = 4096 * 10_000.0 ** (-np.arange(64) / 64) / math.tau, BY_NAME["stretches"].look_for.en
    assert np.flatnonzero(turned > 32).tolist() == list(range(21))
    assert np.flatnonzero(turned < 1).tolist() == list(range(46, 64))
    assert "46 to 63, all but the last still meet new angles" in says
    dials = plain(BY_NAME["stretches"].scene({"method": "ntk", "factor": 8}).figures[1])["dials"]
    new = [n for n, each in enumerate(dials) if min(each["reached"], 1) > each["seen"] + 1e-6]
    assert new == list(range(46, 63))
    # "evenly over the pairs' numbers": what YaRN keeps of each pair, from 1 at pair 20 to 0 at 46.
    slower = BY_NAME["stretches"].scene({"method": "yarn", "factor": 8}).figures[0].lines[0].values  # pyright: ignore
    kept = (1 / np.array(slower) - 1 / 8) / (1 - 1 / 8)
    np.testing.assert_allclose(kept, np.clip((46 - np.arange(64)) / 26, 0, 1), atol=1e-9)
    paper = mp.Rope(128, stretch=mp.Yarn(8, 4096, ramp="paper"))
    one = torch.ones(1, dtype=torch.float64)
    by_turns = (mp.Rope(128).angles(one) / paper.angles(one))[0].numpy()
    assert (by_turns[22:46] > np.array(slower)[22:46]).all()


def test_windows_show_the_last_token_the_distances_of_the_formulas():
    w, t = 512, 8191
    ours = {
        "rerope": lambda d: min(d, w),
        "self_extend": lambda d: d if d < w else t // 8 - (t - d) // 8 + w - w // 8,
    }
    for method, seen in ours.items():
        scene = BY_NAME["windows"].scene({"method": method, "w": w})
        lines = scene.figures[0]
        assert isinstance(lines, Lines)
        assert lines.marks[0].control == "w"
        assert list(lines.lines[0].values) == [seen(int(d)) for d in lines.at]
        most = max(seen(d) for d in range(t + 1))
        assert f"{most:,}" in scene.says.en
        names = ran(scene.code)
        row = next(each.values for each in names["found"].arrays if "last token" in each.name)
        assert row[np.array(lines.at, dtype=int)].tolist() == list(lines.lines[0].values)


def test_windows_of_dual_chunks_climb_through_a_chunk_and_drop():
    w, size = 512, 384
    scene = BY_NAME["windows"].scene({"method": "dual_chunk", "w": w})
    shown = scene.figures[0]
    assert isinstance(shown, Lines)
    seen = {int(at): float(each) for at, each in zip(shown.at, shown.lines[0].values, strict=True)}
    # A jump is a gap of one key: no line slants from one chunk to the next.
    gaps = [at for at, each in seen.items() if math.isnan(each)]
    # The chunk before that of the last token goes on from it.
    assert gaps == list(range(128 + size, 8192, size))
    assert all({gap - 1, gap + 1} <= seen.keys() and seen[gap + 1] < seen[gap - 1] for gap in gaps)
    there = [(at, each) for at, each in seen.items() if at not in gaps]
    assert max(each for _, each in there) <= w
    # Back from the last token, 8,191: it stands at 127 of its chunk, so chunks end 128 tokens back, and every 384 more.
    for (one, before), (other, after) in pairwise(there):
        chunks = (8191 - one) // size, (8191 - other) // size
        assert (after > before) == (chunks[0] == chunks[1]) or chunks[0] == 8191 // size
    assert "to w at most" in BY_NAME["windows"].look_for.en


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("windows", {"w": 1792}, ["Rerope(1792)", "SelfExtend(8, 1792)", "DualChunk(1792, 448)"]),
        ("stretches", {"factor": 4}, ["Interpolate(4)", "Ntk(4)", "Yarn(4, 4096)"]),
    ],
)
def test_schemes_to_try_are_set_as_the_story_was(name: str, given: dict[str, Any], expected: list[str]):
    found = BY_NAME[name].scene(given).try_own
    assert found is not None
    assert len(found) == 4
    names = {each: getattr(mp, each) for each in mp.__all__}
    for text, part in zip(found[1:], expected, strict=True):
        assert part in text
        assert isinstance(eval(f"Scheme({text})", names), mp.Scheme)


ALIBI12 = "Alibi(12, stretch=Alibi{}(2)), causal"


@pytest.mark.parametrize(
    ("name", "given", "schemes", "settings"),
    [
        ("order", {"causal": True}, ["Nope(), causal", "Rope(32), causal"], {}),
        ("order", {}, ["Nope()", "Rope(32)"], {}),
        ("clocks", {"base": "500000", "position": 8192}, ["Rope(128, theta=500000.0), causal"], {"length": 8192}),
        ("clocks", {"position": 1}, ["Rope(128, theta=10000.0), causal"], {"length": 64}),
        (
            "unseen",
            {"length": 16_384},
            ["Rope(64, theta=100000.0), causal", "Rope(64, theta=100000.0, stretch=Yarn(2, 8192)), causal"],
            {"length": 16_384},
        ),
        (
            "penalties",
            {"heads": "12", "head": "steepest", "factor": 2},
            ["Alibi(12), causal", ALIBI12.format("Interpolate"), ALIBI12.format("Ntk"), "Kerple(12), causal"],
            # Slopes of 12 heads do not fall from head to head.
            {"head": 8, "vectors": "nothing"},
        ),
        (
            "keys",
            {"method": "pivot", "trained": 1024, "sharp": 2},
            ["Nope(), Scale(0.25), causal", "Rope(64), Pivot(Rerope(512), 1024), Scale(0.25), causal"],
            {"trained": 1024, "vectors": "apart"},
        ),
        (
            "config",
            {},
            ["Rope(128, theta=500000), causal & window(4096)", "Rope(128, theta=500000, stretch=Yarn(8, 8192"],
            {"trained": 8192, "length": 65_536},
        ),
    ],
)
def test_what_a_story_was_set_to_is_carried_to_the_composer(
    name: str, given: dict[str, Any], schemes: list[str], settings: dict[str, Any]
):
    scene = BY_NAME[name].scene(given)
    assert scene.try_own is not None
    for text, wanted in zip(scene.try_own, schemes, strict=False):
        assert text.startswith(wanted)
    assert len(schemes) <= len(scene.try_own) <= 4
    assert dict(scene.try_set) == settings
    story = BY_NAME[name]
    state = read(SETTINGS, {"trained": story.try_trained, "length": story.try_length} | settings)
    read_all(list(scene.try_own), state["trained"], state["length"])


def test_a_config_of_which_the_composer_draws_nothing_offers_nothing():
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 128, "vocab_size": 50}
    assert BY_NAME["config"].scene({"config": json.dumps(config)}).try_own == ()


def test_digits_have_a_head_that_says_what_each_counts():
    for method, units in (("direct", "1,000 100 10 1"), ("ntk", "8,000 400 20 1"), ("pi", "8,000 800 80 8")):
        digits = BY_NAME["stretches"].scene({"method": method, "factor": 8}).figures[2]
        assert isinstance(digits, Digits)
        assert [each.en for each in digits.head] == [
            "position", *(f"pair {3 - n}: × {unit}" for n, unit in enumerate(units.split())),
        ]  # fmt: skip
        assert "angle" not in digits.title.en


def test_stretches_tell_the_temperature_of_yarn_alone():
    for method in ("direct", "pi", "ntk", "yarn"):
        says = BY_NAME["stretches"].scene({"method": method, "factor": 8}).says
        # (0.1 · ln 8 + 1)²
        assert ("every score by 1.46" in says.en) == (method == "yarn")
        assert ("乘以 1.46" in says.zh) == (method == "yarn")


def test_windows_that_are_too_wide_pass_the_trained_length():
    assert "which training showed: its farthest is 2,047" in _windowed("self_extend", 1024)
    # A text of 2,048 tokens has no distance of 2,048.
    for method in ("rerope", "self_extend", "dual_chunk"):
        assert "which training never showed: its farthest is 2,047" in _windowed(method, 2048)
    chunks = BY_NAME["windows"].scene({"method": "dual_chunk", "w": 2048})
    table = chunks.figures[2]
    assert isinstance(table, Table)
    # No distance exceeds the chunk.
    assert table.rows[2][1] == 2048


def _windowed(method: str, w: int) -> str:
    return BY_NAME["windows"].scene({"method": method, "w": w}).says.en


@pytest.mark.parametrize("w", [128, 512, 1024, 1920])
def test_windows_of_dual_chunks_say_their_chunk_and_keep_so_many_keys_at_least(w: int):
    scene = BY_NAME["windows"].scene({"method": "dual_chunk", "w": w})
    for says in (scene.says.en, scene.says.zh):
        assert f"w − w/4 = {w - w // 4:,}" in says
        assert f"w/4 + 1 = {w // 4 + 1:,}" in says
    table = scene.figures[2]
    assert isinstance(table, Table)
    assert table.rows[2][2] >= w // 4 + 1  # pyright: ignore[reportOperatorIssue]
    assert "chunk" not in _windowed("rerope", w)


@pytest.mark.parametrize("method", ["rerope", "self_extend", "dual_chunk"])
def test_windows_drawn_as_a_map(method: str):
    shown = BY_NAME["windows"].scene({"method": method, "w": 640}).figures[1]
    assert isinstance(shown, Map)
    values, tokens = np.array(shown.values), np.array(shown.xs, dtype=float)
    hidden = np.triu(np.ones_like(values, dtype=bool), 1)
    assert np.isnan(values[hidden]).all()
    assert np.isfinite(values[~hidden]).all()
    apart = tokens[:, None] - tokens[None]
    near = ~hidden & (apart < 160)
    np.testing.assert_array_equal(values[near], apart[near])
    assert (values[~hidden] <= apart[~hidden]).all()


@pytest.mark.parametrize(("heads", "head", "factor"), [(8, "flattest", 4), (12, "middle", 2), (32, "steepest", 16)])
def test_penalties_fields_of_view(heads: int, head: str, factor: int):
    scene = BY_NAME["penalties"].scene({"heads": str(heads), "head": head, "factor": factor})
    views, added, faded = (each for each in scene.figures if isinstance(each, Lines))
    slopes = 2.0 ** (-8 / heads * np.arange(1, heads + 1))
    if heads == 12:
        # Those of 8, and every other one of 16 for the four that are left; the steepest first.
        slopes = np.sort(np.append(2.0 ** -np.arange(1, 9), 2.0 ** (-0.5 * np.arange(1, 9, 2))))[::-1]
    own, squeezed, ntk = (np.array(each.values) for each in views.lines)
    # The field of view is ln 100/slope.
    np.testing.assert_allclose(own, math.log(100) / slopes, rtol=1e-12)
    np.testing.assert_allclose(squeezed, own * factor, rtol=1e-12)
    assert ntk[0] == pytest.approx(own[0], rel=1e-12)
    assert ntk[-1] == pytest.approx(own[-1] * factor, rel=1e-12)
    rank = {"steepest": 0, "middle": (heads - 1) // 2, "flattest": heads - 1}[head]
    assert views.marks[0].at == rank
    np.testing.assert_allclose(added.lines[0].values, -slopes[rank] * np.array(added.at), rtol=1e-12)
    assert faded.lines[1].values[0] == 1
    names = ran(scene.code)
    np.testing.assert_array_equal(np.sort(names["found"]["field of view, ALiBi"]), own)
    for line, name in zip(added.lines, ("ALiBi", "KERPLE, log", "FIRE", "Sandwich"), strict=True):
        np.testing.assert_array_equal(names["curves"][name], line.values)


def test_keys_spread_attention_as_ln_n_and_log_n_slows_it():
    scene = BY_NAME["keys"].scene({})
    shown, table = scene.figures
    assert isinstance(shown, Lines)
    log_n, plain_one, even = (dict(zip(shown.at, each.values, strict=True)) for each in shown.lines)
    # The mean of 8 heads, against that of 64.
    for n, before, after in ((512, 5.73, 5.73), (1024, 6.42, 6.30), (4096, 7.81, 7.42)):
        assert plain_one[n] == pytest.approx(before, abs=0.06)
        assert log_n[n] == pytest.approx(after, abs=0.06)
        assert even[n] == pytest.approx(math.log(n))
    names = ran(scene.code)
    np.testing.assert_array_equal(names["found"]["now"], shown.lines[0].values)
    np.testing.assert_array_equal(names["found"]["plain"], shown.lines[1].values)
    assert isinstance(table, Table)
    assert table.rows[-1] == (4096, math.exp(plain_one[4096]), math.exp(log_n[4096]))


def test_keys_past_a_window_with_sinks_add_nothing():
    shown = BY_NAME["keys"].scene({"method": "stream", "trained": 256}).figures[0]
    assert isinstance(shown, Lines)
    past = np.array(shown.at) >= 256
    now, before = (np.array(each.values)[past] for each in shown.lines[:2])
    assert np.ptp(now) < 0.2
    assert np.ptp(before) > 2.5


@pytest.mark.parametrize("method", ["log_n", "log_n_trained", "pivot", "stream"])
def test_keys_code_computes_what_is_drawn(method: str):
    scene = BY_NAME["keys"].scene({"method": method, "trained": 700, "sharp": 2})
    shown = scene.figures[0]
    assert isinstance(shown, Lines)
    assert 700 in shown.at
    found = ran(scene.code)["found"]
    for name, line in zip(("now", "plain"), shown.lines[:2], strict=True):
        np.testing.assert_array_equal(found[name], line.values)
