"""Signatures of methods for reading: choices spelled out, defaults shown."""

import inspect
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Any, TypeGuard, cast

GLUE = "\0"


def arguments(each: object) -> tuple[str, ...] | None:
    """Return the arguments with types and defaults, `theta: float = 10000.0`; None for what is not called."""
    return tuple(_arguments(each, _hints(each))) if _is_called(each) else None


def signature(name: str, written: tuple[str, ...] | None, width: int | None = None) -> str:
    """Return the whole call, broken between arguments only where it is wider than `width`."""
    if written is None:
        return name
    if width is None:
        return f"{name}({', '.join(written)})"
    # A blank inside an argument is no place to break a line.
    solid = f"{name}({', '.join(one.replace(' ', GLUE) for one in written)})"
    lines = textwrap.wrap(solid, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(GLUE, " ")


def required(each: object, name: str) -> str:
    """Return the call with the arguments that have no default: `Rope(dim)`."""
    if not _is_called(each):
        return name
    needed = [_starred(one) for one in inspect.signature(each).parameters.values() if one.default is one.empty]
    return f"{name}({', '.join(needed)})"


def type_in_words(hint: Any) -> str:
    """Return a type as a reader wants it: the words of a Literal, unions with |, names without their modules."""
    if isinstance(hint, str):
        return hint
    if isinstance(hint, list):
        return f"[{', '.join(map(type_in_words, cast('list[Any]', hint)))}]"
    if hint is type(None):
        return "None"
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(f'"{word}"' if isinstance(word, str) else repr(word) for word in inside)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_in_words(each) for each in inside)
    if origin is not None:
        inner = ", ".join("…" if each is Ellipsis else type_in_words(each) for each in inside)
        return f"{getattr(origin, '__name__', str(origin))}[{inner}]"
    return getattr(hint, "__name__", str(hint))


def _is_called(each: object) -> TypeGuard[Callable[..., object]]:
    return inspect.isclass(each) or inspect.isfunction(each) or inspect.ismodule(each)


def _hints(each: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(each.__init__ if inspect.isclass(each) else each)
    except NameError:
        # A type that is imported for checking only; what is written then has to do.
        return {}


def _arguments(each: Any, hints: dict[str, Any]) -> list[str]:
    written: list[str] = []
    starred = False
    for one in inspect.signature(each).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            written.append("*")
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        hint = hints.get(one.name, one.annotation)
        kind = "" if hint is one.empty else f": {type_in_words(hint)}"
        default = "" if one.default is one.empty else f"{' = ' if kind else '='}{_value(one.default)}"
        written.append(f"{_starred(one)}{kind}{default}")
    return written


def _starred(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}
    return stars.get(one.kind, "") + one.name


def _value(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return value.__name__ if inspect.isfunction(value) else repr(value)
