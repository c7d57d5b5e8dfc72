"""What a choice has measured, kept in the folder as it is made: rerun the command to resume, after kill -9 as well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from milepost.hf.choosing.trial import Result, from_plain, plain
from milepost.lab.cells.store import Score, Store
from milepost.lab.cells.turns import Locks

NAME = "extend.sqlite"
"""The file in the folder."""
CELL = "extend"


class Kept:
    """Measurements by row, tokens given and text; in a folder, or in memory alone."""

    def __init__(self, folder: Path | None = None, asked: Mapping[str, Any] | None = None) -> None:
        """asked: what was asked for; a folder in which something else was asked for is refused by name."""
        self.folder, self.asked = folder, dict(asked or {})
        self.store: Store | None = None
        self.known: dict[tuple[str, int, int], Result] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        if folder is not None:
            refuse_folder(folder)
            if (folder / NAME).exists():
                self._open(folder)

    def _open(self, folder: Path) -> Store:
        """Open the file, or begin it: what is refused before there is something to keep leaves no folder behind."""
        self.locks = Locks(folder)
        if not self.locks.take(f".{CELL}"):
            raise ValueError(f"--out {folder}: another process is at work in this folder; wait for it, or name another")
        self.store = Store(folder / NAME)
        before = self.store.noted("asked")
        if before is None:
            self.store.note("asked", self.asked)
        elif before != self.asked:
            self.close()
            raise ValueError(
                f"--out {folder}: {differs(before, self.asked)}; give the same command to resume, or another folder"
            )
        for each in self.store.scores(CELL):
            self.known[each.variant, each.length, int(each.protocol.removeprefix("text "))] = from_plain(each.detail)
        return self.store

    def _writing(self) -> Store | None:
        return self._open(self.folder) if self.store is None and self.folder is not None else self.store

    def __len__(self) -> int:
        return len(self.known)

    def get(self, row: str, length: int, text: int) -> Result | None:
        """Return what was measured, or None."""
        return self.known.get((row, length, text))

    def put(self, row: str, length: int, text: int, result: Result) -> None:
        """Keep a measurement; it is on the disk when this returns."""
        store = self._writing()
        self.known[row, length, text] = result
        if store is not None:
            nats = sum(result.blocks) / len(result.blocks)
            kept = Score(CELL, row, f"text {text}", length, nats, None, len(result.blocks), plain(result))
            store.judged(kept)

    def note(self, name: str, value: dict[str, Any]) -> None:
        """Keep something besides measurements, such as the time that was said."""
        self.notes[name] = value
        store = self._writing()
        if store is not None:
            store.note(name, value)

    def noted(self, name: str) -> dict[str, Any] | None:
        """Return what was noted under a name."""
        return self.notes.get(name) if self.store is None else self.store.noted(name)

    def close(self) -> None:
        """Let go of the folder."""
        if self.store is not None:
            self.store.close()
            self.locks.release_all()


def refuse_folder(folder: Path) -> None:
    """Refuse a folder with files that no choice has left there."""
    if folder.exists() and any(folder.iterdir()) and not (folder / NAME).is_file():
        raise ValueError(f"--out {folder}: this folder is not empty; name another")


def differs(before: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Say in what a command differs from the one that a folder is of."""
    names = [name for name in dict.fromkeys((*before, *asked)) if before.get(name) != asked.get(name)]
    each = [f"{name} is {_short(asked.get(name))} now and was {_short(before.get(name))}" for name in names]
    return f"this folder is of another command: {'; '.join(each)}"


def _short(value: Any) -> str:
    return "left out" if value is None else str(value)
