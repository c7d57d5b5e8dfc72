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
RUN_LAWS = """
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
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src/milepost/methods/root_bias.py").write_text(method)
    init = folder / "src/milepost/__init__.py"
    init.write_text(init.read_text().replace("from milepost.methods.rope", f"{export}from milepost.methods.rope", 1))
    (folder / "tests/methods/test_root_bias.py").write_text(test)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder / "src"), str(folder)))}


def test_a_method_costs_one_file_one_line_and_one_test(tmp_path: Path):
    around = copy_with(tmp_path, *worked_example())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/methods/test_root_bias.py"]
    tested = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout or tested.stdout.strip().startswith(".")
    laws = subprocess.run([sys.executable, "-c", RUN_LAWS], env=around, capture_output=True, text=True, check=False)
    assert laws.returncode == 0, laws.stderr
    assert "score − strength · √|p − r|" in laws.stdout
    assert "('flex', 'diagonals', 'chunked', 'reference')" in laws.stdout


def test_the_example_can_fail(tmp_path: Path):
    method, export, test = worked_example()
    around = copy_with(tmp_path, method.replace(".sqrt()", ""), export, test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/methods/test_root_bias.py"]
    tested = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, check=False)
    assert tested.returncode == 1, tested.stdout
