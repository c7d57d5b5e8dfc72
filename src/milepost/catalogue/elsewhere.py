"""What packages on higher floors export, read from their sources: no library of theirs is needed for a page."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from milepost.catalogue.groups import FUNCTIONS
from milepost.catalogue.register import LINKS, first_sentence
from milepost.catalogue.sheet import Sheet

ROOT = Path(__file__).parents[1]
PACKAGES = ("hf", "explore", "dropin", "lab.exported")
"""Those whose names are public, besides milepost's own (docs/stability.md)."""

SOURCE = r"\(([^()]*, \d{4}[^()]*)\)\.?$"
"""Authors and year, at the end of a line."""
Defined = ast.FunctionDef | ast.ClassDef


@cache
def elsewhere() -> tuple[Sheet, ...]:
    """Return a sheet for every name that they export, called by its package: hf.extend."""
    return tuple(_sheet(package, name, module) for package in PACKAGES for name, module in _exports(package))


def _exports(package: str) -> Iterator[tuple[str, str]]:
    """Yield each exported name with the module that defines it."""
    path = _path(f"milepost.{package}")
    if path.name != "__init__.py":
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [each.name for each in tree.body if isinstance(each, Defined) and not each.name.startswith("_")]
        yield from ((name, f"milepost.{package}") for name in names)
        return
    stub = path.with_suffix(".pyi")
    text = (stub if stub.exists() else path).read_text(encoding="utf-8")
    found = re.findall(r"^from (milepost[\w.]*) import (\w+) as \2$", text, re.M)
    yield from sorted((name, module) for module, name in found)


def _path(module: str) -> Path:
    inside = Path(*module.split(".")[1:])
    return ROOT / inside / "__init__.py" if (ROOT / inside).is_dir() else (ROOT / inside).with_suffix(".py")


def _sheet(package: str, name: str, module: str) -> Sheet:
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    node = next(each for each in tree.body if isinstance(each, Defined) and each.name == name)
    about = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
    does = first_sentence(about)
    head = (ast.get_docstring(tree) or "").split("\n")[0]
    paper = next((found[1] for line in (does, head) if (found := re.search(SOURCE, line))), "")
    matches = ((re.search(pattern, paper), address) for pattern, address in LINKS)
    arguments = tuple(_arguments(node))
    needed = [each.partition(":")[0] for each in arguments if "=" not in each and each != "*"]
    return Sheet(
        name=f"{package}.{name}",
        group=FUNCTIONS.title,
        title="",
        does=re.sub(r"\s*" + SOURCE, ".", does),
        verbs=(),
        facets=(),
        formula="",
        paper=paper,
        link=next((address.format(found[1]) for found, address in matches if found), ""),
        relative=None,
        learns=False,
        learned={},
        backends=(),
        refusals={},
        call=f"{name}({', '.join(needed)})",
        arguments=arguments,
        about=about,
        composes=(),
        example=f"from milepost.{package} import {name}",
    )


def _arguments(node: Defined) -> Iterator[str]:
    """Yield the arguments of a function, or of what makes an object of a class, with types and defaults."""
    made = node
    if isinstance(node, ast.ClassDef):
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if not inits:
            yield from _fields(node)
            return
        made = inits[0]
    assert isinstance(made, ast.FunctionDef)
    given = made.args
    placed = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(placed) - len(given.defaults)) + list(given.defaults)
    for argument, default in list(zip(placed, defaults, strict=True))[isinstance(node, ast.ClassDef) :]:
        yield _written(argument, default)
    if given.vararg:
        yield f"*{ast.unparse(given.vararg)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _written(argument, default)
    if given.kwarg:
        yield f"**{ast.unparse(given.kwarg)}"


def _written(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {_quoted(default)}" if default is not None else "")


def _quoted(value: ast.expr) -> str:
    """Return a default as it is written, with the quotes of the house."""
    return (
        f'"{value.value}"' if isinstance(value, ast.Constant) and isinstance(value.value, str) else ast.unparse(value)
    )


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a dataclass."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_"):
            yield f"{each.target.id}: {ast.unparse(each.annotation)}" + (
                f" = {_quoted(each.value)}" if each.value is not None else ""
            )
