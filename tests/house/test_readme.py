"""What the README shows is what happens: its code runs, and prints what stands beneath it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import milepost as mp

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_code_runs_and_prints_what_is_shown():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", README, re.DOTALL)
    assert len(blocks) == 5
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == shown


def test_code_stands_within_the_first_25_lines():
    assert "mp.attend(" in "\n".join(README.splitlines()[:25])


def test_every_method_has_its_row():
    rows = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert sorted(rows) == sorted(entry.name for entry in mp.methods())
