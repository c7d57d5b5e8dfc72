"""The curves of a report: rows can be told apart, bars are whole, and a second picture shows what windows share taken
out."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

from milepost.lab.report import Findings, Measure, Row, page
from milepost.lab.report.figure import BOTTOM, TOP, told_apart
from milepost.lab.report.look import looks
from milepost.lab.report.views import less_window as panels
from milepost.lab.schemes.named import WITHOUT_TRAINING
from milepost.lab.statistics.measures import paired
from tests.lab.test_table import RAN, anchors, row

SCHEMES = ("nope", "sinusoidal", "rope", "alibi", "t5", "kerple")
FLAT = (1.5, 1.5, 1.5, 1.5)


def demonstration() -> Findings:
    """As many rows as the demo has: six schemes, twelve rows on RoPE, four on ALiBi."""
    rows: list[Row] = []
    for name in SCHEMES:
        rows.append(row(name, "", FLAT))
        for label, text in WITHOUT_TRAINING.get(name, {}).items():
            rows.append(replace(row(name, label, FLAT), whole="window" not in text and "Stream" not in text))
    return Findings(tuple(rows), replace(RAN, schemes=SCHEMES))


# Looks


def test_no_two_lines_of_one_picture_look_alike():
    found = demonstration()
    styles = looks(found)
    for _, rows in found.groups():
        shown = [styles[each.name, each.variant] for each in rows]
        assert len(shown) in (4, 6, 13) or len(rows) == 5
        assert len({(look.classes.split()[0], look.marker) for look in shown}) == len(shown), "by hue and marker"


def test_names_beside_a_picture_are_short_and_told_apart():
    kerple, rope = '[Kerple(heads, "power")] * (layers - 1) + ', "[Rope(dim) + window(8), Rope(dim) + window(16), "
    names = [
        "RoPE", f"{kerple}[Nope() + LogN(trained)]", f"{kerple}[Nope()]", "a row of twenty-four let.",
        f"{rope}Nope() + LogN(trained)]", f"{rope}Nope()]", "Rope(dim) + Pivot(Rerope(16), 64, 0.25)", "x" * 24,
    ]  # fmt: skip
    found = told_apart(names, 24)
    assert list(found) == names
    assert max(map(len, found.values())) == 24
    assert len(set(found.values())) == len(names)
    assert found["RoPE"] == "RoPE"
    assert found["x" * 24] == "x" * 24
    assert found["Rope(dim) + Pivot(Rerope(16), 64, 0.25)"] == "Rope(dim) + Pivot(Rerop…"
    # Where several begin alike, it is told how they end.
    assert told_apart(names[1:3], 24) == {names[1]: "…Nope() + LogN(trained)]", names[2]: "…Nope()]"}


def test_what_was_trained_is_solid_and_in_a_hue_that_no_other_scheme_has():
    styles = looks(demonstration())
    trained = [styles[name, ""].classes.split() for name in SCHEMES]
    assert len({hue for hue, _ in trained}) == len(SCHEMES)
    assert {dash for _, dash in trained} == {"d0"}


def test_what_is_done_without_training_is_a_broken_line_and_what_forgets_is_grey():
    found = demonstration()
    styles = looks(found)
    for each in (each for each in found.rows if each.variant):
        hue, dash = styles[each.name, each.variant].classes.split()
        assert dash != "d0"
        assert (hue == "cx") == (not each.whole), each.label
        assert hue != styles[each.name, ""].classes.split()[0], "not the hue of its checkpoint"


def test_at_most_two_of_twelve_rows_share_a_hue_and_then_neither_dash_nor_marker():
    found = demonstration()
    styles = [looks(found)["rope", label] for label in WITHOUT_TRAINING["rope"]]
    alike = [(a, b) for a, b in itertools.combinations(styles, 2) if a.classes == b.classes]
    assert all(a.marker != b.marker for a, b in alike)


# Bars


def bars(text: str) -> list[tuple[float, float]]:
    """Where each bar of a page begins and ends."""
    drawn = re.findall(r'<path class="bars" d="([^"]*)"', text)
    return [(float(low), float(high)) for each in drawn for low, high in re.findall(r"M\S+ (\S+?)V([\d.]+)", each)]


def wide(of: Row, half: float) -> Row:
    scores = {name: {at: replace(each, half=half) for at, each in found.items()} for name, found in of.scores.items()}
    return replace(of, scores=scores)


def test_no_bar_is_cut_off_at_the_frame():
    """Bars of one width in bits are as high at the edges of a picture as inside it."""
    bits = ((1.5, 1.6, 1.7, 1.8), (1.5, 1.4, 1.3, 1.2))
    rows = tuple(wide(row(name, "", each), 0.4) for name, each in zip(("rope", "alibi"), bits, strict=True))
    found = bars(page(Findings(rows, RAN)))
    assert len(found) == 16, "eight by windows, eight by ends"
    heights = [low - high for low, high in found]
    assert max(heights) - min(heights) < 0.25
    assert all(TOP - 0.1 <= high < low <= BOTTOM + 0.1 for low, high in found)


def test_a_bar_that_ends_below_zero_saved_or_above_all_others_is_whole_too():
    few = replace(
        row("rope", "", FLAT), scores={"recall": {at: Measure(s, 2.0, 1, 9) for at, s in ((64, 3.0), (96, 0.1))}}
    )
    found = bars(page(Findings((few,), RAN)))
    assert len(found) == 2
    assert math.isclose(found[0][0] - found[0][1], found[1][0] - found[1][1], abs_tol=0.25)


# Less the window


def test_the_second_picture_has_differences_to_the_window_with_the_interval_of_the_difference():
    found = anchors()
    trained, changed = panels(found)
    assert (trained.title, changed.title) == (
        "As trained, less RoPE in a window",
        "RoPE, changed without training, less the window",
    )
    assert [curve.name for curve in trained.curves] == ["RoPE", "ALiBi"]
    assert "window" not in [curve.name for curve in changed.curves], "it is the line at zero"
    assert changed.level == (0.0, "the window")
    bar = found.of("rope", "window")
    for panel in (trained, changed):
        for curve in panel.curves:
            of = found.rows[curve.row]
            for point in curve.points:
                one, other = of.at("windows", int(point.x)), None if bar is None else bar.at("windows", int(point.x))
                assert one is not None
                assert other is not None
                expected = paired(one, other)
                assert expected is not None
                assert (point.y, point.half) == (expected.mean, expected.half)


def test_lines_that_lie_on_one_another_by_their_bits_come_apart_less_the_window():
    """A hundredth of a bit is a fraction of a pixel beside a row that fails, and is seen here."""
    found = anchors()
    curves = {curve.name: curve for curve in panels(found)[1].curves}
    axis = panels(found)[1].y
    assert axis.at(0.0) - axis.at(0.0104) > 3
    best = curves["ReRoPE, log-n"].points[-1]
    assert best.y < -0.009
    assert best.half is not None
    assert best.half < 0.003


def test_the_second_picture_comes_second_and_is_left_out_where_there_is_no_window():
    text = page(anchors())
    assert re.findall(r'class="view" id="view-(\w+)"', text) == ["windows", "less", "ends", "recall"]
    assert "view-less" not in page(Findings((row("rope", "", FLAT),), RAN))


# On a phone


def test_the_columns_that_matter_come_first():
    head = re.search(r'<table class="reach"><thead>(.*?)</thead>', page(anchors()), re.S)
    assert head is not None
    titles = [re.sub("<.*?>", " ", each).strip() for each in re.findall(r"<th[^>]*>(.*?)</th>", head[1])]
    assert titles[:5] == ["scheme", "reach", "against window", "bits saved at 3,072", "bits per byte at length"]
    assert titles[5:] == ["random", "512", "1,024", "2,048", "4,096"]
    lines = page(anchors()).split('class="reach"')[1].split("</tr>")
    line = next(each for each in lines if "ReRoPE, log-n" in each)
    cells = [re.sub("<.*?>", " ", each).split()[0] for each in re.findall(r"<td[^>]*>(.*?)</td>", line, re.S)]
    assert cells == ["≥", "−0.010", "3.200", "1.546", "1.499", "1.489", "1.474"]
