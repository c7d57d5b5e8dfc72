"""Packages whose names are imported when they are first used: a stub next to `__init__.py` lists them.

Type checkers and editors read the same stub, so that no name is listed twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from milepost.refusal import need


class Face(ModuleType):
    """A package, in which an exported name wins over a module of the same name: `attend`, `methods`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        needed = self._needs.get(name, self._needs.get("*"))
        if needed is not None:
            need(name, *needed)
        found = getattr(import_module(self._modules[name]), name)
        self._prepare(found)
        super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        # Python binds every module that it imports to the package.
        if not (name in self._modules and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*self.__all__, *(["__version__"] if "__version__" in vars(self) else [])]


def lazy(
    package: str,
    needs: Mapping[str, tuple[str, Sequence[str]]] | None = None,
    prepare: Callable[[Any], object] = lambda found: None,
) -> None:
    """Let a package import the names of its stub when they are first used; each is `from MODULE import NAME as NAME`.

    needs: the extra and the libraries that a name cannot be imported without, "*" for every other. prepare is called
    with what was imported.
    """
    module = sys.modules[package]
    with open(f"{module.__file__}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub]
    modules = {words[-1]: words[1] for words in lines if words[:1] == ["from"] and words[2:3] == ["import"]}
    vars(module).update(_modules=modules, _needs=needs or {}, _prepare=prepare, __all__=sorted(modules))
    module.__class__ = Face
