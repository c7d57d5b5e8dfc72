"""`make docs-pages`, a part of `make docs`, writes its pages, and says nothing but what make itself says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import milepost as mp

ROOT = Path(__file__).parents[2]
PROGRAMS = {"python": "", "milepost": "-m milepost"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="this is no checkout")
def test_all_pages_are_written_and_nothing_is_printed(tmp_path: Path):
    # A virtual environment that is ready already: the interpreter that runs this test, and the package that it tests.
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("trained", "rows"):
        (tmp_path / "docs" / "results" / name).mkdir(parents=True)
        shutil.copy(ROOT / "docs" / "results" / name / "lab.sqlite", tmp_path / "docs" / "results" / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, words in PROGRAMS.items():
        program = tmp_path / ".venv" / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    (tmp_path / ".venv" / ".ready").touch()
    around = os.environ | {"PYTHONPATH": str(Path(mp.__file__).parents[1])}
    found = subprocess.run(
        ["make", "docs-pages"], cwd=tmp_path, env=around, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    for line in found.stdout.splitlines():
        assert line.startswith(("printf ", ".venv/bin/", "make")), f"this is not make's own: {line}"
    for name in ("methods.md", "names.md", "results/trained/tables.md", "results/rows/tables.md"):
        written = (tmp_path / "docs" / name).read_text(encoding="utf-8")
        # Where a scheme is spelled out otherwise than when it was trained, its row is missing here: train it anew.
        assert written == (ROOT / "docs" / name).read_text(encoding="utf-8"), f"{name}: make docs writes it anew"
