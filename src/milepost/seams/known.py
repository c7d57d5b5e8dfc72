"""The classes that a saved scheme or an expression may name: read off the package's exports, so nothing lags behind.

Other packages add theirs by an entry point, in their pyproject.toml:

    [project.entry-points."milepost.methods"]
    WaveBias = "waves.bias:WaveBias"
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from milepost.seams import visible

GROUP = "milepost.methods"
"""The entry points of other packages' methods."""


def exports() -> dict[str, Any]:
    """Return everything that the package exports, by name."""
    package = sys.modules["milepost"]
    return {name: getattr(package, name) for name in package.__all__}


def is_method(each: object) -> bool:
    """Whether an export is the class of a method, which `milepost.methods` has."""
    return inspect.isclass(each) and each.__module__.startswith("milepost.methods.")


def is_node(each: object) -> bool:
    """Whether something is the class of a node of a visible expression."""
    return inspect.isclass(each) and issubclass(each, visible.Visible) and dataclasses.is_dataclass(each)


def classes() -> dict[str, type]:
    """Every public method and every node of a visible expression, by name."""
    found = {name: each for name, each in exports().items() if is_method(each)}
    return found | {name: each for name, each in vars(visible).items() if is_node(each)}


def class_called(name: str) -> type | None:
    """The one of them that has that name, without a look at the others."""
    node = vars(visible).get(name)
    if is_node(node):
        return node
    package = sys.modules["milepost"]
    export = getattr(package, name) if name in package.__all__ else None
    return export if is_method(export) else None


def installed(name: str) -> type | None:
    """The method of that name in an installed package; its module is loaded only when it is asked for."""
    for entry in metadata.entry_points(group=GROUP, name=name):
        found = entry.load()
        if not inspect.isclass(found):
            raise TypeError(
                f"the entry point {GROUP}: {name} = {entry.value!r} is no class; name the class of a method"
            )
        return found
    return None


def version_of(name: str) -> str | None:
    """The package, and its version, that has the method of that name."""
    for entry in metadata.entry_points(group=GROUP, name=name):
        return entry.value if entry.dist is None else f"{entry.value} {entry.dist.name} {entry.dist.version}"
    return None


class Known(Mapping[str, type]):
    """Classes by name: those given, milepost's own, and those of installed packages, which are looked for last."""

    def __init__(self, methods: Iterable[type] = ()) -> None:
        self.here = classes() | {method.__name__: method for method in methods}

    def __getitem__(self, name: str) -> type:
        found = self.here.get(name) or installed(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.here)

    def __len__(self) -> int:
        return len(self.here)
