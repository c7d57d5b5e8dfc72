"""A library that is not installed is named before anything is trained, with the extra that brings it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from milepost.cli import app
from milepost.refusal import EXTRAS, need
from tests.lab.test_compare import refused, text, tiny  # noqa: F401

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
def test_what_compare_lacks_is_named_before_anything_is_trained(text: Path, tmp_path: Path):  # noqa: F811
    out = tmp_path / "out"
    words = ["compare", "rope", "--text", str(text), "--out", str(out), *tiny()]
    found = without(["typer", "rich", "safetensors"], *words)
    assert found.returncode != 0
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
    assert "compare needs typer and rich and safetensors, which are not installed" in found.stderr.splitlines()[-1]
    assert not out.exists()


@pytest.mark.parametrize(
    ("lacking", "options", "message"),
    [
        (
            "safetensors",
            [],
            (
                "the lab needs safetensors, which is not installed"
                ": pip install 'milepost[lab]', or in a checkout pip install '.[lab]'"
            ),
        ),
        (
            "jinja2",
            [],
            (
                "the lab needs jinja2, which is not installed"
                ": pip install 'milepost[lab]', or in a checkout pip install '.[lab]'"
            ),
        ),
        (
            "ray",
            ["--engine", "ray"],
            (
                "--engine ray needs ray, which is not installed"
                ": pip install 'milepost[ray]', or in a checkout pip install '.[ray]'"
            ),
        ),
        (
            "wandb",
            ["--wandb", "logs"],
            (
                "--wandb needs wandb, which is not installed"
                ": pip install 'milepost[wandb]', or in a checkout pip install '.[wandb]'"
            ),
        ),
        ("tensorboard", ["--tensorboard", "logs"], "--tensorboard needs tensorboard, which is not installed: pip"),
        (
            "torchdiffeq",
            ["floater"],
            (
                "Floater needs torchdiffeq, which is not installed"
                ": pip install 'milepost[floater]', or in a checkout pip install '.[floater]'"
            ),
        ),
    ],
)
def test_a_library_that_an_option_lacks_is_named_too(
    lacking: str, options: list[str], message: str,
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
):  # fmt: skip
    for name in [each for each in sys.modules if each.split(".")[0] == lacking]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, lacking, None)
    assert message in refused(text, tmp_path / "out", "rope", *options)
    assert not list(tmp_path.glob("out/*"))


def test_a_dataset_is_not_asked_for_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    found = CliRunner().invoke(app(), ["compare", "rope", "--dataset", "books", "--out", str(tmp_path / "out")])
    message = (
        "milepost: compare: --dataset needs datasets, which is not installed"
        ": pip install 'milepost[datasets]', or in a checkout pip install '.[datasets]'"
    )
    assert (found.exit_code, found.stdout, " ".join(found.stderr.split())) == (2, "", message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["methods"],
            (
                "the command line needs numpy, which is not installed"
                ": pip install 'milepost[cli]', or in a checkout pip install '.[cli]'"
            ),
        ),
        (
            ["compare", "rope"],
            (
                "compare needs numpy, which is not installed"
                ": pip install 'milepost[lab]', or in a checkout pip install '.[lab]'"
            ),
        ),
    ],
)
def test_what_every_command_needs_is_named(words: list[str], said: str):
    found = without(["numpy"], *words)
    # torch itself warns that there is no numpy.
    assert (found.returncode, found.stdout, found.stderr.splitlines()[-1]) == (1, "", f"milepost: {said}")
    assert "Traceback" not in found.stderr


@pytest.mark.slow
def test_the_catalogue_needs_nothing_of_the_lab():
    lacking = ["safetensors", "scipy", "jinja2", "transformers", "ray", "tensorboard", "datasets", "torchdiffeq"]
    found = without(lacking, "methods", "Rope")
    assert (found.returncode, found.stderr) == (0, "")


def test_an_extra_brings_all_that_it_is_asked_for():
    lines = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for extra, modules in EXTRAS.items():
        (line,) = re.findall(rf"^{extra} = \[(.*)\]$", lines, re.MULTILINE)
        brought = {name.replace("-", "_") for name in re.findall(r'"([\w-]+)', line)}
        assert set(modules) <= brought, extra


def test_what_is_loaded_already_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    need("--engine ray", "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^--engine ray needs ray, which is not installed: pip install"):
        need("--engine ray", "ray")
