"""Who knows whom: each room stands on rooms below it, and no file reaches itself through others.

Every import counts: at the top, inside a function, and for types alone.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import milepost as mp

SOURCE = Path(mp.__file__).parent
FLOORS = (
    ("refusal",),
    ("exports", "memory"),
    ("numerics",),
    ("seams",),
    ("call", "methods"),
    ("backends", "configs"),
    ("scheme", "schedule", "cache", "choice", "attend", "scores"),
    ("variants", "theory", "parallel"),
    ("dropin",),
    ("catalogue",),
    # `milepost` itself: what a user imports, and so do the rooms of programs above it.
    ("milepost",),
    *(("lab.text", "lab.training"), ("lab.schemes",), ("lab.tasks",), ("lab.statistics",), ("lab.judging",)),
    *(("lab.cells",), ("lab.engines",), ("lab.sweep",), ("lab.report", "lab.exported"), ("lab.command",), ("lab",)),
    ("serving",),
    ("hf",),
    ("explore.pictures",),
    ("explore",),
    ("bench",),
    ("cli",),
    ("__main__",),
)
"""The rooms, from the lowest floor to the highest; those on one floor know nothing of each other."""
FACE = {"scheme", "schedule", "cache", "choice", "attend", "scores"}
"""Files that are one room together."""
BY_NAME = {"milepost.seams.known", "milepost.catalogue.sheet"}
"""Files that look the exports up in the running package, when they are called: whoever saved a scheme names classes."""
BACKENDS = {f"milepost.backends.{name}" for name in ("chunked", "diagonals", "flex", "reference", "sdpa")} | {
    "milepost.backends.triton.backend"
}

Arrows = dict[str, set[str]]


def modules_of(root: Path, package: str) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        words = (package, *path.relative_to(root).with_suffix("").parts)
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def arrows_of(root: Path, package: str = "milepost") -> Arrows:
    """For every module of a package, the modules of the package that it imports."""
    modules = modules_of(root, package)
    return {
        name: imports_of(f"{name}.__init__" if path.stem == "__init__" else name, read(path), set(modules)) - {name}
        for name, path in modules.items()
    }


def read(path: Path) -> ast.Module:
    """The file as Python sees it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of the package that a file of that name imports, wherever it does so."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            # `from . import x` starts from the folder of the file.
            folder = name.split(".")[: -node.level] if node.level else []
            start = ".".join([*folder, *([node.module] if node.module else [])])
            # What is imported from a package is one of its modules, or else something in its `__init__`.
            inside = (f"{start}.{each.name}" for each in node.names)
            found |= {each if each in known else start for each in inside}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return found & known


def circles(arrows: Arrows) -> set[frozenset[str]]:
    """Modules that import each other, directly or through others."""
    reached = {name: set(each) for name, each in arrows.items()}
    for middle in arrows:
        for name in arrows:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in arrows
        if name in reached[name]
    }


def room_of(module: str) -> str:
    """The folder that a module is in, or the file where it is in none; the lab has rooms of its own."""
    words = module.split(".")
    if words[1:2] == ["lab"]:
        return ".".join(words[1:3])
    return words[1] if len(words) > 1 else words[0]


