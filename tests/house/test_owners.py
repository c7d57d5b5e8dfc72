"""One owner for each idea, counted by reading the source; `tests/bench/test_one_timer.py` counts timers."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

import milepost as mp

SOURCE = Path(mp.__file__).parent
TREES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}
"""Every file of the package."""
PROGRAMS = ("lab/", "hf/", "explore/", "bench/", "catalogue/", "theory/")
"""Rooms that remember nothing of a call of `attend`: they stand above it."""
CORE = {name: tree for name, tree in TREES.items() if not name.startswith(PROGRAMS)}
Trees = Mapping[str, ast.Module]
T = TypeVar("T", bound=ast.AST)
Owner = tuple[str, str]
"""A file, and what was found in it."""


def classes(trees: Trees, ending: str) -> list[Owner]:
    """Return the classes whose names end so."""
    return [(file, node.name) for file, node in nodes(trees, ast.ClassDef) if node.name.endswith(ending)]


def calls(trees: Trees, name: str) -> list[Owner]:
    """Return the calls of a function or class, by the last word of what is called."""
    return [(file, name) for file, node in nodes(trees, ast.Call) if last_word(node.func) == name]


def readers(trees: Trees, name: str) -> list[Owner]:
    """Return the files that read an attribute."""
    return sorted({(file, name) for file, node in nodes(trees, ast.Attribute) if node.attr == name})


def caches(trees: Trees) -> set[Owner]:
    """Return functions whose results are kept, and tables of a file or class that start empty."""
    found: set[Owner] = set()
    for file, node in nodes(trees, ast.FunctionDef):
        marks = [last_word(mark.func if isinstance(mark, ast.Call) else mark) for mark in node.decorator_list]
        if {"cache", "lru_cache"} & set(marks):
            found.add((file, node.name))
    for file, tree in trees.items():
        bodies = [tree.body, *(each.body for each in walked(tree) if isinstance(each, ast.ClassDef))]
        for node in (each for body in bodies for each in body):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and starts_empty(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                found.add((file, ast.unparse(target)))
    return found


def starts_empty(value: ast.expr) -> bool:
    """True for {}, dict(), defaultdict(…), WeakKeyDictionary() and their kin."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    word = last_word(value.func)
    return bool(re.search(r"(?i)dict(ionary)?$", word)) and (not value.args or word == "defaultdict")


def writers(trees: Trees, key: str) -> list[Owner]:
    """Return the files that make a dict with a key, or set one: neither what reads it nor text that shows it."""
    found: set[Owner] = set()
    for file, tree in trees.items():
        for node in walked(tree):
            made = isinstance(node, ast.Dict) and any(isinstance(k, ast.Constant) and k.value == key for k in node.keys)
            put = (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.slice, ast.Constant)
                and node.slice.value == key
            )
            put = put or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == key)
            named = isinstance(node, ast.Call) and any(each.arg == key for each in node.keywords)
            if made or put or named:
                found.add((file, key))
    return sorted(found)


@functools.cache
def walked(tree: ast.Module) -> list[ast.AST]:
    """Return every node of a file."""
    return list(ast.walk(tree))


