"""The rules of the house that a reader can check with a search: names, sizes and exports."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import milepost as mp
from tests.cases import exported_methods

SOURCE = Path(mp.__file__).parent
METHODS = sorted(path for path in (SOURCE / "methods").glob("*.py") if path.stem != "__init__")
BACKENDS = sorted((SOURCE / "backends").rglob("*.py"))


def imports_a_method(text: str) -> list[str]:
    """The modules of methods that a file imports; a backend may say a method's name, and never know the method."""
    return re.findall(r"milepost\.methods[\w.]*", text)


def test_no_backend_imports_a_method():
    assert BACKENDS, "no backend was found to look at"
    found = {path.name: imports_a_method(path.read_text(encoding="utf-8")) for path in BACKENDS}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_backend_that_imported_a_method_would_be_caught():
    assert imports_a_method("from milepost.methods.rope import over_heads") == ["milepost.methods.rope"]
    assert imports_a_method("import milepost.methods") == ["milepost.methods"]
    assert imports_a_method("def dual_chunk(): ...  # as DualChunk cuts a text") == []


def names_a_method(text: str) -> set[str]:
    """Methods that code goes by: classes, wherever they come from, and names among strings that are compared."""
    methods, found = set(exported_methods()), set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name | ast.Attribute):
            found |= {node.id if isinstance(node, ast.Name) else node.attr} & methods
        elif isinstance(node, ast.Compare):
            found |= {str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)} & methods
    return found


def test_no_backend_branches_on_a_method():
    found = {path.name: names_a_method(path.read_text(encoding="utf-8")) for path in BACKENDS}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_backend_that_branched_on_a_method_would_be_caught():
    assert names_a_method("if isinstance(part, mp.Alibi): ...") == {"Alibi"}
    assert names_a_method("if type(part).__name__ == 'Rope': ...") == {"Rope"}
    assert names_a_method("kind in ('Rerope', 'DualChunk')") == {"Rerope", "DualChunk"}
    assert names_a_method("'As DualChunk cuts a text.'") == set()


@pytest.mark.parametrize(
    ("what", "owner"),
    [
        (r"torch\.library\.define\(", "triton/runtime/played.py"),
        (r"kernel\[grid\]\(\*args", "triton/runtime/launch.py"),
        (r"native_specialize_impl\(", "triton/runtime/launcher.py"),
        (r"_scaled_dot_product_cudnn_attention\(", "triton/runtime/vendor.py"),
        (r"\bscaled_dot_product_attention\(", "fused.py"),
    ],
)
def test_what_is_delicate_has_one_owner(what: str, owner: str):
    """Operators are defined, kernels launched, and private functions of torch and Triton called, each in one file."""
    files = {path.relative_to(SOURCE / "backends").as_posix(): path.read_text(encoding="utf-8") for path in BACKENDS}
    code = {name: re.sub(r'""".*?"""', "", text, flags=re.S) for name, text in files.items()}
    assert [name for name, text in code.items() if re.search(what, text)] == [owner]


STUB = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")


def export_lines(text: str) -> list[str]:
    """The lines that import something."""
    return [line for line in text.splitlines() if re.match(r"\s*(from|import)\b", line)]


def unlike_an_export(text: str) -> list[str]:
    """Lines that do not export one name, as itself, from within the package."""
    return [line for line in export_lines(text) if not re.fullmatch(r"from milepost[\w.]* import (\w+) as \1", line)]


def test_exports_are_one_a_line():
    assert unlike_an_export(STUB) == []
    # Nothing else is there, so that no name can hide in a bracket or under a condition.
    statements = [type(each).__name__ for each in ast.parse(STUB).body]
    assert statements.count("ImportFrom") == len(export_lines(STUB))
    assert set(statements) == {"Expr", "ImportFrom", "AnnAssign"}


def test_two_exports_on_a_line_would_be_caught():
    for line in (
        "from milepost.seams.visible import causal, window",
        "from milepost.seams.visible import causal",
        "from milepost.seams.visible import causal as seen",
        "import numpy",
        "    from milepost.seams.visible import causal as causal",
    ):
        assert unlike_an_export(line) == [line]


def test_exports_are_sorted_and_none_comes_twice():
    lines = export_lines(STUB)
    assert lines == sorted(lines)
    names = [line.split()[-1] for line in lines]
    assert len(names) == len(set(names))


def test_the_names_of_the_package_are_its_exports():
    names = [line.split()[-1] for line in export_lines(STUB)]
    assert mp.__all__ == sorted(names)
    assert dir(mp) == sorted([*names, "__version__"])


def test_an_exported_name_means_what_was_exported():
    # A module of the package with the name of an export would take its place: `attend` is a file, too.
    assert importlib.import_module("milepost.attend") is not mp.attend
    for line in export_lines(STUB):
        _, module, _, name, _, _ = line.split()
        assert getattr(mp, name) is getattr(importlib.import_module(module), name), name
    # Of the names only the one that is also a function is a module: `mp.methods()`.
    assert [name for name in mp.__all__ if inspect.ismodule(getattr(mp, name))] == ["methods"]


def test_a_name_that_is_not_exported_is_refused():
    with pytest.raises(AttributeError, match="module 'milepost' has no attribute 'Roppe'"):
        _ = mp.Roppe
    with pytest.raises(ImportError, match="cannot import name 'Roppe' from 'milepost'"):
        from milepost import Roppe  # noqa: F401


OPTIONAL_BY_PLACE = {"Cache": 1, "Llama4Scale": 1, "padding_leak": 1, "Bound": 2, "Regime": 2, "Relation": 1}
"""How many arguments with defaults come by place: the first of all; a bound has two ends, a regime two sides."""


def optional_by_place(each: Callable[..., object]) -> list[str]:
    """The arguments with a default that may be given by place."""
    found = inspect.signature(each).parameters.values()
    return [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty]


def test_what_has_a_default_is_given_by_name():
    for name in mp.__all__:
        each = getattr(mp, name)
        if name in ("CannotRun", "Learner", "methods") or not callable(each):
            continue
        assert len(optional_by_place(each)) == OPTIONAL_BY_PLACE.get(name, 0), name
    for each in (mp.Scheme.of, mp.Schedule.of, mp.Rope.of, mp.Scheme.from_dict, mp.Scheme.bias, mp.Scheme.flex):
        assert optional_by_place(each) == []


def test_no_argument_is_called_dim():
    for name in mp.__all__:
        each = getattr(mp, name)
        if name not in ("CannotRun", "Learner") and callable(each):
            assert "dim" not in inspect.signature(each).parameters, name


def public_classes(path: Path) -> list[str]:
    """The public classes of a file, by name."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [each.name for each in body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")]


def test_the_exported_methods_are_the_classes_of_the_methods_folder():
    assert sorted(name for path in METHODS for name in public_classes(path)) == sorted(exported_methods())


def test_a_file_has_one_method_or_a_family_whose_members_name_their_papers():
    for path in METHODS:
        family = public_classes(path)
        assert family, f"methods/{path.name} has no method"
        without = [name for name in family if "paper" not in vars(exported_methods()[name])]
        assert without == ([] if len(family) > 1 else family), f"methods/{path.name}"


def test_the_methods_are_a_package_and_a_list():
    import milepost.methods.rope

    assert milepost.methods.rope.Rope is mp.Rope
    assert [entry.name for entry in mp.methods()] == sorted(exported_methods())