def not_downwards(arrows: Arrows) -> set[tuple[str, str]]:
    """Imports from one room of another that does not stand below it."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    found: set[tuple[str, str]] = set()
    for module, others in arrows.items():
        for other in others:
            one, two = room_of(module), room_of(other)
            if one != two and not {one, two} <= FACE and floor[one] <= floor[two]:
                found.add((module, other))
    return found


def between_backends(arrows: Arrows) -> set[tuple[str, str]]:
    """Imports of one backend by another, or by a helper that backends share; the list of all backends has them all."""

    def backend_of(module: str) -> str:
        # The kernels under triton/ are functions over tensors that anybody may launch; its backend is one file.
        return module if module == "milepost.backends.triton.backend" else ".".join(module.split(".")[:3])

    return {
        (module, other)
        for module, others in arrows.items()
        for other in others
        if module.startswith("milepost.backends.")
        and backend_of(other) in BACKENDS
        and backend_of(module) != backend_of(other)
    }


def looking_up_the_package(root: Path) -> set[str]:
    """Modules that ask Python for `milepost` by name, past all imports."""
    return {
        name
        for name, path in modules_of(root, "milepost").items()
        for node in ast.walk(read(path))
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value).endswith("modules")
        and isinstance(node.slice, ast.Constant)
        and str(node.slice.value).startswith("milepost")
    }


def test_every_room_has_its_floor():
    rooms = {room_of(module) for module in modules_of(SOURCE, "milepost")}
    assert len(rooms) > 15, "the sources were not found"
    assert rooms - {room for rooms in FLOORS for room in rooms} == set(), "say in FLOORS where the new room stands"


@pytest.fixture(scope="module")
def arrows() -> Arrows:
    """Those of milepost itself."""
    return arrows_of(SOURCE)


def test_no_file_reaches_itself_through_others(arrows: Arrows):
    assert circles(arrows) == set()


def test_no_room_knows_one_that_does_not_stand_below_it(arrows: Arrows):
    assert not_downwards(arrows) == set()


def test_backends_do_not_know_one_another(arrows: Arrows):
    assert {each for each in BACKENDS if each in arrows} == BACKENDS, "a backend was not found"
    assert between_backends(arrows) == set()


def test_only_two_files_look_the_package_up_by_name():
    assert looking_up_the_package(SOURCE) == BY_NAME


def test_nothing_stands_on_the_command_line(arrows: Arrows):
    on_it = {name for name, others in arrows.items() if "milepost.cli" in others}
    assert on_it == {"milepost.__main__"}


# That these tests can fail: small packages with one fault each.


def package(root: Path, **files: str) -> Path:
    """A package with these files; `a__b` is `a/b.py`."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    (root / "__init__.py").touch()
    return root


FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


def test_a_circle_through_a_function_and_through_types_would_be_caught(tmp_path: Path):
    package(
        tmp_path,
        first="def late():\n    from own.second import thing\n",
        second="from own import third\nthing = 1\n",
        third=f"{FOR_TYPES}from own.first import late\n",
        fourth="from own import first\n",
    )
    assert circles(arrows_of(tmp_path, "own")) == {frozenset({"own.first", "own.second", "own.third"})}


def test_an_arrow_upwards_would_be_caught_however_it_is_written(tmp_path: Path):
    up = {("milepost.seams.low", "milepost.hf.high")}
    for text in (
        f"{FOR_TYPES}from milepost.hf.high import thing\n",
        "def late():\n    from milepost.hf import high\n",
        "import milepost.hf.high as high\n",
        "from ..hf.high import thing\n",
        "import importlib\nimportlib.import_module('milepost.hf.high')\n",
    ):
        assert not_downwards(arrows_of(package(tmp_path, seams__low=text, hf__high="thing = 1\n"))) == up, text


def test_an_arrow_upwards_within_the_lab_would_be_caught(tmp_path: Path):
    (tmp_path / "lab").mkdir()
    package(tmp_path / "lab", text__low="from milepost.lab.command import high\n", command__high="")
    (tmp_path / "__init__.py").touch()
    assert not_downwards(arrows_of(tmp_path)) == {("milepost.lab.text.low", "milepost.lab.command.high")}


def test_arrows_along_a_floor_and_to_the_package_itself_would_be_caught(tmp_path: Path):
    package(tmp_path, methods__one="from milepost.call import two\n", call__two="def f():\n    import milepost as mp\n")
    assert not_downwards(arrows_of(tmp_path)) == {
        ("milepost.methods.one", "milepost.call.two"),
        ("milepost.call.two", "milepost"),
    }


def test_arrows_downwards_and_within_a_room_are_let_pass(tmp_path: Path):
    package(
        tmp_path,
        seams__low="",
        hf__one="from milepost.hf import two\nfrom milepost.seams.low import x\n",
        hf__two="",
        scheme="",
        attend="from milepost.scheme import Scheme\n",
    )
    assert not_downwards(arrows_of(tmp_path)) == set()
    assert circles(arrows_of(tmp_path)) == set()


def test_a_backend_that_knew_another_would_be_caught(tmp_path: Path):
    package(
        tmp_path,
        backends__views="def f():\n    from milepost.backends.flex import run\n",
        backends__flex="from milepost.backends import sdpa, views\n",
        backends__sdpa="",
    )
    assert between_backends(arrows_of(tmp_path)) == {
        ("milepost.backends.views", "milepost.backends.flex"),
        ("milepost.backends.flex", "milepost.backends.sdpa"),
    }


def test_asking_for_the_package_by_name_would_be_caught(tmp_path: Path):
    package(tmp_path, seams__sly="import sys\nlab = sys.modules['milepost.lab']\n")
    assert looking_up_the_package(tmp_path) == {"milepost.seams.sly"}
