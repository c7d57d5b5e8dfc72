"""Tasks besides language: by name, of any length, and with answers that are right or wrong."""

from __future__ import annotations

from milepost.arguments import nearest
from milepost.lab.tasks.arithmetic import Addition, Counting
from milepost.lab.tasks.copying import Copy, Reverse, Sort
from milepost.lab.tasks.hierarchy import HIERARCHY
from milepost.lab.tasks.needle import Needle, Passkey
from milepost.lab.tasks.run import score, train_on, trained_on
from milepost.lab.tasks.task import Task, batches

TASKS: dict[str, Task] = {
    "copy": Copy(),
    "reverse": Reverse(),
    "sort": Sort(),
    "addition": Addition(),
    "counting": Counting(),
    "needle": Needle(),
    "passkey": Passkey(),
    **HIERARCHY,
}


def named(name: str) -> Task:
    """The task of a name; an unknown one is refused with the nearest."""
    if name not in TASKS:
        hint = nearest(name, TASKS) or f"; there are {', '.join(TASKS)}"
        raise ValueError(f"the task {name!r} is not known{hint}")
    return TASKS[name]


__all__ = [
    "HIERARCHY", "TASKS", "Addition", "Copy", "Counting", "Needle", "Passkey", "Reverse", "Sort", "Task", "batches",
    "named", "score", "train_on", "trained_on",
]  # fmt: skip