def nodes(trees: Trees, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Return every node of a kind, with its file."""
    for file, tree in trees.items():
        for node in walked(tree):
            if isinstance(node, kind):
                yield file, node


def last_word(name: ast.expr) -> str:
    """Return `c` of `a.b.c`."""
    return name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""


REMEMBERS = {
    ("memory/fixed.py", "_declared"): "what objects that are declared fixed were, so that a change is refused",
    ("memory/fixed.py", "_fields"): "the fields of a class",
    ("backends/block_masks.py", "_fused_mask"): "a compiled function",
    ("backends/flex.py", "_fused"): "a compiled function",
    ("backends/has_triton.py", "no_triton"): "this Triton",
    ("backends/rotary/by_table.py", "_ready"): "a device",
    ("backends/triton/backend.py", "_devices"): "a device",
    ("backends/triton/decoding/decode.py", "_starts_early"): "a device",
    ("backends/triton/runtime/configs.py", "has_little"): "a device",
    ("backends/triton/runtime/configs.py", "_OVERRIDES"): "what a benchmark set",
    ("backends/triton/runtime/launcher.py", "runs_as_known"): "this Triton",
    ("backends/triton/runtime/launcher.py", "looks_suffice"): "this Triton",
    ("backends/triton/runtime/played.py", "_bodies"): "our operators, by name",
    ("backends/chunked.py", "CANNOT"): "a constant",
    ("backends/reference.py", "CANNOT"): "a constant",
    ("call/documents.py", "COUNTING"): "kernels by device, which a backend puts there",
}
"""What else in the core is kept between calls, and of what: never of a call, a tensor or a part."""
READ_STATE = ("is_inference_mode_enabled", "is_autocast_enabled", "get_float32_matmul_precision", "math_sdp_enabled")
"""The state of torch that a fingerprint has and nothing else reads."""


def test_there_is_one_fingerprint_of_a_call():
    assert classes(TREES, "Fingerprint") == [("memory/surroundings.py", "Fingerprint")]
    for name in READ_STATE:
        assert {file for file, _ in readers(CORE, name)} <= {"memory/surroundings.py", "memory/table.py"}


def test_there_is_one_table_of_calls():
    assert classes(TREES, "Memory") == [("memory/table.py", "Memory")]
    assert calls(TREES, "Memory") == [("memory/table.py", "Memory")]
    assert caches(CORE) == set(REMEMBERS)


def test_there_is_one_class_for_a_kind_of_call():
    assert classes(TREES, "Kind") == [("memory/kind.py", "Kind")]
    assert classes(TREES, "Tape") == [("memory/tape.py", "Tape")]
    assert classes(TREES, "Surroundings") == [("memory/surroundings.py", "Surroundings")]


def test_there_is_one_writer_of_rope_parameters():
    """`configs/stored.py` marks what was written, so that stock transformers refuses it, and takes the mark off."""
    written = [file for file, _ in writers(TREES, "rope_parameters")]
    assert written == ["configs/stored.py", "hf/config/rope_parameters.py"]
    assert [file for file, _ in writers(TREES, "rope_type")] == written


RUNS_TEXT = {
    ("catalogue/sheet.py", "eval"): "our own examples, as they are printed, to see their weights",
    ("lab/schemes/own.py", "exec"): "a file of methods that the user named",
}


def test_no_code_is_generated():
    assert sorted({each for name in ("exec", "eval") for each in bare_calls(TREES, name)}) == sorted(RUNS_TEXT)
    for name in ("FunctionType", "CodeType"):
        assert calls(TREES, name) == []


def bare_calls(trees: Trees, name: str) -> list[Owner]:
    """Return calls of a builtin; `module.eval()` is something else."""
    return [
        (file, name)
        for file, node in nodes(trees, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == name
    ]


def test_no_closure_is_opened():
    for name in ("__closure__", "cell_contents", "__code__"):
        assert readers(TREES, name) == []


PLANTED: list[tuple[Callable[[Trees], object], str]] = [
    (lambda trees: classes(trees, "Fingerprint"), "class ShortFingerprint: ..."),
    (lambda trees: readers(trees, "is_autocast_enabled"), "torch.is_autocast_enabled('cpu')"),
    (lambda trees: calls(trees, "Memory"), "MINE = table.Memory()"),
    (caches, "@functools.lru_cache(maxsize=4)\ndef waves(part): ..."),
    (caches, "@cache\ndef waves(part): ..."),
    (caches, "_known: dict[str, int] = {}"),
    (caches, "class A:\n    known = weakref.WeakKeyDictionary()"),
    (lambda trees: classes(trees, "Kind"), "class StepKind: ..."),
    (lambda trees: writers(trees, "rope_parameters"), "sizes = {'rope_parameters': {}}"),
    (lambda trees: writers(trees, "rope_parameters"), "config.rope_parameters = {}"),
    (lambda trees: writers(trees, "rope_type"), "settings['rope_type'] = 'yarn'"),
    (lambda trees: writers(trees, "rope_type"), "settings = dict(rope_type='yarn')"),
    (lambda trees: bare_calls(trees, "exec"), "exec(text)"),
    (lambda trees: readers(trees, "cell_contents"), "f.__closure__[0].cell_contents = 3"),
]


@pytest.mark.parametrize(("count", "text"), PLANTED, ids=[text for _, text in PLANTED])
def test_a_second_owner_would_be_caught(count: Callable[[Trees], object], text: str):
    assert count({"planted.py": ast.parse(text)})


def test_what_only_looks_like_a_second_owner_is_not_counted():
    for text in ("model.eval()", "config['rope_type'] == 'yarn'", "x = settings.get('rope_parameters')"):
        trees = {"harmless.py": ast.parse(text)}
        assert not bare_calls(trees, "eval")
        assert not writers(trees, "rope_type")
        assert not writers(trees, "rope_parameters")


PRIVATE = {
    "torch._C.DisableTorchFunctionSubclass": "torch's notes on extending torch name it",
    "torch._assert_async": "a check that a graph keeps; asked for inside compiled graphs alone",
    "torch._dynamo.config": "torch's notes on compilation name it",
    "torch.utils._python_dispatch.TorchDispatchMode": "torch's notes on extending torch name it",
}
"""Private names outside of `internals` that torch documents by name."""


def private_names(path: Path) -> set[str]:
    """Return the private names of torch that a file uses; dunders and torch.ops are left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            found.add(ast.unparse(node))
    private = {each for each in found if re.search(r"\._(?!_)", each) and not each.startswith("torch.ops.")}
    # Of `torch._C.x` the whole name alone.
    return {each for each in private if not any(other.startswith(f"{each}.") for other in private)}


def test_private_names_of_torch_have_one_owner():
    found = {
        name: path.relative_to(SOURCE).as_posix()
        for each in CORE
        for path in ([SOURCE / each] if each.endswith(".py") else sorted((SOURCE / each).rglob("*.py")))
        if path.name != "internals.py"
        for name in private_names(path)
        if not any(name == known or name.startswith(f"{known}.") for known in PRIVATE)
    }
    assert found == {}
