"""Checks on what a user asked for. Each error says what was asked, what is wrong and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor


def asked(owner: object, name: str, value: object) -> str:
    """The user's own call, as the head of an error: `Rope(dim=127)`."""
    return f"{getattr(owner, 'called', type(owner).__name__)}({name}={value!r})"


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
    if not isinstance(value, (int, float)) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{asked(owner, name, value)}: {name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{asked(owner, name, value)}: {name} must be finite")
    if above is not None and value <= above:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be greater than {above:g}")
    if least is not None and value < least:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be at least {least:g}")


def one_of(owner: object, name: str, value: object, choices: Sequence[str]) -> None:
    """Demand one of the words in `choices`."""
    if value not in choices:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be one of {', '.join(map(repr, choices))}")


def width(owner: object, x: Tensor, dim: int, hint: str = "") -> None:
    """Demand that the last axis of x has dim channels."""
    if x.shape[-1] != dim:
        raise ValueError(f"{asked(owner, 'dim', dim)}: given a tensor of {x.shape[-1]} channels{hint}")
