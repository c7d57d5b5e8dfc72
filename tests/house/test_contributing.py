"""The worked example of CONTRIBUTING: one source file, one export line, one test, done as written in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = """
import sys
import pytest
ended = pytest.main(["-q", "-p", "no:cacheprovider", "tests/methods/test_root_bias.py"])
if ended or "laws" not in sys.argv:
    sys.exit(ended)
import milepost as mp
from tests.laws import LAWS
make = lambda: mp.Scheme(mp.RootBias(), mp.causal)
for name, law in LAWS.items():
    if name != "traces_whole":
        law(make)
print([entry for entry in mp.methods() if entry.name == "RootBias"])
"""


def worked_example() -> tuple[str, str, str]:
    """The file, the export line and the test, in the order CONTRIBUTING shows them."""
    method, export, test = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    return method, export, test


def copy_with(folder: Path, method: str, export: str, test: str) -> dict[str, str]:
    """Add the method to a copy of the package; returns the environment that finds the copy first."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "src/milepost/methods/root_bias.py").write_text(method)
    init = folder / "src/milepost/__init__.pyi"
    init.write_text(
        init.read_text().replace("from milepost.methods.rope import", f"{export}from milepost.methods.rope import", 1)
    )
    (folder / "tests/methods/test_root_bias.py").write_text(test)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder / "src"), str(folder)))}


def ran(folder: Path, around: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """The test, and where `laws` is among the words, the laws after it."""
    command = [sys.executable, "-c", RUN, *words]
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=False)


def test_a_method_costs_one_file_one_line_and_one_test(tmp_path: Path):
    found = ran(tmp_path, copy_with(tmp_path, *worked_example()), "laws")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed" in found.stdout or found.stdout.strip().startswith(".")
    assert "score − strength · √|p − r|" in found.stdout
    assert "('flex', 'diagonals', 'chunked', 'reference')" in found.stdout


def test_the_example_can_fail(tmp_path: Path):
    method, export, test = worked_example()
    found = ran(tmp_path, copy_with(tmp_path, method.replace(".sqrt()", ""), export, test))
    assert found.returncode == 1, found.stdout
