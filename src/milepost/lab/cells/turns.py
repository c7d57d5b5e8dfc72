"""Two processes on one folder take turns: each cell is worked by one of them, and what one has done the other reads.

A lock is a file in the folder, locked by the system: whoever is killed lets go of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell, Known

PAUSE = 0.5
"""Seconds until locks of other processes are tried again."""
Turn = tuple[Cell, Known] | None
"""A cell to work, with the scores that it has; None where all that are left are worked elsewhere: ask again later."""


class Locks:
    """The cells that this process works, each under a lock of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locks: dict[str, Any] = {}

    def take(self, key: str) -> bool:
        """Lock a cell, unless another process has."""
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        self.locks[key] = lock
        return True

    def release(self, key: str) -> None:
        """Let others have a cell."""
        lock = self.locks.pop(key, None)
        if lock is not None:
            # The file stays: one that waits for it would else have locked what nobody finds any more.
            lock.release()

    def release_all(self) -> None:
        """Let others have every cell."""
        for key in list(self.locks):
            self.release(key)


def turns(
    cells: Sequence[Cell],
    locks: Locks,
    known: Callable[[Cell], Known | None],
    waits: Callable[[int], None] | None = None,
) -> Iterator[Turn]:
    """Cells one by one, each locked for this process; `known` gives the scores of one, or None where it is done.

    `waits` is called once, with how many are left, where others work on all of them.
    """
    waiting = list(cells)
    while waiting:
        cell = next((each for each in waiting if locks.take(each.key)), None)
        if cell is None:
            if waits is not None:
                waits(len(waiting))
                waits = None
            yield None
            continue
        waiting.remove(cell)
        found = known(cell)
        if found is None:
            # Another process has done it meanwhile.
            locks.release(cell.key)
        else:
            yield cell, found
