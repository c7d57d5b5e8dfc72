"""A verb that was misspelt would be left out without a word; here it is found."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable
from types import FunctionType

import torch
from torch import nn

from milepost.seams.facets import FACETS
from milepost.seams.verbs import VERBS, OfRows, verbs_of

NO_VERBS = {"reset"}
"""Near a verb, but a word of its own."""


def demand_verbs(part: object) -> None:
    """Refuse a part with a verb that is misspelt, or with methods none of which is a verb."""
    called = type(part).__name__
    found = misspelt(part)
    if found is not None:
        raise TypeError(f"Scheme({called}(…)): {called} has `{found[0]}`; did you mean `{found[1]}`?")
    own = _own_methods(part)
    if own and hasattr(part, "relative") and not verbs_of(part):
        raise TypeError(
            f"Scheme({called}(…)): {called} has `{own[0]}`, and answers none of the verbs: {', '.join(VERBS)}"
        )
    # A graph that is traced cannot look at signatures.
    rows = None if torch.compiler.is_compiling() else getattr(part, "bend_rows", None)
    if rows is not None and not _takes(rows, "scores", "q", "x", **OfRows.__annotations__):
        raise TypeError(
            f"Scheme({called}(…)): bend_rows is given {', '.join(OfRows.__annotations__)} by name, after scores, q and "
            f"x; take those that it reads, and **tokens for the others"
        )


def misspelt(part: object) -> tuple[str, str] | None:
    """A public method whose name is nearly that of a verb, and the verb; None where every name is meant.

    Where the part answers no verb at all, nearly is near enough for a guess. Where it does, it is one letter more, less
    or different, in a method that could be called as the verb is: there a refusal must be sure.
    """
    answered = verbs_of(part)
    for name in _own_methods(part):
        if answered:
            near = [verb for verb in VERBS if verb not in answered and _one_letter_apart(name, verb)]
            method = getattr(type(part), name)
            near = [each for each in near if _takes(method, *inspect.signature(getattr(VERBS[each], each)).parameters)]
        else:
            near = difflib.get_close_matches(name, list(VERBS), n=1, cutoff=0.75)
        if near:
            return name, near[0]
    return None


def _own_methods(part: object) -> list[str]:
    """The public methods that its classes define, but for what every module has, what is an argument, and facets."""
    fields = {field.name for field in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else set[str]()
    known = {*fields, *FACETS, *VERBS, *NO_VERBS}
    classes = [each for each in type(part).__mro__ if not each.__module__.startswith(("torch.", "builtins"))]
    found = {name: each for owner in reversed(classes) for name, each in vars(owner).items()}
    return [
        name
        for name, each in found.items()
        if isinstance(each, (FunctionType, staticmethod, classmethod))
        and not name.startswith("_")
        and name not in known
        and (name == "forward" or not hasattr(nn.Module, name))
    ]


def _one_letter_apart(name: str, verb: str) -> bool:
    """Whether one letter more, less or different makes the one of the other."""
    short, long = sorted((name, verb), key=len)
    if len(long) - len(short) > 1 or name == verb:
        return False
    same = next((n for n, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    return short[same + (len(short) == len(long)) :] == long[same + 1 :]


def _takes(method: Callable[..., object], *given: object, **named: object) -> bool:
    """Return whether a method can be called so."""
    try:
        inspect.signature(method).bind(*given, **named)
    except TypeError:
        return False
    return True
