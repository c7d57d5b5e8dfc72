"""Names from outside are shown in a report, wherever they come from, and never obeyed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import milepost
from milepost.lab.report import Findings, Measure, page
from milepost.lab.report.layout import laid_out
from milepost.lab.report.look import MARKERS
from milepost.lab.statistics.findings import Equation, Term, Tried
from tests.lab.test_table import RAN, row
from tests.pages import HOSTILE, Seen, shown_as_text

SCORES = {"sliding": {512: Measure(1.5, 0.1, 1, 9)}, "task:copy": {512: Measure(0.5, 0.1, 1, 9)}}


def called(word: str) -> Findings:
    """Findings in which whatever can be named is called so."""
    equations = (Equation(word, word, (Term(word, word, word),)),)
    rows = [
        replace(
            each, text=word, equations=equations, costs={"read": 9.0}, scores=each.scores | SCORES,
            losses=[(n, 2.0) for n in range(9)], positions={4096: [(0, 2.0), (9, 2.0)]},
        )
        for variant in ("", "window", word)
        for each in (row(word, variant, (1.5, 2.0, 3.0, 4.0), recall=1.0),)
    ]  # fmt: skip
    named = {word: word}
    ran = replace(
        RAN, schemes=(word, word), shape=named, recipe=named, judging=named, corpus=word, digest=word, again=word,
        versions=named | {"milepost": word}, made=word, done=1,
    )  # fmt: skip
    tried = tuple(Tried(word, of, word, {512: 1.0}, chosen) for of in ("", word) for chosen in (True, False))
    return replace(Findings(tuple(rows), ran), tried=tried)


@pytest.mark.parametrize("word", HOSTILE)
def test_a_name_is_text_wherever_it_stands(word: str):
    text = page(called(word))
    assert shown_as_text(text, page(called("x" * len(word))), word) > 100
    sections = {"curves", "table", "pairs", "positions", "tasks", "training", "costs", "chosen", "equations", "ran"}
    assert all(f'<section id="{name}">' in text for name in sections), "a section was not looked at"


def test_a_name_that_was_obeyed_would_be_caught():
    with pytest.raises(AssertionError):
        shown_as_text("<p><b>a</b></p>", "<p>xxxxxxxx</p>", "<b>a</b>")
    with pytest.raises(AssertionError):
        shown_as_text("<p>49</p>", "<p>xxxxxxxxx</p>", "{{ 7*7 }}")
    with pytest.raises(AssertionError):
        shown_as_text('<p title=""onmouseover="x">', f'<p title="{"x" * 15}">', '"onmouseover="x')


def test_no_template_lets_anything_pass_unescaped():
    templates = [
        each for kind in ("html", "svg") for each in Path(milepost.__file__).parent.rglob(f"templates/*.{kind}")
    ]
    pages = {"report.html", "figure.html", "tables.html", "compare.html", "measure.html", "markers.html"}
    pages |= {"extend.html", "page.html", "listed.html"}
    assert pages == {each.name for each in templates if each.suffix == ".html"}
    assert {"pictures.svg", "map.svg", "clocks.svg"} < {each.name for each in templates}
    for path in templates:
        text = path.read_text(encoding="utf-8")
        assert not [word for word in ("| safe", "|safe", "autoescape") if word in text], path.name


def test_a_value_that_a_template_lacks_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError, match="'title' is undefined"):
        laid_out("report.html", "milepost.lab.report", command="compare")


def test_every_marker_that_a_row_may_have_is_drawn():
    text = page(called("rope"))
    assert Seen(text).tags["g", "id"] == MARKERS
    assert all(f'<g id="m{n}">' in text for n in range(MARKERS))
