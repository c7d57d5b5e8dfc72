"""A library that is not installed is named before anything is trained, with the extra that brings it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.refusal import EXTRAS, need
from tests.lab.test_compare import LENGTHS, TINY, refused, text  # noqa: F401

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {lacking!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
sys.argv[0] = "milepost"
from milepost.cli import main
main()
"""


def without(lacking: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter where some libraries cannot be found."""
    code = WITHOUT.format(lacking=set(lacking))
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacking", "options", "message"),
    [
        (["safetensors"], [], "compare needs safetensors, which is not installed: pip install 'milepost[lab]'"),
        (["numpy"], [], "compare needs numpy, which is not installed: pip install 'milepost[lab]'"),
        (["typer", "rich", "safetensors"], [], "compare needs typer and rich and safetensors, which are not installed"),
        (["ray"], ["--engine", "ray"], "--engine ray needs ray, which is not installed: pip install 'milepost[ray]'"),
        (["tensorboard"], ["--tensorboard", "logs"], "--tensorboard needs tensorboard, which is not installed: pip"),
    ],
)
def test_what_compare_lacks_is_named_before_anything_is_trained(
    lacking: list[str], options: list[str], message: str, text: Path, tmp_path: Path  # noqa: F811
):  # fmt: skip
    out = tmp_path / "out"
    found = without(lacking, "compare", "rope", "--text", str(text), "--out", str(out), *TINY, *LENGTHS, *options)
    assert found.returncode != 0
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
    # Without numpy torch has something to say of its own, before.
    assert message in found.stderr.splitlines()[-1]
    assert not out.exists()


def test_a_command_that_is_not_the_first_word_is_checked_too(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
):  # fmt: skip
    monkeypatch.setitem(sys.modules, "safetensors", None)
    message = "milepost: compare: the lab needs safetensors, which is not installed: pip install 'milepost[lab]'"
    assert refused(text, tmp_path / "out", "rope") == message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_dataset_is_not_asked_for_without_its_library(tmp_path: Path):
    found = without(["datasets"], "compare", "rope", "--dataset", "books", "--out", str(tmp_path / "out"))
    message = "milepost: compare: --dataset needs datasets, which is not installed: pip install 'milepost[datasets]'\n"
    assert (found.returncode, found.stdout, found.stderr) == (2, "", message)


@pytest.mark.slow
def test_the_catalogue_needs_nothing_of_the_lab():
    lacking = ["safetensors", "ray", "tensorboard", "datasets", "torchdiffeq"]
    found = without(lacking, "methods", "Rope")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.slow
def test_a_scheme_that_lacks_a_library_is_refused_too(text: Path, tmp_path: Path):  # noqa: F811
    words = ["compare", "floater", "--text", str(text), "--out", str(tmp_path), *TINY, *LENGTHS]
    found = without(["torchdiffeq"], *words)
    assert found.returncode == 2
    assert "Floater needs torchdiffeq, which is not installed: pip install 'milepost[floater]'" in found.stderr
    assert not list(tmp_path.glob("*.safetensors"))


def test_an_extra_brings_all_that_it_is_asked_for():
    lines = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for extra, modules in EXTRAS.items():
        (line,) = re.findall(rf"^{extra} = \[(.*)\]$", lines, re.MULTILINE)
        assert set(modules) <= set(re.findall(r'"([\w-]+)', line)), extra


def test_what_is_loaded_already_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    need("--engine ray", "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^--engine ray needs ray, which is not installed: pip install"):
        need("--engine ray", "ray")
