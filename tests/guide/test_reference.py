"""Every public name has a page, every method a picture or the reason why not, and rows that are there."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("latex2mathml", reason="pages need latex2mathml: pip install 'milepost[docs]'")

from guide.builder import reference
from guide.builder.tables import tables

import milepost
import milepost.dropin
import milepost.explore
import milepost.hf
import milepost.lab.exported
from milepost.catalogue.names.chinese import LINES

SHEETS = {sheet.name: sheet for sheet in reference.all_sheets()}
METHODS = [name for name, sheet in SHEETS.items() if reference.is_method(sheet)]
BESIDE = reference.beside()


def test_every_public_name_has_a_page():
    public = set(milepost.__all__)
    for package in ("hf", "explore"):
        public |= {f"{package}.{name}" for name in getattr(milepost, package).__all__}
    public |= {f"dropin.{name}" for name in vars(milepost.dropin) if not name.startswith("_") and _is_here(name)}
    public |= {f"lab.exported.{name}" for name in ("export", "load", "checkpoint_of")}
    assert set(SHEETS) == public


def _is_here(name: str) -> bool:
    each = getattr(milepost.dropin, name)
    return getattr(each, "__module__", "").startswith("milepost.dropin.")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_written(language: str, monkeypatch: pytest.MonkeyPatch):
    drawn = reference.Shown(svg='<svg width="1" height="1"></svg>', says="says")
    monkeypatch.setattr(reference, "drawn", lambda name: drawn if BESIDE.get(name, reference.Beside()).code else None)
    pages = {name: text for name, text, _ in reference.pages(language)}
    assert set(pages) == {f"{name}.md" for name in SHEETS}
    for name, text in pages.items():
        assert text.startswith(f"# {name.removesuffix('.md')}\n"), name
    index = reference.index(language)
    assert set(re.findall(r"\]\(([\w.]+)\.md\)", index)) == set(SHEETS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_line_of_chinese_a_use_and_a_picture_or_the_reason_why_not(name: str):
    assert name in LINES
    beside = BESIDE[name]
    assert beside.code or len(beside.picture) > 20, "say in guide/reference.md why there is no picture"
    if name[0].isupper():
        assert beside.use, "fill 何时用 in guide/reference.md"


@pytest.mark.parametrize("name", sorted(BESIDE))
def test_its_rows_are_there(name: str):
    beside = BESIDE[name]
    assert name in SHEETS
    for each in beside.cost:
        assert reference.cost_of(each), f"docs/speed.md has no row {each!r}"
    for each in beside.reach:
        assert reference.reach_of(each), f"docs/results.md has no row {each!r}"
    if beside.exports:
        assert reference.exports_of(beside.exports) is not None, f"README has no row {beside.exports!r}"


def test_a_row_that_is_not_there_would_be_caught():
    assert not reference.cost_of("RoPF")
    assert not reference.reach_of("RoPF")
    assert reference.exports_of("RoPF") is None
    assert reference.exports_of("") is None


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", [name for name in sorted(BESIDE) if BESIDE[name].code])
def test_its_picture_is_drawn(name: str):
    shown = reference.drawn(name)
    assert shown is not None
    assert shown.svg.lstrip().startswith("<svg")
    assert shown.says


def test_a_table_is_read_with_its_section_and_its_lead():
    table = next(each for each in tables("docs/results.md") if each.section == "As trained")
    row = table.row("KERPLE, power")
    assert row is not None
    assert row[1] == "3"
    assert table.row("KERPLE") is None
