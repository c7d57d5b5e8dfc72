"""`import milepost` loads nothing, and its names load torch alone."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PROBE = """
import json, sys
import torch
told = lambda: (torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(),
                torch.random.get_rng_state().tolist())
torch.manual_seed(7)
before, defaults = set(sys.modules), told()
import {package}
print(json.dumps([sorted(set(sys.modules) - before), told() == defaults]))
"""


@cache
def imported(package: str, *folders: Path) -> tuple[list[str], bool]:
    """The modules that importing a package adds to those of torch, and whether it leaves torch's defaults alone.

    In a fresh interpreter, where warnings are errors.
    """
    paths = "".join(f"import sys; sys.path.insert(0, {str(folder)!r})\n" for folder in folders)
    code = paths + PROBE.format(package=package)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(package: str, *folders: Path) -> list[str]:
    """The modules that importing a package adds to those of torch."""
    return imported(package, *folders)[0]


def foreign(modules: list[str], own: str) -> list[str]:
    """Modules that belong neither to the package, nor to torch, nor to the standard library."""
    known = {own, "torch", *sys.stdlib_module_names}
    return [module for module in modules if module.split(".")[0] not in known]


EVERYTHING = "milepost; from milepost import *"


@pytest.mark.slow
def test_the_names_of_milepost_load_nothing_but_torch():
    modules = loaded_by(EVERYTHING)
    assert "milepost.methods.rope" in modules, "the probe did not see the package itself"
    assert foreign(modules, own="milepost") == []


def test_importing_milepost_loads_what_imports_its_names_and_not_torch():
    code = "import sys, milepost; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "milepost" in loaded
    assert [each for each in loaded if each.startswith(("milepost.", "torch"))] == [
        "milepost.exports",
        "milepost.refusal",
    ]


def test_a_submodule_can_be_imported_first():
    code = "import milepost.attend, milepost.methods.rope as rope, milepost as mp; mp.attend, mp.methods(); rope.Rope"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.slow
def test_an_import_of_something_else_would_be_caught(tmp_path: Path):
    (tmp_path / "thirdparty").mkdir()
    (tmp_path / "thirdparty" / "__init__.py").write_text("from thirdparty import inner\n")
    (tmp_path / "thirdparty" / "inner.py").write_text("")
    (tmp_path / "careless").mkdir()
    (tmp_path / "careless" / "__init__.py").write_text(
        "import json\nimport torch.nn\nimport thirdparty\ntorch.manual_seed(8)\n"
    )
    modules, alone = imported("careless", tmp_path)
    assert foreign(modules, own="careless") == ["thirdparty", "thirdparty.inner"]
    assert not alone


@pytest.mark.slow
def test_importing_milepost_leaves_the_defaults_of_torch_alone():
    _, alone = imported(EVERYTHING)
    assert alone
