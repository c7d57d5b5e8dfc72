"""The files around the package agree: version, changelog, citation, and the versions that the workflows try."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import milepost as mp

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml")


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    latest = re.search(r"^## (\S+) \((.+)\)$", read("CHANGELOG.md"), re.MULTILINE)
    cited = yaml.safe_load(read("CITATION.cff"))
    assert latest is not None
    assert latest[1] == cited["version"] == mp.__version__
    assert latest[2] == str(cited["date-released"])


def test_the_matrix_begins_at_what_the_package_asks_for():
    matrix = yaml.safe_load(read(".github/workflows/checks.yml"))["jobs"]["matrix"]["strategy"]["matrix"]
    package = read("pyproject.toml")
    oldest = re.search(r'requires-python = ">=([\d.]+)"', package)
    torch = re.search(r'"torch>=([\d.]+),<3"', package)
    assert oldest is not None
    assert torch is not None
    pinned = re.search(r"^torch==(\d+\.\d+)", read("constraints.txt"), re.MULTILINE)
    assert pinned is not None
    assert matrix["torch"] == [f"torch=={torch[1]}.*", f"torch=={pinned[1]}.*", "torch"]
    listed = re.findall(r"Python :: (3\.\d+)", package)
    assert matrix["python"] == listed
    assert listed[0] == oldest[1]


def test_every_script_that_a_workflow_or_a_hook_names_is_there():
    for path in (".github/workflows/checks.yml", ".github/workflows/release.yml", ".pre-commit-config.yaml"):
        for named in re.findall(r"(?:\.ci|tests)/[\w./]+", read(path)):
            assert (ROOT / named).exists(), f"{path}: {named}"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is new in Python 3.11")
def test_what_the_source_archive_holds_is_there():
    import tomllib

    package = tomllib.loads(read("pyproject.toml"))
    for named in package["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / named).exists(), named
