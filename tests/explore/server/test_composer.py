"""The composer's schemes: read without running code, written as Python, and drawn as the library computes them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore
from milepost.explore.composer import views
from milepost.explore.composer.menus import SECTIONS, STARTS, form, menus
from milepost.explore.composer.reading import python_of, read, text_of
from milepost.explore.composer.terms import term, terms_of
from milepost.explore.controls import NotPossibleError
from milepost.explore.scene import Dials, Lines, Map
from milepost.explore.server.app import Explorer
from milepost.explore.written import to_csv
from tests.explore.server.serving import Served, served
from tests.explore.server.trial import STORIES

TEXTS = {
    name: {
        "stretch": "Rope(dim, stretch={}), causal", "slopes": "Alibi(heads, stretch={}), causal",
        "place": "Rope(dim), {}, causal", "inside": "Rope(dim), {}, causal", "see": "Rope(dim), {}",
        "scale": "Rope(dim), {}, causal",
    }.get(menu["name"], "{}, causal").format(option["text"])
    for menu in menus() for option in menu["options"] for name in [f"{menu['name']}: {option['method']}"]
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Generator[Served]:
    with served(Explorer("a-token-of-a-test", STORIES)) as found:
        yield found


def asked(*schemes: str, **state: Any) -> views.Asked:
    return views.asked({"schemes": list(schemes), "state": state})


def lines(found: Any) -> Lines:
    assert isinstance(found, Lines)
    return found


def test_every_method_of_the_catalogue_that_changes_scores_is_in_a_menu():
    listed = {option["method"] for menu in menus() for option in menu["options"]}
    embeds = {entry.name for entry in mp.methods() if "embed" in entry.verbs or "sample" in entry.verbs}
    missing = {entry.name for entry in mp.methods()} - embeds - listed
    assert missing == {"AxialRope", "FloaterLayer", "LongRope", "TwoPartRope"}
    assert set(STARTS) <= listed
    assert {menu["name"] for menu in menus()} == {*SECTIONS, "see", "inside"}


@pytest.mark.parametrize("name", TEXTS)
def test_the_python_line_makes_the_same_scheme(name: str):
    scheme = read(TEXTS[name], 4096, 32_768)
    assert eval(python_of(scheme), {"mp": mp}).same_as(scheme)
    assert read(text_of(scheme)).same_as(scheme)
    assert read(python_of(scheme)).same_as(scheme)


@pytest.mark.parametrize("name", TEXTS)
def test_the_controls_of_a_scheme_write_the_same_scheme(name: str):
    scheme = read(TEXTS[name], 4096, 32_768)

    def written(found: dict[str, Any]) -> str:
        values: dict[str, str] = {}
        for field in found["fields"]:
            if "menu" in field:
                values[field["name"]] = "None" if field["form"] is None else written(field["form"])
            else:
                value = field["control"]["start"]
                values[field["name"]] = f'"{value}"' if isinstance(value, str) else str(value)
        return found["template"].format(**values)

    assert read(", ".join(written(form(part)) for part in scheme.parts)).same_as(scheme)


@pytest.mark.parametrize("name", TEXTS)
def test_every_view_draws_or_says_by_name_why_not(name: str):
    for view, draw in views.VIEWS.items():
        with torch.no_grad():
            found = draw(asked(TEXTS[name], length=2048, trained=512))
        assert found.figures or found.says.en, view
    parts = terms_of(read(TEXTS[name]))["terms"]
    assert len(parts) == len(read(TEXTS[name]).parts)
    assert all(each["lines"] for each in parts)


def test_scores_are_those_of_the_curve():
    found = asked("Rope(64), causal", "Alibi(8), causal", length=1000, head=3, vectors="alike", axis="even")
    figure = lines(views.score(found).figures[0])
    at = np.array(figure.at)
    assert at[0] == 0
    assert at[-1] == 999
    angles = at[:, None] * 10000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(figure.lines[0].values, 2 * np.cos(angles).sum(1) / 8, atol=1e-5)
    np.testing.assert_allclose(figure.lines[1].values, 8 - at * 2.0**-4, atol=1e-5)
    assert [(mark.at, mark.control) for mark in figure.marks] == [(4096, "trained"), (1000, "length")]


def test_weights_sum_to_one_over_all_keys():
    found = asked("Alibi(2), causal", length=300, head=1, axis="even")
    figure = lines(views.weights(found).figures[0])
    at, slope = np.array(figure.at), 2.0**-8
    whole = np.exp(-slope * np.arange(300)).sum()
    np.testing.assert_allclose(figure.lines[0].values, np.exp(-slope * at) / whole, rtol=1e-6)
    sunk = lines(views.weights(asked("Nope(), SoftmaxOne(2), causal", length=64, vectors="nothing")).figures[0])
    np.testing.assert_allclose(sunk.lines[0].values, 1 / 65, rtol=1e-6)


def test_maps_are_scores_and_hide_what_is_hidden():
    (found,) = views.maps(asked("Rope(64), causal & window(40)", length=100, vectors="alike")).figures
    assert isinstance(found, Map)
    cells = np.array(found.values)
    i, j = np.array(found.ys)[:, None], np.array(found.xs)[None, :]
    hidden = (j > i) | (i - j >= 40)
    np.testing.assert_array_equal(np.isnan(cells), hidden)
    angles = (i - j)[..., None] * 10000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(cells[~hidden], (2 * np.cos(angles).sum(-1) / 8)[~hidden], atol=1e-4)


def test_curves_are_sampled_at_every_sink_and_at_both_sides_of_every_edge():
    for axis in ("log", "even"):
        found = asked("Rope(64), causal & (window(1024) | sinks(4))", "Rope(64), causal", length=8192, axis=axis)
        for view in (views.score, views.weights, views.distances):
            figure = lines(view(found).figures[0])
            values = dict(zip(figure.at, figure.lines[0].values, strict=True))
            assert all(math.isfinite(values[at]) for at in (8191, 8190, 8189, 8188, 1023)), view
            # What is hidden has no score, and no weight.
            assert all(values[at] == 0 if view is views.weights else math.isnan(values[at]) for at in (1024, 8187))


def test_maps_side_by_side_have_one_scale():
    drawn = views.maps(asked("Rope(64), causal", "Alibi(8), causal", length=256, cells="score")).figures
    found = [each for each in drawn if isinstance(each, Map)]
    low, high = (f([f(np.array(each.values)[np.tril_indices(128)]) for each in found]) for f in (np.nanmin, np.nanmax))
    assert [each.limits for each in found] == [(low, high)] * 2


def test_whole_rows_are_formed_where_a_method_needs_them():
    for text in ("Cope(64, 16), causal", "Rope(64), Pivot(Rerope(32), 64), causal"):
        found = asked(text, length=300)
        assert views.score(found).figures == ()
        assert text.split(", ")[-2].split("(")[0] in found.refused[0].en
        (drawn,) = views.maps(asked(text, length=300, vectors="own")).figures
        assert isinstance(drawn, Map)
        q, k = asked(text, length=300, vectors="own").vectors_of(read(text))
        whole = mp.scores(*(each[None, :, None].expand(1, 1, 300, 64) for each in (q, k)), read(text))[0, 0]
        i, j = torch.tensor(drawn.ys).long(), torch.tensor(drawn.xs).long()
        seen = j[None] <= i[:, None]
        torch.testing.assert_close(torch.tensor(drawn.values)[seen].float(), whole[i][:, j][seen], atol=1e-4, rtol=1e-4)


def test_a_term_is_the_difference_it_makes():
    found = lines(term(asked("Rope(64), Alibi(1), causal", length=500, vectors="nothing"), 0, 1).figures[0])
    np.testing.assert_allclose(found.lines[0].values, -np.array(found.at) * 2.0**-8, atol=1e-9)
    hidden = term(asked("Rope(64), causal & window(100)", length=500), 0, 1)
    assert hidden.says.en == "It hides keys, the first of them 100 back." or "It hides keys" in hidden.says.en
    with pytest.raises(NotPossibleError, match="no such part"):
        term(asked("Rope(64), causal"), 0, 2)


def test_clocks_are_those_of_the_analysis():
    plain = views.angles(asked("Rope(128), causal", trained=4096, length=32_768)).figures[0]
    assert isinstance(plain, Dials)
    assert plain.title.en == "A: 18 of 64 pairs meet new angles"
    assert (
        views.angles(asked("Rope(128, stretch=Yarn(8, 4096)), causal", trained=4096, length=32_768))
        .figures[0]
        .title.en.startswith("A: 0 of")
    )
    # ReRoPE gives the rotation no distance past its window.
    near = views.angles(asked("Rope(128), Rerope(2048), causal", trained=4096, length=32_768)).figures[0]
    assert near.title.en.startswith("A: 0 of")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write a scheme"),
        ("Rope(63), causal", "must be even"),
        ("Learned(64, 64), causal", "token embeddings"),
        ("open('x')", "not known"),
        ("__import__('os')", "not known"),
        ("Rope(64).__class__", "not known"),
        ("[Rope(64)] * 2", "layer"),
        ("3", "no part of a scheme"),
        ("Cope(32)", "Cope needs positions"),
        ("Rope(64, stretch=Yarn(8 2048))", "Perhaps you forgot a comma?"),
        ("T5Bias(128, buckets=65536, reach=65536)", "at most"),
        ("TransformerXL(65536, 64, 64)", "at most"),
        ("Rope(1024), causal", "channels are too many"),
        ("Alibi(128), causal", "heads are too many"),
        ("Rope(64), Rope(64)", "both turn"),
        ("TwoPartRope(64)", "coordinates"),
        ("Rope(" * 100, "no expression"),
        ("x" * 601, "at most 600"),
    ],
)
def test_what_cannot_be_read_is_named_beside_its_scheme(text: str, why: str):
    with pytest.raises(NotPossibleError) as caught:
        asked("Rope(64), causal", text)
    assert caught.value.control == "scheme-1"
    assert why in caught.value.why.en
    assert caught.value.why.zh
    assert "; by name" not in caught.value.why.en or "comma" not in why
    assert "__init__" not in caught.value.why.en


def test_a_trained_length_of_its_own_is_said_on_the_card(server: Served):
    for text in ("Rope(64, stretch=Yarn(8, 2048)), causal", "Rope(64), Dilute(Rerope(64), 2048), causal"):
        given = {"schemes": [text], "state": {"trained": 4096}}
        (told,) = server.call("read", given).json
        # Once: the part is written with it.
        assert told["hint"]["en"].replace(",", "").count("2048") == 1
        assert "4,096" in told["hint"]["zh"]
        given["state"] = {"trained": 2048}
        assert "hint" not in server.call("read", given).json[0]


def test_what_costs_too_much_is_refused_with_its_cost():
    found = asked("TransformerXL(512, 8, 64), causal", length=131_072)
    assert views.maps(found).figures == ()
    assert "million numbers, and at most 6 million are computed" in found.refused[0].en
    rows = asked("Cope(64, 64), Alibi(32), causal", length=131_072)
    assert views.maps(rows).figures == ()
    assert "choose a shorter text" in rows.refused[0].en


def test_one_scheme_that_cannot_be_drawn_leaves_the_others():
    found = asked("Xpos(64), causal", "Rope(64), causal", length=131_072, cells="score")
    drawn = views.maps(found).figures
    assert len(drawn) == 1
    assert "overflows" in found.refused[0].en


def rows_of(scene: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(to_csv(scene))))


def test_csv_of_maps_and_of_angles_is_one_table_with_a_column_for_each_scheme():
    found = asked("Rope(64), causal", "Rope(128, stretch=Ntk(8)), causal", "Rope(64), Rerope(256), causal", length=512)
    maps = rows_of(views.maps(found))
    assert maps[0] == ["query", "key", "A (score)", "B (score)", "C (score)"]
    assert len({len(row) for row in maps}) == 1
    drawn = views.maps(found).figures[1]
    assert isinstance(drawn, Map)
    assert [float(row[3]) for row in maps[1:]] == pytest.approx(np.ravel(drawn.values), nan_ok=True)
    angles = rows_of(views.angles(found))
    assert angles[0][:3] == ["pair", "A, turns in training (turns)", "A, turns (turns)"]
    assert len(angles[0]) == 7
    # 64 pairs of B, and 32 of A and C, which have no others.
    assert [row[0] for row in angles[1:]] == [str(n) for n in range(64)]
    assert [row[1] == "nan" for row in angles[1:]] == [n >= 32 for n in range(64)]


def test_csv_of_weights_keeps_the_rows_of_every_scheme():
    found = asked("Rope(64), causal", "Alibi(32), causal", length=4096, cells="weight")
    scene = views.maps(found)
    first, second = (each for each in scene.figures if isinstance(each, Map))
    assert len(first.ys) > len(second.ys)
    table = rows_of(scene)
    assert table[0] == ["query", "key", "A (weight)", "B (weight)"]
    assert len(table) == 1 + len(first.ys) * len(first.xs)
    known = {(float(row[0]), float(row[1])): float(row[3]) for row in table[1:]}
    assert known[float(second.ys[3]), float(second.xs[5])] == pytest.approx(second.values[3][5], nan_ok=True)


def test_a_stretch_says_what_counts_as_training_and_what_it_leaves_alone():
    found = asked("Rope(64), causal", "Rope(64, stretch=Yarn(8, 4096)), causal", trained=2048, length=16_384)
    angles, distances = views.angles(found).says, views.distances(found).says
    # The same words as the analysis.
    stretched = mp.Rope(64, stretch=mp.Yarn(8, 2048))
    words = "Training is counted with {} over 2,048 tokens."
    alone = explore.angles_seen(stretched, trained=2048, length=16_384)
    assert words.format("Rope(64, stretch=Yarn(8, 2048))") in alone.says
    assert "give the rotation without it first" in alone.says
    both = explore.angles_seen(mp.Rope(64), trained=2048, length=16_384, stretched=stretched)
    assert "is counted" not in both.says
    assert angles.en.startswith(f"B: {words.format('Rope(64)')}")
    # Two trained lengths that differ: the other is named with what has it.
    for text in (angles.en, angles.zh):
        assert "Yarn(8, 4096)" in text
    assert distances.en == "B: Yarn(8, 4096) changes angles and not distances; see the angles."
    assert "Rope(64)" in angles.zh
    assert "请看角度" in distances.zh
    assert views.angles(asked("Rope(64), causal")).says.en == ""


def test_seen_distances_have_axes_of_one_kind_so_that_a_true_distance_is_a_straight_line():
    for schemes, axis, scale in (
        (("Rope(64), causal", "Rope(64), Rerope(1024), causal"), "log", "log"),
        (("Rope(64), causal",), "even", "even"),
        (("Rope(64), causal", "Nope(), causal"), "log", "even"),  # what sees no distance has no place on a log axis
    ):
        figure = lines(views.distances(asked(*schemes, trained=2048, length=8192, axis=axis)).figures[0])
        assert figure.y_scale == scale, schemes


def test_new_angles_that_a_dial_hardly_shows_are_said_to_be_less_than_a_degree():
    found = asked("Rope(64), Rerope(2048), causal", "Rope(64), causal", trained=2048, length=8192)
    narrow, wide = (each.title.en for each in views.angles(found).figures)
    assert narrow == "A: 11 of 32 pairs meet new angles, by less than a degree"
    assert wide == "B: 11 of 32 pairs meet new angles"


def test_the_server_answers_for_the_composer(server: Served):
    given = {"schemes": ["Rope(64), SelfExtend(8, 512), causal", "Rope(63)"], "state": {"length": 4096}}
    read_, bad = server.call("read", given).json
    assert read_["python"] == "mp.Scheme(mp.Rope(64), mp.SelfExtend(8, 512), mp.causal)"
    assert [part["method"] for part in read_["parts"]] == ["Rope", "SelfExtend", "causal"]
    assert "must be even" in bad["no"]["en"]
    given["schemes"].pop()
    assert server.call("compose", {**given, "draw": "score"}).json["figures"][0]["kind"] == "lines"
    assert server.call("compose", {**given, "draw": "nothing"}).json["control"] == "draw"
    assert server.call("term", {**given, "scheme": 0, "part": 1}).status == 200
    assert server.call("term", {**given, "scheme": 0, "part": True}).status == 422
    assert server.call("term", {**given, "scheme": 0, "part": -1}).status == 422
    rows = list(csv.reader(io.StringIO(server.call("csv", {**given, "draw": "distances"}).json)))
    assert rows[0] == ["distance, in tokens", "A (distance as seen)"]
    assert math.isclose(float(rows[-1][0]), 4095)
    assert float(rows[-1][1]) == 4095 // 8 + 512 - 512 // 8
