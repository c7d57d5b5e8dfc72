"""What a sweep found, as plain data: no store, no tensors, nothing but what a page or a file can tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from milepost.lab.schemes.naming import TRIVIAL, proper
from milepost.lab.statistics.measures import Measure as Measure
from milepost.lab.tasks import PROTOCOLS

PLAIN = ""
"""The variant of a row that is judged as it was trained."""


@dataclass(frozen=True)
class Term:
    """One part of an equation, at one of the verbs it answers."""

    verb: str
    """Empty for a part that does nothing."""
    part: str
    formula: str
    """Empty where the part has none, or at the other verbs of a part that has shown it."""
    paper: str = ""
    """The address of its paper on arXiv, where the method names one."""


@dataclass(frozen=True)
class Equation:
    """What some of a model's layers compute: the sum of attention, and the parts that fill it in."""

    layers: str
    """Which: `layers 0–4 of 0–5`; empty where it is all of them."""
    sum: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Row:
    """One way of reading: a scheme as trained, or a training-free change of one."""

    name: str
    """The trained scheme, as the user gave it."""
    variant: str
    """The training-free row judged on its checkpoint; empty for the scheme itself."""
    text: str
    """The expression of what it computes."""
    equation: str
    """As it is printed."""
    seeds: tuple[int, ...]
    parameters: int
    seconds: float
    """Of training, all seeds together."""
    scores: dict[str, dict[int, Measure]]
    """By protocol, then by length, or by distance for recall."""
    last: dict[int, float] = field(default_factory=dict[int, float])
    """Of the last 256 bytes of each window, by length."""
    positions: dict[int, list[tuple[int, float]]] = field(default_factory=dict[int, list[tuple[int, float]]])
    """By length: the first position of each bin and its mean bits."""
    losses: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Bits per byte in training, by step, seeds averaged."""

    gained: Measure | None = None
    """By how many bits the loss fell from the fourth fifth of training to the last one; None for training-free rows."""
    whole: bool = True
    """Whether every query sees every earlier key, in one layer at least; nothing but windows does not."""
    equations: tuple[Equation, ...] = ()
    """The equation part by part; several where layers differ."""
    own: bool = False
    """Whether it is a training-free row of the user's own, which is what its expression is, whatever it is called."""
    missing: int = 0
    """How many of the seeds that were asked for it lacks."""
    costs: dict[str, float] = field(default_factory=dict[str, float])
    """Bytes a second: `trained`, `read`, `written`; and `memory`, the most bytes on a GPU. Means over seeds."""

    @property
    def base(self) -> str:
        """Return the trained scheme, spelled as in its paper."""
        return proper(self.name)

    @property
    def label(self) -> str:
        """Return what the row is called: `RoPE`, or `RoPE: ReRoPE, log-n`."""
        return f"{self.base}: {self.variant}" if self.variant else self.base

    @property
    def short(self) -> str:
        """Return what the row is called beside others of its checkpoint."""
        return self.variant or self.base

    @property
    def few(self) -> str:
        """Return how many seeds it has, where others have more."""
        return f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}" if self.missing else ""

    @property
    def trivial(self) -> bool:
        """True if it is a window, with or without sinks, on a checkpoint trained without one."""
        return self.variant in TRIVIAL

    def at(self, protocol: str, length: int) -> Measure | None:
        """Return the score at one length, where it was judged."""
        return self.scores.get(protocol, {}).get(length)


@dataclass(frozen=True)
class Ran:
    """What was run, and how to run it again."""

    trained: int
    lengths: tuple[int, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    shape: dict[str, Any]
    recipe: dict[str, Any]
    judging: dict[str, Any]
    corpus: str
    digest: str
    train_bytes: int
    test_bytes: int
    guess: float
    """Bits of a byte to who knows only how often each comes in the text: what recall costs without looking back."""
    again: str
    versions: dict[str, str]
    seconds: float
    """Of training, all cells together."""
    cells: int
    done: int
    """Cells whose every score is there."""
    made: str
    """The day the findings were gathered."""
    pairs: float = math.inf
    """Bits of a byte to who knows only the byte before it and how often each follows it in the training text."""
    shared: float | None = None
    """The share of the judged text that stands in the training text too, by stretches of 32 bytes."""


@dataclass(frozen=True)
class Tried:
    """One setting that was tried on the validation text."""

    name: str
    """The scheme."""
    row: str
    """The row without training whose setting it is; empty where it is the rates of the scheme itself."""
    setting: str
    """In words: rates, or the expression of the row."""
    bits: dict[int, float]
    """By length; nothing where it was not judged yet."""
    chosen: bool
    rate: float | None = None
    """The model's rate."""
    times: float | None = None
    """How many times that is the rate of what the scheme learns; None for one that learns nothing."""

    edge: str = ""
    """Which of its values is the lowest or the highest that was tried, where it is the one chosen."""

    @property
    def mean(self) -> float:
        """Return the mean over the lengths, by which the best is chosen."""
        return fmean(self.bits.values()) if self.bits else math.nan


@dataclass(frozen=True)
class Findings:
    """All rows of a sweep, in the order they were asked for, and what was run."""

    rows: tuple[Row, ...]
    ran: Ran
    tolerance: float = 0.1
    """By how many bits a row may fall behind and still count as holding."""
    tried: tuple[Tried, ...] = ()
    """The rates and settings that were tried on the validation text, where some were to be chosen."""

    def of(self, name: str, variant: str = PLAIN) -> Row | None:
        """Return the row of a scheme, or of a training-free change of it."""
        return next((row for row in self.rows if (row.name, row.variant) == (name, variant)), None)

    def titles(self) -> dict[str, str]:
        """Return the expressions of the user's own rows that have another name, by label."""
        return {row.label: row.text for row in self.rows if row.own and row.variant != row.text}

    def lengths(self, protocol: str) -> tuple[int, ...]:
        """Return every length, or distance, that a protocol was judged at."""
        return tuple(sorted({length for row in self.rows for length in row.scores.get(protocol, {})}))

    def tasks(self) -> tuple[str, ...]:
        """Return the protocols that are tasks."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.scores if name in PROTOCOLS))

    def groups(self) -> Iterator[tuple[str, list[Row]]]:
        """Rows that belong side by side: those trained, then for each checkpoint its rows, trivial baselines first.

        The name is the checkpoint's, empty for the trained ones.
        """
        trained = [row for row in self.rows if not row.variant]
        changed = [row.name for row in trained if any(each.variant and each.name == row.name for each in self.rows)]
        if len(trained) > 1 or not changed:
            yield "", trained
        for name in changed:
            own = [row for row in self.rows if row.name == name]
            yield name, sorted(own, key=lambda row: bool(row.variant) and not row.trivial)
