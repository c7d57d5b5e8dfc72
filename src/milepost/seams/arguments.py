"""A method as its constructor's arguments: how it is spelled, saved and built again.

One rule makes this work: every argument of a constructor is kept as an attribute of the same name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.numerics.read_weights import ReadWeights
from milepost.refusal import did_you_mean as did_you_mean


def arguments(part: object) -> dict[str, Any]:
    """The constructor's arguments of a method, by name."""
    names = inspect.signature(type(part)).parameters
    for name in names:
        if not hasattr(part, name):
            called = type(part).__name__
            raise TypeError(
                f"{called} does not keep its argument {name}; a method keeps what it was given, self.{name} = {name}, "
                f"so that it can be saved, compared and told from others"
            )
    return {name: getattr(part, name) for name in names}


MODEL = ("ComplexOrder", "Floater", "Learned", "Recurrent", "Sinusoidal")
HEAD = (
    *("AxialRope", "Cope", "Deberta", "FloaterLayer", "FusedRope", "LearnedRope", "Nezha", "QkNorm", "Rope"),
    *("Sandwich", "Shaw", "TransformerXL", "TwoPartRope", "Xpos"),
)
RENAMED = {name: {"dim": "head_dim"} for name in HEAD} | {name: {"dim": "model_dim"} for name in MODEL}
"""Arguments of 0.1 under their present names, by method: schemes that 0.1 saved are read by them."""


def as_called_in_0_1(
    method: Callable[..., object], given: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call that may be one of 0.1 as they are given now: by place, and by name.

    What was renamed gets its present name; what is keyword-only since 0.2 and comes by place gets its name. Anything
    else is left for the method to refuse.
    """
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        # A builtin such as max has none, and no past.
        return given, dict(named)
    renamed = RENAMED.get(getattr(method, "__name__", ""), {})
    named = {name if name in parameters else renamed.get(name, name): each for name, each in named.items()}
    kinds = [each.kind for each in parameters.values()]
    places = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    late = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY][: max(0, len(given) - places)]
    if inspect.Parameter.VAR_POSITIONAL in kinds or len(given) != places + len(late) or set(late) & set(named):
        return given, named
    return given[:places], dict(zip(late, given[places:], strict=True)) | named


def refuse_names_of_0_1(method: Any) -> None:
    """Let a class refuse an argument by its name of 0.1 with an error that has the present one."""
    renamed: dict[str, str] = RENAMED.get(getattr(method, "__name__", ""), {})
    if not renamed:
        return
    ((old, new),) = renamed.items()
    init: Callable[..., None] = method.__init__

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        if old in given:
            raise TypeError(
                f"{method.__name__}({old}={given[old]!r}): {old} is called {new} since 0.2; "
                f"write {method.__name__}({new}={given[old]!r})"
            )
        init(self, *args, **given)

    method.__init__ = checked


def named_as_in_0_1(plain: Any) -> Any:
    """Return what to_plain made with the names of 0.1: keys of stores are hashes of it."""
    if isinstance(plain, list):
        return [named_as_in_0_1(each) for each in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    saved = cast("dict[str, Any]", plain)
    former = {new: old for old, new in RENAMED.get(str(saved.get("is")), {}).items()}
    return {former.get(name, name): named_as_in_0_1(each) for name, each in saved.items()}


def spell(part: object, whole: bool = False) -> str:
    """The call that makes the method, defaults left out: `Rope(128, stretch=Ntk(8))`.

    Long tuples are cut short, as an error wants them; whole=True writes every item, so that no two methods that differ
    in an argument are spelled alike.
    """
    if torch.compiler.is_compiling():
        # Nobody reads it there, and the compiler cannot follow.
        return type(part).__name__
    written: list[str] = []
    leading = True
    for name, parameter in inspect.signature(type(part)).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or not hasattr(part, name):
            # A method of the user's own may not keep what it was given; the next one then needs its name.
            leading = False
            continue
        value = getattr(part, name)
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            leading = False
            if value is parameter.default or value == parameter.default:
                continue
        text = spell_value(value, whole)
        written.append(text if leading else f"{name}={text}")
    return f"{type(part).__name__}({', '.join(written)})"


def spell_value(value: object, whole: bool = False) -> str:
    """One argument as it would be written. A number is exact: the shortest that reads back as the same."""
    if isinstance(value, float):
        return float.__repr__(value).removesuffix(".0")
    if isinstance(value, Tensor):
        return spell_value(tuple(value.shape))
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        shown = items if whole or len(items) <= 4 else items[:4]
        texts = [spell_value(item, whole) for item in shown] + (["…"] if len(shown) < len(items) else [])
        return f"({', '.join(texts)}{',' if len(items) == 1 else ''})"
    # What has no print of its own, and what torch prints on many lines, is spelled too.
    bare = isinstance(value, nn.Module) or type(value).__repr__ is object.__repr__
    called = not isinstance(value, type) and (dataclasses.is_dataclass(value) or bare)
    return spell(value, whole) if called else repr(value)


class Learner(ReadWeights):
    """A method that learns. It equals only itself, so that no parameter is ever deduplicated."""

    relative: bool = True

    def __repr__(self) -> str:
        return spell(self, whole=True)


def to_plain(value: Any) -> Any:
    """A method, or one of its arguments, as what JSON can hold. Of a tensor only the shape is kept."""
    if isinstance(value, Tensor):
        return list(value.shape)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in cast("list[Any]", value)]
    return {"is": type(value).__name__} | {name: to_plain(each) for name, each in arguments(value).items()}


def from_plain(plain: Any, known: Mapping[str, type]) -> Any:
    """The inverse of to_plain; `known` maps names to classes."""
    if isinstance(plain, (list, tuple)):
        return tuple(from_plain(item, known) for item in cast("list[Any]", plain))
    if not isinstance(plain, Mapping):
        return plain
    saved = {str(name): value for name, value in cast("Mapping[Any, Any]", plain).items()}
    if "is" not in saved:
        raise ValueError(
            f"a saved method is {{'is': 'Rope', 'head_dim': 64, …}}; 'is' is missing among the keys {sorted(saved)}"
        )
    name = saved.pop("is")
    if name not in known:
        raise ValueError(
            f"no method is called {name!r}{did_you_mean(str(name), known)}; pass your own with methods=[…]"
        )
    method = known[name]
    arguments = {argument: from_plain(value, known) for argument, value in saved.items()}
    return method(**as_called_in_0_1(method, (), arguments)[1])
