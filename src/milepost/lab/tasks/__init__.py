"""Tasks besides language: by name, of any length, and with answers that are right or wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.lab.tasks.arithmetic import Addition, Counting
from milepost.lab.tasks.copying import Copy, Reverse, Sort
from milepost.lab.tasks.hierarchy import HIERARCHY
from milepost.lab.tasks.needle import Needle, Passkey
from milepost.lab.tasks.score import score, trivial
from milepost.lab.tasks.task import Task, batches, dealt
from milepost.refusal import did_you_mean

DEPTHS = (0.0, 0.5, 1.0)
"""Where a hidden number stands when it is judged: at the start of the text, in its middle, and at its end."""
TASKS: dict[str, Task] = {
    "copy": Copy(),
    "reverse": Reverse(),
    "sort": Sort(),
    "addition": Addition(),
    "counting": Counting(block=1 << 20),
    "needle": Needle(),
    "passkey": Passkey(),
    **HIERARCHY,
}


def named(name: str) -> Task:
    """Return the task of a name; an unknown one is refused with the nearest."""
    if name not in TASKS:
        hint = did_you_mean(name, TASKS) or f"; there are {', '.join(TASKS)}"
        raise ValueError(f"the task {name!r} is not known{hint}")
    return TASKS[name]


@dataclass(frozen=True)
class Protocol:
    """One way of judging by a task, where higher scores are better: its examples, and how deep what they hide lies."""

    name: str
    """The task's."""
    task: Task
    depth: float | None = None

    @property
    def title(self) -> str:
        """Return what readers see: `needle, depth 0.5`."""
        return self.name if self.depth is None else f"{self.name}, depth {self.depth:g}"

    @property
    def key(self) -> str:
        """Return what its scores are kept under."""
        return f"task:{self.title}"


def _protocols(name: str, task: Task) -> list[Protocol]:
    if isinstance(task, (Needle, Passkey)):
        return [Protocol(name, replace(task, depth=depth), depth) for depth in DEPTHS]
    return [Protocol(name, task)]


PROTOCOLS: dict[str, Protocol] = {each.key: each for name, task in TASKS.items() for each in _protocols(name, task)}
"""Every way of judging by a task, by what its scores are kept under; all others are bits per byte."""


def protocols(name: str) -> list[str]:
    """Return what the scores of a task are kept under: one key, or one for each depth where it hides something."""
    return [each.key for each in _protocols(name, named(name))]


__all__ = [
    "HIERARCHY", "PROTOCOLS", "TASKS", "Addition", "Copy", "Counting", "Needle", "Passkey", "Protocol", "Reverse",
    "Sort", "Task", "batches", "dealt", "named", "protocols", "score", "trivial",
]  # fmt: skip
