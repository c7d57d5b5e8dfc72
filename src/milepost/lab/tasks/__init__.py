"""Tasks besides language: by name, of any length, and with answers that are right or wrong."""

from __future__ import annotations

from dataclasses import replace

from milepost.lab.store import TASK
from milepost.lab.tasks.arithmetic import Addition, Counting
from milepost.lab.tasks.copying import Copy, Reverse, Sort
from milepost.lab.tasks.hierarchy import HIERARCHY
from milepost.lab.tasks.needle import Needle, Passkey
from milepost.lab.tasks.run import score, train_on, trained_on, trivial
from milepost.lab.tasks.task import Task, batches, dealt
from milepost.seams.arguments import did_you_mean

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
    """The task of a name; an unknown one is refused with the nearest."""
    if name not in TASKS:
        hint = did_you_mean(name, TASKS) or f"; there are {', '.join(TASKS)}"
        raise ValueError(f"the task {name!r} is not known{hint}")
    return TASKS[name]


def protocols(name: str) -> list[str]:
    """The protocols a task is judged by: one, or one for each depth where it hides something."""
    if isinstance(named(name), (Needle, Passkey)):
        return [f"{TASK}{name}, depth {depth:g}" for depth in DEPTHS]
    return [f"{TASK}{name}"]


def of_protocol(protocol: str) -> Task:
    """The task that a protocol judges by."""
    name, _, depth = protocol.removeprefix(TASK).partition(", depth ")
    task = named(name)
    return replace(task, depth=float(depth)) if depth and isinstance(task, (Needle, Passkey)) else task


__all__ = [
    "HIERARCHY", "TASKS", "Addition", "Copy", "Counting", "Needle", "Passkey", "Reverse", "Sort", "Task", "batches",
    "dealt", "named", "of_protocol", "protocols", "score", "train_on", "trained_on", "trivial",
]  # fmt: skip
