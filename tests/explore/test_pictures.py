"""What a reader meets in every picture: round marks, both ends of a scale, settings, names where curves are apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import milepost as mp
from milepost import explore
from milepost.explore.pictures.axes import number, of_bar, of_cells, powers_of_ten
from milepost.explore.pictures.clocks import Clocks
from milepost.explore.pictures.curves import STYLES, Curves, broken_at_jumps, curves, look
from milepost.explore.pictures.maps import Map, map_of
from milepost.explore.pictures.naming import GRID, LETTER
from milepost.explore.pictures.picture import drawn
from milepost.explore.pictures.scatter import Scatter
from milepost.explore.pictures.strips import strips
from milepost.explore.words import in_words
from milepost.lab.report.layout import drawing_style

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        (np.arange(64.0), ["0", "20", "40", "60"]),
        (np.linspace(0, 8191, 128).round(), ["0", "2,000", "4,000", "6,000", "8,000"]),
        (np.arange(16.0, 32.0), ["16", "20", "25", "30"]),
        (np.arange(8.0), [str(n) for n in range(8)]),
        (np.array([2.0, 10.0, 100.0, 1_000.0, 10_000.0]), ["2", "10", "100", "1,000", "10,000"]),
        (2.0 ** np.linspace(0, 12, 97), ["1", "8", "64", "512", "4,096"]),
        (np.array([7.0]), ["7"]),
    ],
)
def test_cells_are_marked_at_round_numbers_or_at_even_steps(numbers: Any, wanted: Sequence[str]):
    ticks = of_cells(numbers, 10.0, 200.0)
    assert [name for _, name in ticks] == wanted
    for at, name in ticks:
        cell = (at - 10.0) / 200.0 * len(numbers) - 0.5
        value = float(np.interp(cell, np.arange(len(numbers)), numbers))
        assert value == pytest.approx(float(name.replace(",", "")), abs=1e-6)


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-3.94, 0.0), (0.0, 1919.0), (-15.0, 31.0), (0.0, 2.57)])
def test_a_bar_of_colours_has_a_number_at_both_ends(limits: tuple[float, float]):
    ticks = of_bar(*limits, 26.0, 250.0)
    assert ticks[0] == (276.0, number(limits[0]))
    assert ticks[-1] == (26.0, number(limits[1]))
    heights = [at for at, _ in ticks]
    assert np.all(-np.diff(heights) >= 16)


def test_powers_of_ten_are_written_one_way():
    assert [name for _, name in powers_of_ten(0.004, 5000.0, 0.0, 1.0).ticks] == [
        "10⁻³", "10⁻²", "10⁻¹", "1", "10", "10²", "10³", "10⁴",
    ]  # fmt: skip


def test_a_logarithmic_axis_says_that_it_is_one():
    at = np.array([1.0, 10.0, 100.0])
    panel = curves("", at, {"a": at}, x_name="keys", y_name="nats", x_scale="doubling", y_scale="decades").panel
    assert (panel.x_name, panel.y_name) == ("keys (log)", "nats (log)")


def test_curves_at_the_same_x_are_not_drawn_beside_one_another():
    at = np.arange(4.0)
    made = curves("", at, {"a": at, "b": at + 1, "c": at + 2}, x_name="x", y_name="y")
    drawing = ElementTree.fromstring(drawn("", [made]))
    groups = [each for each in drawing.iter(f"{SVG}g") if "curve" in (each.get("class") or "")]
    lines = [re.findall(r"[ML]([\d.]+)", path.get("d", "")) for group in groups for path in group.iter(f"{SVG}path")]
    assert lines[0] == lines[1] == lines[2]
    places = [[use.get("x") for use in group.iter(f"{SVG}use")] for group in groups]
    assert len(places) == 3
    assert places[0] == places[1] == places[2] == [f"{made.panel.x.at(x):.1f}" for x in at]


def test_curves_that_end_together_are_named_where_they_are_apart():
    at = np.linspace(0, 1, 50)
    lines = {"one": at, "two": at**6, "three": np.full(50, 0.4)}
    made = curves("", at, lines, x_name="x", y_name="y")
    found = {name.text: name for name in made._names()[0]}  # pyright: ignore[reportPrivateUsage]
    assert found["three"].end is not None
    assert found["one"].end is None or found["two"].end is None
    for name in found.values():
        if name.end is not None:
            continue
        half = LETTER * len(name.text) / 2
        for curve in made.panel.curves:
            inside = [
                made.panel.y.at(p.y) for p in curve.points if abs(made.panel.x.at(p.x) - name.x) < half
            ]  # fmt: skip
            assert all(y < name.y - 9 or y > name.y for y in inside)


def test_a_curve_that_ends_early_is_named_at_its_end_and_over_no_other():
    at = np.linspace(0, 100, 101)
    early = np.where(at < 5, at, np.nan)
    made = curves("", at, {"layers 0–10": early, "layer 11": 0 * at, "far": at + 50}, x_name="x", y_name="y")
    name = next(each for each in made._names()[0] if each.text == "layers 0–10")  # pyright: ignore[reportPrivateUsage]
    assert name.end is None
    assert abs(name.x - made.panel.x.at(4.0)) < 60
    assert name.x - LETTER * len(name.text) / 2 >= made.panel.left
    assert not name.y - 9 < made.panel.y.at(0.0) < name.y


def test_curves_that_look_alike_share_a_name_and_others_do_not():
    at = np.linspace(0, 1, 50)
    part = np.where((at > 0.2) & (at < 0.8), 0.0, np.nan)
    bump = np.where(at < 0.85, 0.0, (at - 0.85) * 6)
    made = curves("", at, {"bump": bump, "flat": 0 * at, "part": part, "zero": 0 * at}, x_name="x", y_name="y")
    assert {name.text for name in made._names()[0]} == {"bump", "flat, part, zero"}  # pyright: ignore[reportPrivateUsage]


def test_a_peak_between_two_pixels_is_not_written_over():
    at = np.arange(0.0, 400.0)
    spikes = np.where(at % 40 == 1, 1.0, 0.0)
    made = curves("", at, {"spikes": spikes, "flat": np.full(400, 0.02)}, x_name="x", y_name="y")
    for name in made._names()[0]:  # pyright: ignore[reportPrivateUsage]
        if name.end is None:
            near = np.abs([made.panel.x.at(x) for x in at] - np.float64(name.x)) < LETTER * len(name.text) / 2
            heights = np.array([made.panel.y.at(y) for y in spikes[near]])
            assert ((heights < name.y - 9) | (heights > name.y)).all()
            assert not ((heights < name.y - 9).any() and (heights > name.y).any())
    assert GRID[0] == made.panel.x.at(0.0)


def test_what_is_hidden_is_one_even_tone_that_is_named():
    values = np.array([[1.0, np.nan], [2.0, 3.0]])
    made = map_of(
        "", values, np.arange(2.0), np.arange(2.0), row_name="q", column_name="k", unit="u", hidden="future keys"
    )
    assert "future keys" in texts(drawn("", [made]))
    assert "<pattern" not in drawn("", [made])
    whole = map_of(
        "", values[1:], np.arange(1.0), np.arange(2.0), row_name="q", column_name="k", unit="u", hidden="future keys"
    )
    assert "future keys" not in texts(drawn("", [whole]))


def test_pictures_in_a_line_are_as_high_as_one_another_and_do_not_meet():
    at = np.arange(9.0)
    line = curves(
        "A title that is much wider than the map beneath it is, by many letters", at, {"": at}, x_name="x", y_name="y"
    )
    flat = map_of("Flat", np.zeros((2, 9)), at[:2], at, row_name="q", column_name="k", unit="u")
    assert line.size[1] == flat.size[1]
    drawing = ElementTree.fromstring(drawn("", [flat, line, flat, line]))
    moved = [each.get("transform", "") for each in drawing.iter(f"{SVG}g") if each.get("role") == "img"]
    x = [float(re.findall(r"[\d.]+", each)[0]) for each in moved]
    assert x[0] == x[2]
    assert x[1] == x[3]


def test_the_title_and_the_settings_are_written_above_the_pictures():
    found = explore.score_bands(mp.Rope(128))
    said = texts(found.svg())
    assert " ".join(said[:2]) == found.title
    assert "RoPE, 128 channels, base 10,000 · trained at 4,096 tokens" in said[2]
    assert '"settings": "RoPE' in found.to_json()


def test_methods_are_named_in_words():
    assert in_words(mp.Rope(64, theta=500_000.0)) == "RoPE, 64 channels, base 500,000"
    assert in_words(mp.Rope(64, stretch=mp.Ntk(8))) == "RoPE, 64 channels, base 10,000, NTK by 8"
    assert in_words(mp.Rerope(1024)) == "ReRoPE, window 1,024"
    # What the words would leave out is spelled.
    assert in_words(mp.Rerope(1024, at=2000)) == "Rerope(1024, at=2000)"
    assert in_words(mp.LogN(512)) == "LogN(512)"


def test_dials_that_training_filled_are_named_and_not_drawn():
    made = Clocks("", np.array([1.5, 1.0, 0.5, 2.0, 0.1]), np.full(5, 9.0), tuple("abcde"))
    assert made.shown == [2, 4]
    assert made.full.endswith("left out: a to b, d, which met every angle in training")


def test_a_line_is_broken_where_it_jumps():
    found = broken_at_jumps(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 0.5, 1.5]), 0.2)
    assert np.flatnonzero(np.isnan(found)).tolist() == [11]


def test_pictures_say_what_a_reader_would_stumble_over():
    said = " | ".join(texts(explore.bias_curves().svg()))
    assert "What the last of 8 heads adds to a score" in said
    assert "ALiBi, slope 1/256" in said
    assert "KERPLE, −1·ln(1 + 0.5n)" in said
    said = " | ".join(texts(explore.stream_cache().svg()))
    assert "31 tokens are kept between steps: the 32nd place is the next token's" in said.replace(" | ", " ")
    said = " | ".join(texts(explore.phase_errors().svg()))
    assert "angles in float16" in said
    assert "overflows at 65,504" in said
    said = " | ".join(texts(explore.odometer(mp.Rope(8)).svg()))
    assert "a fraction is not boxed: 9.9 is on the way from 9 to the next digit" in said
    assert "axial = two parts" in texts(explore.patch_scores().svg())
    assert {"memory", "text"} <= set(texts(explore.shift_map(mp.TransformerXL(8, 1, 8)).svg()))


def groups(made: Any, kind: str) -> list[ElementTree.Element]:
    drawing = ElementTree.fromstring(drawn("", [made]))
    return [each for each in drawing.iter(f"{SVG}g") if (each.get("class") or "").split()[:1] == [kind]]


def test_a_curve_beneath_another_shows_at_both_sides_of_it_there_and_nowhere_else():
    at = np.linspace(0, 100, 101)
    window = np.where(at <= 40, at, np.nan)
    crossing = 100 - at
    made = curves("", at, {"window": window, "RoPE": at, "crossing": crossing}, x_name="x", y_name="y")
    (casing,) = groups(made, "casing")
    assert "c0" in (casing.get("class") or "")
    path = casing.find(f"{SVG}path")
    assert path is not None
    across = [float(each) for each in re.findall(r"[ML]([\d.]+) ", path.get("d") or "")]
    assert (min(across), max(across)) == pytest.approx((made.panel.x.at(0.0), made.panel.x.at(40.0)), abs=1)
    assert not groups(curves("", at, {"a": at, "b": crossing}, x_name="x", y_name="y"), "casing")
    # Of three in one place the lowest is the widest.
    three = groups(curves("", at, {"a": at, "b": at, "c": at}, x_name="x", y_name="y"), "casing")
    widths = [float((each.find(f"{SVG}path") or each[0]).get("stroke-width") or 0) for each in three]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 2


def test_a_png_shows_what_lies_beneath_too():
    figures = pytest.importorskip("matplotlib.figure")
    at = np.linspace(0, 100, 101)
    axes: Any = figures.Figure().add_subplot()
    curves("", at, {"window": np.where(at <= 40, at, np.nan), "RoPE": at}, x_name="x", y_name="y").onto(axes)
    casing, window, rope = axes.lines
    assert casing.get_color() == window.get_color() != rope.get_color()
    assert casing.get_linewidth() > 2 * window.get_linewidth()
    assert casing.get_xdata()[-1] == pytest.approx(40, abs=1)
    assert [each.get_text() for each in axes.get_legend().get_texts()] == ["window", "RoPE"]


def test_a_curve_that_ends_early_is_not_named_with_one_that_goes_on():
    at = np.linspace(0, 100, 101)
    window, clamped = np.where(at <= 26, at, np.nan), np.minimum(at, 26)
    made = curves("", at, {"RoPE": at, "window": window, "ReRoPE": clamped}, x_name="x", y_name="y")
    assert {each.text for each in made._names()[0]} == {"RoPE", "window", "ReRoPE"}  # pyright: ignore[reportPrivateUsage]


def test_whole_numbers_are_marked_at_whole_numbers():
    at = np.arange(12.0)
    for values, wanted in ((at, ["0", "5", "10"]), (at / 4, ["0", "1", "2"])):
        panel = curves("", at, {"": values}, x_name="x", y_name="row").panel
        assert [name for _, name in panel.y.ticks] == wanted
    two = curves("", at, {"": np.minimum(at, 1)}, x_name="x", y_name="row").panel
    assert [name for _, name in two.y.ticks] == ["0", "1"]


def test_notes_are_written_over_no_curve():
    found = explore.phase_errors()
    (made,) = found.pictures
    assert isinstance(made, Curves)
    drawing = ElementTree.fromstring(found.svg())
    (note,) = [each for each in drawing.iter(f"{SVG}text") if "overflows" in (each.text or "")]
    named = [each for each in groups(made, "name") if "overflows" in "".join(each.itertext())]
    assert [each.get("class") for each in named] == [f"name {made.panel.curves[2].look.classes}"]
    assert made.panel.curves[2].name == "angles in float16"
    x, y = float(note.get("x") or 0), float(note.get("y") or 0)
    half = 0.9 * LETTER * len(note.text or "") / 2
    for curve in made.panel.curves:
        points = [(made.panel.x.at(p.x), made.panel.y.at(p.y)) for p in curve.points if np.isfinite(p.y)]
        across, down = np.array(points).T
        inside = np.interp(np.linspace(x - half, x + half, 200), across, down, left=np.nan, right=np.nan)
        assert not ((inside > y - 9) & (inside < y + 2)).any(), curve.name


def test_every_map_says_what_its_shades_are():
    for found in (explore.cope_counts(), explore.padding_leak_map()):
        maps = [each for each in found.pictures if isinstance(each, Map)]
        assert maps
        assert all(each.unit for each in maps)
        assert all(each.unit in texts(found.svg()) for each in maps)


def test_lines_of_pictures_are_no_wider_than_a_page_and_titles_are_broken():
    from milepost.explore.pictures.picture import WIDEST

    at = np.arange(99.0)
    long = {"a name that takes much room beside": at, "another one that takes as much": at * 0.5}
    wide = curves("Wide", at, long, x_name="x", y_name="y")
    flat = map_of("A title that is much wider than the map", np.zeros((2, 9)), at[:2], at[:9], row_name="q",
                  column_name="k", unit="u", wide=150.0)  # fmt: skip
    for made in ([wide, wide], [flat, flat, flat], [wide, flat, wide, flat], [flat] * 4, [wide] * 3):
        drawing = ElementTree.fromstring(drawn("T", made))
        assert float(drawing.get("width") or 0) <= WIDEST
        moved = [each.get("transform", "") for each in drawing.iter(f"{SVG}g") if each.get("role") == "img"]
        places = [[float(x) for x in re.findall(r"[\d.]+", each)] for each in moved]
        boxes = [(x, y, x + each.size[0], y + each.size[1]) for (x, y), each in zip(places, made, strict=True)]
        for n, (a, b, c, d) in enumerate(boxes):
            assert all(a >= g or c <= e or b >= h or d <= f for e, f, g, h in boxes[n + 1 :])
    headings = [each.text or "" for each in ElementTree.fromstring(drawn("T", [flat])).iter(f"{SVG}text")
                if each.get("class") == "heading"]  # fmt: skip
    assert len(headings) > 1
    assert " ".join(headings) == flat.title


def test_what_a_pale_edge_means_is_written_where_there_is_one():
    at = np.linspace(0, 100, 101)
    for lines, wanted in (({"a": at, "b": at}, True), ({"a": at, "b": 100 - at}, False)):
        said = texts(drawn("", [curves("", at, lines, x_name="x", y_name="y")]))
        assert ("pale edge: curves coincide" in said) == wanted


def test_who_sees_no_picture_hears_what_it_shows():
    found = explore.wavelengths({"RoPE": mp.Rope(16)}, trained=64, length=128)
    label = ElementTree.fromstring(found.svg()).get("aria-label") or ""
    assert label.startswith(found.title)
    assert found.says in label


def test_a_signed_map_has_two_hues_that_meet_at_0():
    from milepost.explore.pictures.maps import shades

    values = np.array([[-1.0, 0.0, 3.0]])
    made = map_of("", values, np.zeros(1), np.arange(3.0), row_name="q", column_name="k", unit="u", signed=True)
    assert made.limits == (-3.0, 3.0)
    low, zero, high = shades(np.array([[-3.0, 0.0, 3.0]]), made.limits, True)[0].astype(int)
    assert low[0] > low[2]
    assert high[2] > high[0]
    assert zero.sum() > max(low.sum(), high.sum())


def test_the_least_of_a_map_is_not_the_paper():
    from milepost.explore.pictures.maps import SCALE

    paper = (253, 252, 250)
    assert max(abs(a - b) for a, b in zip(SCALE[0], paper, strict=True)) > 20


def test_a_running_mean_and_a_range_around_it():
    from milepost.explore.pictures.curves import around, smoothed

    values = np.array([1.0, 5.0, 3.0, 7.0, 2.0, 8.0])
    assert smoothed(values, 3).tolist() == [1.0, 3.0, 5.0, 4.0, pytest.approx(17 / 3), 8.0]
    # Of every value, also of those between the places; no mean where values are on one side alone.
    mean, low, high = around(values, np.array([0, 2, 4, 5]), 3)
    assert mean.tolist()[1:3] == [5.0, pytest.approx(17 / 3)]
    assert np.isnan(mean[[0, 3]]).all()
    assert low.tolist() == [1.0, 3.0, 2.0, 2.0]
    assert high.tolist() == [5.0, 7.0, 8.0, 8.0]


def test_strips_have_one_scale_and_a_shade_over_just_its_values():
    from milepost.explore.pictures.strips import strips

    at = np.linspace(0, 1, 5)
    made = strips("", at, {"up": at, "down": -at}, x_name="x", y_name="y", shaded=(-9.0, 0.0, "below 0"))
    assert made.limits == (-1.0, 1.0)
    assert made.shaded == (-1.0, 0.0, "below 0")
    drawing = ElementTree.fromstring(drawn("", [made]))
    lines = [each.get("d", "") for each in drawing.iter(f"{SVG}path") if each.get("class") == "line"]
    (up, down) = ([float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line)] for line in lines)
    shades = [each for each in drawing.iter(f"{SVG}rect") if "tint" in (each.get("style") or "")][:2]
    # 0 lies on the upper edge of the shade, and the least value on the lower one.
    assert [up[0], down[0]] == pytest.approx([float(each.get("y") or 0) for each in shades], abs=0.1)
    ends = [float(each.get("y") or 0) + float(each.get("height") or 0) for each in shades]
    assert down[-1] == pytest.approx(ends[1], abs=0.2)
    assert [each for each in texts(drawn("", [made])) if each in ("up", "down")] == ["up", "down"]


def test_a_name_is_not_written_beside_a_rule_that_is_not_its_own():
    found = explore.wavelengths(
        {"RoPE": mp.Rope(128), "interpolation by 8": mp.Rope(128, stretch=mp.Interpolate(8)),
         "NTK by 8": mp.Rope(128, stretch=mp.Ntk(8))}, trained=4096, length=32_768,
    )  # fmt: skip
    made: Any = found.pictures[0]
    rule = made.panel.y.at(4096.0)
    for name in made._names()[0]:
        if name.end is None:
            assert abs(name.y - 5 - rule) > 12, name.text


def test_the_name_of_an_upright_rule_stays_over_its_picture():
    found = explore.score_bound(mp.Rope(16), trained=50, length=100)
    made: Any = found.pictures[0]
    name = "trained length, 50"
    assert made.panel.upright == (50.0, name)
    assert made._upright_at() + 0.46 * LETTER * len(name) <= made.panel.right + 10 + 1e-9
    assert made._upright_at() < made.panel.x.at(50.0)


def test_a_rule_near_the_left_edge_names_what_is_left_of_it_on_the_right():
    said = texts(explore.stream_cache().svg())
    assert "left of it: sinks" in said
    assert {"memory", "text"} <= set(texts(explore.shift_map(mp.TransformerXL(8, 1, 8)).svg()))


def test_dots_lie_where_their_numbers_are_and_on_the_line_where_both_are_equal():
    from milepost.explore.pictures.scatter import LEFT as EDGE
    from milepost.explore.pictures.scatter import SIDE, Scatter
    from milepost.explore.pictures.scatter import TOP as HIGH

    x = np.array([0.0, 0.5, 1.0])
    made = Scatter("", {"same": (x, x), "none": (x, np.zeros(3))}, "before", "after")
    drawing = ElementTree.fromstring(drawn("", [made]))
    clusters = [each for each in drawing.iter(f"{SVG}g") if "opacity" in (each.get("style") or "")]
    places = [
        [(float(use.get("x") or 0), float(use.get("y") or 0)) for use in each.iter(f"{SVG}use")] for each in clusters
    ]
    same, none = places
    assert all(a - EDGE == pytest.approx(HIGH + SIDE - b, abs=0.2) for a, b in same)
    assert len({b for _, b in none}) == 1
    assert [a for a, _ in none] == [a for a, _ in same]
    assert same[0] == none[0]
    assert {"same", "none", "before", "after", "equal"} <= set(texts(drawn("", [made])))
    looks = [use.get("href") for each in clusters for use in list(each.iter(f"{SVG}use"))[:1]]
    assert len(set(looks)) == 2
    figures = pytest.importorskip("matplotlib.figure")
    axes: Any = figures.Figure().add_subplot()
    made.onto(axes)
    assert [each.get_offsets().tolist() for each in axes.collections][1] == [[0, 0], [0.5, 0], [1, 0]]


def test_six_curves_differ_by_their_dashes():
    dashes = [look(n).classes.split()[1] for n in range(len(STYLES))]
    assert len(set(dashes)) == len(STYLES) == 6
    sheet = drawing_style()
    patterns = [re.search(rf"\.{each} \.line {{ stroke-dasharray: ([^;]+);", sheet) for each in dashes[1:]]
    assert len({found[1] for found in patterns if found}) == len(STYLES) - 1


def test_small_curves_are_marked_at_round_numbers_and_at_0():
    at = np.arange(9.0)
    for values, wanted in (
        (np.linspace(1, -0.0976, 9), ["0.0", "0.5", "1.0"]),
        (np.linspace(32.5, 0.507, 9), ["0", "20"]),
        (np.linspace(192, -33.1, 9), ["0", "100"]),
    ):
        made = strips("", at, {"": values}, x_name="x", y_name="y")
        assert [name for name in texts(drawn("", [made])) if name in wanted][: len(wanted)] == wanted
        assert made.limits[0] <= 0 <= made.limits[1]


def test_dots_of_two_kinds_differ_without_their_colours():
    at = np.arange(3.0)
    svg = drawn("", [Scatter("", {"a": (at, at), "b": (at, -at)}, "x", "y")])
    kinds = {marker: svg.count(f'href="#{marker}"') for marker in ("m0", "m9")}
    assert kinds == {"m0": 4, "m9": 4}
    # What `use` repeats is outside the class that styles are kept to.
    assert re.search(r'<g id="m9"><path style="fill: var\(--paper\)', svg)


def test_settings_have_lines_of_their_own():
    made = strips("", np.arange(3.0), {"": np.arange(3.0)}, x_name="x", y_name="y")
    assert {"one fact · another", "a ≤ b × c"} <= set(texts(drawn("T", [made], "one fact · another\na ≤ b × c")))


def test_a_strip_without_numbers_leaves_its_place_blank():
    at = np.arange(9.0)
    lines = {"": np.full(9, np.nan), "b": at}
    made = strips("", at, lines, x_name="x", y_name="y")
    beside = strips("", at, {"a": at, "b": at}, x_name="x", y_name="y")
    assert made.size == beside.size
    assert made.limits == (0, 8)
    drawing = [str(each.body()) for each in (made, beside)]
    assert [each.count('class="curve') for each in drawing] == [1, 2]
    tops = [re.findall(r'<text class="halo" x="[\d.]+" y="([\d.]+)">b<', each) for each in drawing]
    assert tops[0] == tops[1] != []


def test_names_are_at_the_ends_of_curves_that_run_close_to_each_other():
    at = np.linspace(0, 100, 101)
    lines = {"near": at, "nearer": 50 + at / 2, "far": 60 - at}
    made = [curves("", at, lines, x_name="x", y_name="y", at_ends=each) for each in (False, True)]
    ties = [str(each.body()).count('class="tie"') for each in made]
    assert ties[0] < ties[1] == 3


def test_a_note_that_would_lie_on_a_curve_is_further_off_and_tied_to_its_place():
    picture: Any = explore.phase_errors().pictures[0]
    (note,) = [each for each in groups(picture, "name") if "overflows at 65,504" in "".join(each.itertext())]
    (tie,) = [each.get("d") or "" for each in note.iter(f"{SVG}path")]
    start = [float(each) for each in re.findall(r"[\d.]+", tie)][:2]
    x, y, _ = picture.notes[0]
    assert start == pytest.approx([picture.panel.x.at(x), picture.panel.y.at(y)], abs=0.06)
