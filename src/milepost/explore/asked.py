"""What several analyses are given: methods by name, and rotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from milepost.seams.arguments import spell
from milepost.seams.parts import Parts


def by_name(caller: Callable[..., object], given: object, such_as: str) -> dict[str, Any]:
    """Demand objects by name, one at least."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{caller.__name__}: give a dict of names and what they name, such as {such_as}; given {_spelled(given)}"
        )
    if not given:
        raise ValueError(f"{caller.__name__}: give at least one by its name, such as {such_as}")
    return dict(cast("Mapping[str, Any]", given))


def rotation(caller: Callable[..., object], given: Any) -> Any:
    """Demand a rotation of pairs by angles."""
    if isinstance(given, type) or not callable(getattr(given, "angles", None)):
        raise TypeError(f"{caller.__name__}: give a rotation, such as Rope(128); given {_spelled(given)}")
    return given


def _spelled(given: object) -> str:
    if isinstance(given, type):
        return given.__name__
    return repr(given) if isinstance(given, Parts) else spell(given)


__all__ = ["by_name", "rotation"]
