"""What methods there are: read off the package itself, so that the list cannot lag behind."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass

from torch import nn

from milepost import visible
from milepost.printing import formula_of
from milepost.seams import answers, verbs_of

STRETCH_VERBS = ("frequencies", "magnitude")


@dataclass(frozen=True)
class Entry:
    """One method: what it is called, what it does and who can run it."""

    name: str
    verbs: tuple[str, ...]
    formula: str
    paper: str
    relative: bool | None
    """None where it depends on what the method holds."""
    learned: bool
    backends: tuple[str, ...]


def classes() -> dict[str, type]:
    """Every public method and every node of a visible expression, by name."""
    found = {name: each for name, each in vars(sys.modules["milepost"]).items() if _is_method(each)}
    nodes = {
        name: each
        for name, each in vars(visible).items()
        if inspect.isclass(each) and issubclass(each, visible.Visible) and each is not visible.Visible
    }
    return found | nodes


def methods() -> list[Entry]:
    """Every method with its verbs, formula, paper, and the backends that can run it alone."""
    return [_entry(name, each) for name, each in sorted(classes().items()) if _is_method(each)]


def _is_method(each: object) -> bool:
    return inspect.isclass(each) and each.__module__.startswith("milepost.methods.")


def _entry(name: str, method: type) -> Entry:
    from milepost.backends import BACKENDS

    verbs = verbs_of(method) or tuple(verb for verb in STRETCH_VERBS if hasattr(method, verb))
    return Entry(
        name=name,
        verbs=verbs,
        formula=formula_of(method),
        paper=(inspect.getdoc(sys.modules[method.__module__]) or "").split("\n")[0],
        relative=None
        if isinstance(vars(method).get("relative"), property)
        else bool(getattr(method, "relative", False)),
        learned=issubclass(method, nn.Module),
        backends=tuple(
            each for each, backend in BACKENDS.items() if not any(answers(method, asked) for asked in backend.CANNOT)
        ),
    )
