"""The rules of the house that a reader can check with a search: names, sizes and exports."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import milepost as mp
from tests.cases import exported_methods

SOURCE = Path(mp.__file__).parent
METHODS = sorted(path for path in (SOURCE / "methods").glob("*.py") if path.stem != "__init__")
BACKENDS = sorted((SOURCE / "backends").rglob("*.py"))
ORDINARY = {
    "complex_order", "cope", "fire", "hierarchical", "interpolate", "learned", "multiplied", "nope", "partial", "pose",
    "randomized", "recurrent", "sandwich", "scale", "stream",
}  # fmt: skip
"""File names that are also English words, or nearly, and so tell nothing in a line of prose."""


def methods_named_in(text: str) -> list[str]:
    """The methods that a text names, by class or by file."""
    telling = [path.stem for path in METHODS if path.stem not in ORDINARY]
    words = [*exported_methods(), *telling, "milepost.methods"]
    return [word for word in words if re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text)]


def test_no_backend_names_a_method():
    assert BACKENDS, "no backend was found to look at"
    named = {path.name: methods_named_in(path.read_text(encoding="utf-8")) for path in BACKENDS}
    assert {name: words for name, words in named.items() if words} == {}


def test_a_backend_that_named_a_method_would_be_caught():
    assert methods_named_in("if isinstance(part, Alibi):") == ["Alibi"]
    assert "rope" in methods_named_in("from milepost.methods.rope import over_heads")
    assert methods_named_in("def _rope_kernel(q, k):") == ["rope"]
    assert methods_named_in("def forward_t5_bias(): ...") == ["t5_bias"]
    assert methods_named_in("import milepost.methods") == ["milepost.methods"]


def test_words_that_only_look_like_a_method_are_let_pass():
    assert methods_named_in("scale = functools.partial(europe, properly, Scaled, Ropes)") == []


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_longer_than_three_hundred_lines():
    files = [path for path in SOURCE.rglob("*.py") if "triton" not in path.relative_to(SOURCE).parts]
    assert len(files) > 40, "the sources were not found"
    assert {str(path.relative_to(SOURCE)): lines_of(path) for path in files if lines_of(path) > 300} == {}


ATTACHES = ("import milepost.configs  #", "import milepost.pieces  #")
"""What stands above a class and gives it a method: `Scheme.of`, `scheme.flex`."""


def export_lines(text: str) -> list[str]:
    """The lines that import something into the package, but for those that only attach."""
    lines = [line for line in text.splitlines() if re.match(r"(from|import)\b", line)]
    return [line for line in lines if not line.startswith(ATTACHES)]


def unlike_an_export(text: str) -> list[str]:
    """Lines that do not export one name, as itself, from within the package."""
    return [line for line in export_lines(text) if not re.fullmatch(r"from milepost[\w.]* import (\w+) as \1", line)]


def test_exports_are_one_a_line():
    text = (SOURCE / "__init__.py").read_text(encoding="utf-8")
    assert unlike_an_export(text) == []
    # Nothing else happens there, so that no import can hide in a bracket or a function.
    statements = [type(each).__name__ for each in ast.parse(text).body]
    assert statements.count("ImportFrom") == len(export_lines(text))
    assert statements.count("Import") == len(ATTACHES)
    assert set(statements) == {"Expr", "Import", "ImportFrom", "Assign"}


def test_two_exports_on_a_line_would_be_caught():
    for line in (
        "from milepost.seams.visible import causal, window",
        "from milepost.seams.visible import causal",
        "from milepost.seams.visible import causal as seen",
        "import numpy",
    ):
        assert unlike_an_export(line) == [line]


def test_exports_are_sorted_and_none_comes_twice():
    lines = export_lines((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    assert lines == sorted(lines)
    names = [line.split()[-1] for line in lines]
    assert len(names) == len(set(names))


def test_an_exported_name_means_what_was_exported():
    # A module of the package with the name of an export would take its place.
    for line in export_lines((SOURCE / "__init__.py").read_text(encoding="utf-8")):
        name = line.split()[-1]
        assert callable(getattr(mp, name)) or not inspect.ismodule(getattr(mp, name)), (
            f"mp.{name} is a module, not what __init__.py exports"
        )


def test_the_exported_methods_are_the_files_of_the_methods_folder():
    by_file = {each.__module__.rsplit(".", 1)[1]: name for name, each in exported_methods().items()}
    assert sorted(by_file) == [path.stem for path in METHODS]
    for stem, name in by_file.items():
        assert stem.replace("_", "") == name.lower(), f"methods/{stem}.py holds {name}"


def test_one_method_one_file():
    for path in METHODS:
        classes = [
            each.name for each in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(each, ast.ClassDef)
        ]
        public = [name for name in classes if not name.startswith("_")]
        assert len(public) == 1, f"methods/{path.name} holds {public}"
        assert public[0] in exported_methods()


def test_the_methods_are_a_package_and_a_list():
    import milepost.methods.rope

    assert milepost.methods.rope.Rope is mp.Rope
    assert [entry.name for entry in mp.methods()] == sorted(exported_methods())
