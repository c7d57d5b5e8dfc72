"""Checks on plain values that a user gave: numbers, flags, choices. Importing them loads no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import FunctionType


def asked(owner: object, name: str, value: object) -> str:
    """The user's own call, as the head of an error: `Rope(head_dim=127)`."""
    called = owner.__name__ if isinstance(owner, FunctionType) else getattr(owner, "called", type(owner).__name__)
    return f"{called}({name}={value!r})"


def whole(owner: object, name: str, value: object, least: int = 1) -> None:
    """Demand an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{asked(owner, name, value)}: {name} must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be at least {least}")


def even(owner: object, name: str, value: object, why: str) -> None:
    """Demand a positive even integer."""
    whole(owner, name, value, least=1)
    if isinstance(value, int) and value % 2:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be even, because {why}")


def finite(owner: object, name: str, value: float, above: float | None = None, least: float | None = None) -> None:
    """Demand a finite number, larger than `above` or at least `least` where these are given."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{asked(owner, name, value)}: {name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{asked(owner, name, value)}: {name} must be finite")
    if above is not None and value <= above:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be greater than {above:g}")
    if least is not None and value < least:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be at least {least:g}")


def flag(owner: object, name: str, value: object) -> None:
    """Demand True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{asked(owner, name, value)}: {name} is True or False, not {type(value).__name__}")


def one_of(owner: object, name: str, value: object, choices: Sequence[object]) -> None:
    """Demand one of the `choices`."""
    if value not in choices:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be one of {', '.join(map(repr, choices))}")


def several(owner: object, name: str, value: object) -> None:
    """Demand a tuple or a list."""
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{asked(owner, name, value)}: {name} must be a tuple, not {type(value).__name__}")
