"""The tables of a report as Markdown: every figure of theirs, and no more meaning than the text has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from milepost.cli import app
from milepost.lab.report import to_markdown
from milepost.lab.report.tables import by_length, differences, tried
from milepost.lab.statistics.table import table
from tests.lab.test_compare import done, refused, text  # noqa: F401
from tests.lab.test_report_hostile import called
from tests.lab.test_table import anchors
from tests.pages import HOSTILE

BAR = re.compile(r"(?<!\\)\|")
"""A bar that Markdown would take for the edge of a cell."""


def read(page: str) -> list[list[list[str]]]:
    """The tables of a page: their lines, cell by cell."""
    found: list[list[list[str]]] = []
    for block in page.split("\n\n"):
        if block.startswith("|"):
            found.append([[each.strip() for each in BAR.split(line)[1:-1]] for line in block.splitlines()])
    return found


def test_every_figure_of_the_report_is_there_bold_where_it_is_strong():
    findings = anchors()
    first, *_ = read(to_markdown(findings))
    grid = by_length(table(findings))
    assert grid is not None
    assert len(first) == 2 + len(grid.lines)
    for written, line in zip(first[2:], grid.lines, strict=True):
        assert written[1] == line.reach[0]
        for cell, each in zip(written[2:], line.cells, strict=True):
            mean = f"**{each.text}**" if each.strong and each.text else each.text
            assert cell == " ".join(filter(None, (mean, each.half)))


@pytest.mark.parametrize("word", [*HOSTILE, "a|b", "**a**", "[a](b)", "`a`", "a_b_c", "a\n\n| b |"])
def test_a_name_is_text_and_every_table_keeps_its_columns(word: str):
    findings = called(word)
    page = to_markdown(findings)
    tables = read(page)
    plain = read(to_markdown(called("x")))
    assert [(len(each), len(each[0])) for each in tables] == [(len(each), len(each[0])) for each in plain]
    for each in tables:
        assert len({len(line) for line in each}) == 1
    assert "<" not in page.split("\n\n", 1)[1]
    assert differences(findings, table(findings)) is not None
    assert tried(findings) is not None


@pytest.mark.parametrize("option", ["--markdown", "--json", "--csv"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_trained(
    option: str,
    text: Path,  # noqa: F811
    tmp_path: Path,
):
    said = refused(text, tmp_path / "out", "rope", option, str(text / "tables"))
    assert f"{option} {text / 'tables'}: its folder cannot be made" in said
    assert not (tmp_path / "out").exists()


def test_the_command_writes_it(text: Path, tmp_path: Path):  # noqa: F811
    path = tmp_path / "new" / "tables.md"
    done(text, tmp_path, "nope", "--markdown", str(path), "--no-free")
    first = path.read_text()
    assert "| NoPE |" in first
    path.unlink()
    found = CliRunner().invoke(app(), ["report", str(tmp_path), "--markdown", str(path)])
    assert found.exit_code == 0
    assert read(path.read_text()) == read(first)
