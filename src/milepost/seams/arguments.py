"""A method as its constructor's arguments: how it is spelled, saved and built again.

One rule makes this work: every argument of a constructor is kept as an attribute of the same name.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn


def arguments(part: object) -> dict[str, Any]:
    """The constructor's arguments of a method, by name."""
    return {name: getattr(part, name) for name in inspect.signature(type(part)).parameters}


def spell(part: object) -> str:
    """The call that makes the method, defaults left out: `Rope(128, stretch=Ntk(8))`."""
    if torch.compiler.is_compiling():
        # Nobody reads it there, and the compiler cannot follow.
        return type(part).__name__
    told: list[str] = []
    leading = True
    for name, parameter in inspect.signature(type(part)).parameters.items():
        value = getattr(part, name)
        if parameter.default is not parameter.empty:
            leading = False
            if value is parameter.default or value == parameter.default:
                continue
        told.append(spell_value(value) if leading else f"{name}={spell_value(value)}")
    return f"{type(part).__name__}({', '.join(told)})"


def spell_value(value: object) -> str:
    """One argument as it would be written."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Tensor):
        return spell_value(tuple(value.shape))
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        shown = [spell_value(item) for item in items[:4]] + (["…"] if len(items) > 4 else [])
        return f"({', '.join(shown)}{',' if len(items) == 1 else ''})"
    return spell(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else repr(value)


class Learner(nn.Module):
    """A method that learns. It equals only itself, so that no parameter is ever deduplicated."""

    relative: bool = True

    def __repr__(self) -> str:
        return spell(self)


def to_plain(value: Any) -> Any:
    """A method, or one of its arguments, as what JSON can hold. A tensor is told by its shape alone."""
    if isinstance(value, Tensor):
        return list(value.shape)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in cast("list[Any]", value)]
    return {"is": type(value).__name__} | {name: to_plain(held) for name, held in arguments(value).items()}


def from_plain(plain: Any, known: Mapping[str, type]) -> Any:
    """The inverse of to_plain; `known` maps names to classes."""
    if isinstance(plain, (list, tuple)):
        return tuple(from_plain(item, known) for item in cast("list[Any]", plain))
    if not isinstance(plain, Mapping):
        return plain
    held = {str(name): value for name, value in cast("Mapping[Any, Any]", plain).items()}
    if "is" not in held:
        raise ValueError(
            f"a saved method is {{'is': 'Rope', 'dim': 64, …}}; 'is' is missing among the keys {sorted(held)}"
        )
    name = held.pop("is")
    if name not in known:
        raise ValueError(
            f"no method is called {name!r}{did_you_mean(str(name), known)}; pass your own with methods=[…]"
        )
    return known[name](**{argument: from_plain(value, known) for argument, value in held.items()})


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The names a user may have meant, as the tail of an error."""
    name = str(name)
    lower = {each.lower(): each for each in known}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), list(lower), n=3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
