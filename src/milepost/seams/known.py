"""The classes that a saved scheme or an expression may name: read off the package's exports, so nothing lags behind."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from milepost.seams import visible


def exports() -> dict[str, Any]:
    """Everything that `import milepost` offers, by name."""
    found = {name: each for name, each in vars(sys.modules["milepost"]).items() if not name.startswith("_")}
    # Of the modules only the one that is also a function: `mp.methods()`.
    return {name: each for name, each in found.items() if callable(each) or not inspect.ismodule(each)}


def is_method(each: object) -> bool:
    """Whether an export is the class of a method: one file of `milepost.methods` each."""
    return inspect.isclass(each) and each.__module__.startswith("milepost.methods.")


def classes() -> dict[str, type]:
    """Every public method and every node of a visible expression, by name."""
    found = {name: each for name, each in exports().items() if is_method(each)}
    nodes = {
        name: each
        for name, each in vars(visible).items()
        if inspect.isclass(each) and issubclass(each, visible.Visible) and each is not visible.Visible
    }
    return found | nodes
