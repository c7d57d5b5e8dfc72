"""What several analyses are given: methods by name, and rotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from milepost.scheme import Scheme
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
    demand_part(caller, given)
    if isinstance(given, type) or not callable(getattr(given, "angles", None)):
        raise TypeError(f"{caller.__name__}: give a rotation, such as Rope(128); given {_spelled(given)}")
    return given


def turning(scheme: Scheme) -> Any:
    """Return what turns pairs by angles; None where nothing does."""
    # A partial rotation is around another.
    parts = (getattr(part, "method", part) for part in scheme.answering("turn"))
    return next((part for part in parts if callable(getattr(part, "angles", None))), None)


def demand_part(caller: Callable[..., object], given: object) -> None:
    """Refuse a whole scheme where its rotation is drawn, and name that."""
    if isinstance(given, Scheme):
        found = turning(given)
        fix = "it has none" if found is None else f"give its rotation, {spell(found)}"
        raise TypeError(f"{caller.__name__}: a rotation is drawn here, and this is a whole scheme; {fix}")


def _spelled(given: object) -> str:
    if isinstance(given, type):
        return given.__name__
    return repr(given) if isinstance(given, Parts) else spell(given)


__all__ = ["by_name", "demand_part", "rotation", "turning"]
