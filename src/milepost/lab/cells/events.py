"""What a cell reports while it is worked. Every event may come twice, after a crash, and then says the same."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.lab.cells.store import Score
from milepost.lab.judging.costs import Cost


@dataclass(frozen=True)
class Described:
    """How large the model is and what its scheme computes."""

    parameters: int
    equation: str


@dataclass(frozen=True)
class Stepped:
    """Some steps were made."""

    step: int
    losses: list[tuple[int, float]]
    seconds: float
    tokens: int
    done: bool


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int


@dataclass(frozen=True)
class Died:
    """The worker of a cell died, and another begins it, from its last checkpoint."""

    why: str


Event = Described | Stepped | Saved | Died | Score | Cost
