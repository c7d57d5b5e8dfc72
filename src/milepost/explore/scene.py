"""What a story or the composer computed, as figures that the page draws: arrays, axes and marks, no pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, cast

import numpy as np

DIGITS = 6
"""How many digits of a number reach the page; the same in an exported one."""
MANY = 32
"""From so many numbers on they are shortened together, which takes a third of the time."""


@dataclass(frozen=True)
class Say:
    """A text in the languages of the page."""

    en: str
    zh: str


@dataclass(frozen=True)
class Line:
    """A curve over the axis of its figure; what is not finite is a gap."""

    name: Say
    values: Sequence[float]
    scheme: int = 0
    """Which of the compared schemes it belongs to: curves of one scheme have one colour."""
    quiet: bool = False
    """Drawn faintly, as what the others are compared with."""


@dataclass(frozen=True)
class Mark:
    """A vertical line at a value of the axis; where it has a control, dragging it moves that."""

    name: Say
    at: float
    control: str = ""


@dataclass(frozen=True)
class Lines:
    """Curves over one axis."""

    title: Say
    x: Say
    """What the axis counts, with its unit."""
    y: Say
    at: Sequence[float]
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    x_scale: Literal["even", "log"] = "even"
    y_scale: Literal["even", "log"] = "even"
    y_range: tuple[float, float] | None = None
    link: str = ""
    """Figures of one link mark the same place of their axes when the pointer is on one: "distance", "position"."""


@dataclass(frozen=True)
class Map:
    """A grid of numbers, row by row; what is not finite is hidden from the query."""

    title: Say
    x: Say
    y: Say
    values: Sequence[Sequence[float]]
    xs: Sequence[float] | Sequence[str]
    """Of each column its number, or its word."""
    ys: Sequence[float] | Sequence[str]
    unit: Say = Say("", "")
    link: str = ""
    """Of maps whose cell knows a distance, "distance": rows minus columns."""
    limits: tuple[float, float] | None = None
    """What the lightest and the darkest shade are; the least and the largest value if left out."""
    small: bool = False
    """Drawn small, without axes, beside others: to be chosen from."""
    of: str = ""
    """Which of the compared schemes it is of, as the page calls that one."""


@dataclass(frozen=True)
class Dial:
    """The clock of one pair of channels, in turns."""

    name: str
    seen: float
    """How much of a turn training met; 1 is all of it."""
    reached: float
    """How far the text goes now, in turns."""
    hand: float | None = None
    """Where the pair stands at the chosen position, in turns."""


@dataclass(frozen=True)
class Dials:
    """A clock for each pair: the arc that was seen, the arc met for the first time, and a hand."""

    title: Say
    dials: tuple[Dial, ...]
    of: str = ""
    """Which of the compared schemes they are of, as the page calls that one."""


@dataclass(frozen=True)
class Arrow:
    """An arrow from the middle of a circle; where it has a control, dragging it moves that."""

    name: Say
    turns: float
    control: str = ""
    turns_per_step: float = 0.0
    """How far the arrow turns when its control grows by one."""


@dataclass(frozen=True)
class Arrows:
    """Arrows on one circle, and the arc between two of them."""

    title: Say
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True)
class Digits:
    """Positions as digits, a row for each; a digit past what training met is marked."""

    title: Say
    rows: tuple[tuple[Say, tuple[float, ...], tuple[bool, ...]], ...]
    """Name, digits, and of each whether training never met it."""
    base: float
    head: tuple[Say, ...] = ()
    """Of the column of names and of each digit."""


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers."""

    title: Say
    head: tuple[Say, ...]
    rows: tuple[tuple[Say | str | float, ...], ...]


Figure = Lines | Map | Dials | Arrows | Digits | Table


@dataclass(frozen=True)
class Scene:
    """Everything one setting of the controls came to."""

    figures: tuple[Figure, ...]
    says: Say
    """What is to be seen, with the numbers that were found."""
    code: str = ""
    """Lines of Python that compute it."""
    try_own: tuple[str, ...] | None = None
    """Schemes to go on from, as they are set here; those of the story where left out."""
    try_set: tuple[tuple[str, int | str], ...] = ()
    """Settings of the composer for those schemes, such as ("trained", 512); the story has the others."""


def plain(value: Any) -> Any:
    """Return a scene as JSON has it: figures with their kind, numbers with six digits, what is not finite null."""
    # Most of a scene is numbers: asked first.
    if type(value) is float:
        return _short(value)
    if is_dataclass(value):
        found = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        kind = type(value).__name__.lower()
        return {"kind": kind, **found} if isinstance(value, Figure) else found
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        every = cast("list[Any]", value)
        if len(every) >= MANY and {*map(type, every)} == {float}:
            return _all_short(cast("list[float]", every))
        return [_short(each) if type(each) is float else plain(each) for each in every]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    return _short(float(value))


def _all_short(numbers: Sequence[float]) -> list[float | int | None]:
    """Return what `_short` returns of each, computed together."""
    given = np.array(numbers)
    with np.errstate(all="ignore"):
        # A power of ten up to 22 is exact in float64, and so is a whole number of six digits: one division is nearest.
        power = DIGITS - 1 - np.floor(np.log10(np.abs(given)))
        short = np.rint(given * 10.0**power) / 10.0**power
        alone = (power < 0) | (power > 22) | (short == np.rint(short))
    found = cast("list[float | int | None]", short.tolist())
    for n in cast("list[int]", np.flatnonzero(alone | ~np.isfinite(given)).tolist()):
        found[n] = _short(numbers[n])
    return found


def _short(number: float) -> float | int | None:
    """Return a number of few digits, whole ones without a point; None where it is not finite."""
    if not math.isfinite(number):
        return None
    short = float(f"{number:.{DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 2**53 else short


__all__ = [
    "Arrow", "Arrows", "Dial", "Dials", "Digits", "Figure", "Line", "Lines", "Map", "Mark", "Say", "Scene", "Table",
    "plain",
]  # fmt: skip
