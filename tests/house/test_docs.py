"""What the documents show is what happens: every block of Python in docs/ runs, and prints what stands beneath it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

HEAD = "# Every method\n\n`make docs` writes this page, from `milepost methods --markdown`.\n\n"
DOCS = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Each block of Python, with what is shown as its output."""
    return re.findall(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", text, re.DOTALL)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_the_code_runs_and_prints_what_is_shown(path: Path):
    names: dict[str, object] = {}
    for code, shown in blocks_of(path.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if shown:
            assert printed.getvalue() == shown


def test_a_block_that_printed_something_else_would_be_caught():
    assert blocks_of("```python\nprint(1)\n```\n```\n2\n```\n") == [("print(1)\n", "2\n")]


def test_the_list_of_methods_is_what_the_command_prints():
    from milepost.catalogue import markdown
    from milepost.catalogue.sheet import sheets

    written = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    assert written == HEAD + markdown.table(sheets(None)) + "\n", "make docs writes it anew"
