"""What `milepost compare --help` says: every option in words of its own, with what holds if it is left out."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from functools import cache

import pytest
import typer

from milepost.cli import app
from milepost.lab.command.compare import DEFAULT, compare
from milepost.lab.command.settings import SETTINGS
from milepost.lab.schemes.naming import TRAINED
from milepost.lab.training.recipe import SIZES

COMMAND = typer.main.get_command(app()).commands["compare"]  # pyright: ignore
HELP = {each.name: each.help for each in COMMAND.params if each.name != "help"}


SHOW = """
import contextlib, io, json, os, sys
from milepost.cli import app
found = {}
for columns in map(int, sys.argv[1:]):
    os.environ["COLUMNS"], said = str(columns), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        app()(["compare", "--help"], prog_name="milepost")
    found[columns] = said.getvalue()
print(json.dumps(found))
"""


@cache
def _shown() -> dict[str, str]:
    """What terminals of some columns get, in a process of their own; typer's own runner always has 80."""
    command = [sys.executable, "-c", SHOW, "80", "120"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def shown(columns: int) -> str:
    return _shown()[str(columns)]


def test_every_option_has_a_help_of_its_own():
    assert set(HELP) == set(inspect.signature(compare).parameters)
    assert all(HELP.values())
    assert len(set(HELP.values())) == len(HELP)
    assert not [text for text in HELP.values() if re.search(r"\bdial\b|[Oo]verrid", text)]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_keeps_to_the_width_and_uses_it(columns: int):
    lines = shown(columns).splitlines()
    assert columns - 12 < max(map(len, lines)) <= columns


@pytest.mark.parametrize("option", [each.name for each in COMMAND.params if each.default is None])
def test_an_option_that_is_nothing_by_default_says_what_holds_then(option: str):
    """Unless leaving it out is to do nothing."""
    (default,) = [each.show_default for each in COMMAND.params if each.name == option]
    nothing = {"dataset", "row", "methods", "tasks", "json", "csv", "markdown", "tensorboard", "wandb"}
    assert isinstance(default, str) is (option not in nothing)


@pytest.mark.slow
def test_the_defaults_of_a_size_are_those_of_the_size():
    for columns in (80, 120):
        lines = shown(columns).splitlines()
        begins = lines.index("  Settings for --set, and what each size has:")
        ends = lines.index("  Schemes by name, and what each stands for:")
        rows = {line.split()[0]: line.split()[1:5] for line in lines[begins + 3 : ends - 1]}
        assert lines[begins + 2].split() == list(SIZES)
        assert rows["steps"] == [str(size.recipe.steps) for size in SIZES.values()]
        assert rows["rate"] == [str(size.recipe.rate) for size in SIZES.values()]
        assert rows["width"] == [str(size.shape.width) for size in SIZES.values()]
        assert rows["judge"] == [str(size.judged) for size in SIZES.values()]
        assert f"[default: ({' '.join(DEFAULT)})]" in " ".join(" ".join(lines).split())


@pytest.mark.slow
def test_the_settings_stand_in_columns():
    """Names begin in one column and what they mean in another; no line begins elsewhere."""
    lines = shown(80).splitlines()
    ends = lines.index("  Schemes by name, and what each stands for:") - 1
    head, *rows = lines[lines.index("  Settings for --set, and what each size has:") + 2 : ends]
    meanings = len(head) + 2
    assert [row[:meanings].split()[0] for row in rows if row[:meanings].strip()] == list(SETTINGS)
    assert all(row[meanings - 2 : meanings] == "  " and row[meanings] != " " for row in rows)
    said = " ".join(row[meanings:] for row in rows)
    assert said == " ".join(each.meaning for each in SETTINGS.values())


@pytest.mark.slow
def test_every_name_stands_beside_its_expression():
    lines = shown(80).splitlines()
    rows = lines[lines.index("  Schemes by name, and what each stands for:") + 2 :]
    column = len(rows[0]) - len(rows[0].split()[-1])
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row[:column].strip() or [*found][-1], []).append(row[column:])
    assert {name: " ".join(texts) for name, texts in found.items()} == TRAINED
