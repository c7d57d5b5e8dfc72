"""Who knows whom: the command line stands on the catalogue and the lab, and no file reaches itself through others.

Every import counts: at the top, inside a function, and for types alone.
"""

from __future__ import annotations

import ast
from pathlib import Path

import milepost as mp

SOURCE = Path(mp.__file__).parent
ROOMS = ("milepost.lab", "milepost.catalogue", "milepost.cli", "milepost.refusal")


def modules_of(root: Path, package: str) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        words = (package, *path.relative_to(root).with_suffix("").parts)
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports, wherever it does so."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{each.name}" for each in node.names}
            # What is imported from a package is one of its modules, or else something in its `__init__`.
            found |= inside if inside <= set(known) else inside | {node.module}
    return found & set(known)


def circles(modules: dict[str, Path]) -> set[frozenset[str]]:
    """Modules that import each other, directly or through others."""
    imports = {name: imports_of(path, modules) - {name} for name, path in modules.items()}
    reached = {name: set(each) for name, each in imports.items()}
    for middle in modules:
        for name in modules:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in modules
        if name in reached[name]
    }


def test_no_file_of_the_lab_the_catalogue_or_the_command_line_reaches_itself():
    modules = {name: path for name, path in modules_of(SOURCE, "milepost").items() if name.startswith(ROOMS)}
    assert len(modules) > 40, "the sources were not found"
    assert circles(modules) == set()


def test_nothing_stands_on_the_command_line():
    modules = modules_of(SOURCE, "milepost")
    on_it = {name for name, path in modules.items() if "milepost.cli" in imports_of(path, modules)}
    assert on_it == {"milepost.__main__"}


def test_a_circle_would_be_caught(tmp_path: Path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "first.py").write_text("def late():\n    from own.second import thing\n")
    (tmp_path / "second.py").write_text("from own import third\nthing = 1\n")
    (tmp_path / "third.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from own.first import late\n"
    )
    (tmp_path / "fourth.py").write_text("from own import first\n")
    assert circles(modules_of(tmp_path, "own")) == {frozenset({"own.first", "own.second", "own.third"})}
