"""What is inside of lists, tuples and dicts, as the arguments of an operation are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

T = TypeVar("T")


def inside(value: Any, kind: type[T]) -> Iterator[T]:
    """Return every object of a class in a value."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for each in cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value):
            yield from inside(each, kind)


def replaced(value: Any, kind: type[T], by: Callable[[T], Any]) -> Any:
    """Return a value with every object of a class replaced."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, dict):
        return {name: replaced(each, kind, by) for name, each in cast("dict[Any, Any]", value).items()}
    if type(value) in (tuple, list):
        return type(value)(replaced(each, kind, by) for each in value)
    return value
