"""What was found, kept in SQLite: every number is committed as it is made, so nothing is lost and nothing redone."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SQLITE_FULL = 13
TABLES = """
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY, settings TEXT NOT NULL, step INTEGER NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0, parameters INTEGER NOT NULL DEFAULT 0, equation TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS losses (
    cell TEXT NOT NULL, step INTEGER NOT NULL, loss REAL, PRIMARY KEY (cell, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scores (
    cell TEXT NOT NULL, variant TEXT NOT NULL, protocol TEXT NOT NULL, length INTEGER NOT NULL,
    mean REAL, half REAL, count INTEGER NOT NULL, detail TEXT NOT NULL DEFAULT '{}', windows BLOB,
    PRIMARY KEY (cell, variant, protocol, length)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS costs (
    cell TEXT NOT NULL, variant TEXT NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY (cell, variant, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Score:
    """One number: bits per byte, or the share of right answers, with half the width of its 95 % interval."""

    cell: str
    variant: str
    """The training-free row it was judged under; empty for the scheme it was trained with."""
    protocol: str
    length: int
    mean: float
    half: float | None
    count: int
    detail: dict[str, Any]
    windows: tuple[float, ...] = ()
    """One number for each window that was judged, in the order of the text; empty in stores of an earlier version."""


class Store:
    """A file of cells, losses and scores. Safe against being killed at any moment, and to read while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.db = sqlite3.connect(path, timeout=60, isolation_level=None)
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=FULL")
            self._bring_up_to_date()
            self.db.executescript(TABLES)
            (found,) = self.db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(" ".join(found.split()))
        except sqlite3.OperationalError as error:
            raise self._not_now(error) from error
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"the store {path} is damaged ({error}); move it away, and the sweep begins anew; checkpoints beside "
                f"it are used again"
            ) from error

    def _not_now(self, error: sqlite3.OperationalError) -> OSError:
        """Return what to say where the file is whole, and its disk, or who else has it open, is in the way."""
        if _is_full(error):
            return OSError(f"no disk space left for {self.path}; free some, then rerun the command to resume")
        return OSError(
            f"the store {self.path} cannot be used now ({error}), and nothing in it is lost: see that its disk has "
            f"space and can be written, and that nothing else holds the file; then rerun the command to resume"
        )

    def _bring_up_to_date(self) -> None:
        """Earlier versions had another name for what a cell is made of, and kept no windows."""
        if "told" in self._columns("cells"):
            self.db.execute("ALTER TABLE cells RENAME COLUMN told TO settings")
        if self._columns("scores") and "windows" not in self._columns("scores"):
            self.db.execute("ALTER TABLE scores ADD COLUMN windows BLOB")

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self.db.execute(f"PRAGMA table_info({table})")}

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """Open one transaction; a full disk is reported as such."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield self.db
            self.db.execute("COMMIT")
        except BaseException as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise self._not_now(error) from error
            raise

    def add(self, key: str, settings: dict[str, Any]) -> None:
        """Note that a cell is wanted."""
        with self._writing() as db:
            row = (key, json.dumps(settings, sort_keys=True))
            db.execute("INSERT OR IGNORE INTO cells (key, settings) VALUES (?, ?)", row)

    def describe(self, key: str, parameters: int, equation: str) -> None:
        """Keep how large a cell's model is and what its scheme computes."""
        with self._writing() as db:
            db.execute("UPDATE cells SET parameters = ?, equation = ? WHERE key = ?", (parameters, equation, key))

    def trained(self, key: str, step: int, losses: list[tuple[int, float]], seconds: float, done: bool) -> None:
        """Keep the losses of some steps, and how far the cell has come."""
        with self._writing() as db:
            db.executemany("INSERT OR REPLACE INTO losses VALUES (?, ?, ?)", [(key, *each) for each in losses])
            db.execute(
                "UPDATE cells SET step = ?, done = ?, seconds = seconds + ? WHERE key = ?", (step, done, seconds, key)
            )

    def judged(self, score: Score) -> None:
        """Keep one score."""
        row = (score.cell, score.variant, score.protocol, score.length, score.mean, score.half, score.count)
        with self._writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, json.dumps(score.detail), _packed(score.windows)),
            )

    def cost(self, key: str, variant: str, values: dict[str, float]) -> None:
        """Keep what a row costs."""
        with self._writing() as db:
            rows = [(key, variant, name, value) for name, value in values.items()]
            db.executemany("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?)", rows)

    def costs(self, key: str) -> dict[str, dict[str, float]]:
        """Return what each row of a cell costs, by its name."""
        found: dict[str, dict[str, float]] = {}
        for variant, name, value in self.db.execute("SELECT variant, name, value FROM costs WHERE cell = ?", (key,)):
            found.setdefault(variant, {})[name] = _number(value)
        return found

    def note(self, name: str, value: dict[str, Any]) -> None:
        """Keep something about the whole store, in place of what was kept under that name."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(value, sort_keys=True)))

    def noted(self, name: str) -> dict[str, Any] | None:
        """Return what was noted under a name."""
        row = self.db.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def cells(self) -> list[tuple[str, dict[str, Any]]]:
        """Return every cell with what it is made of, in the order in which they were asked for."""
        rows = self.db.execute("SELECT key, settings FROM cells ORDER BY rowid")
        return [(key, json.loads(settings)) for key, settings in rows]

    def rename(self, old: str, new: str) -> None:
        """Let a cell go on under another key, with its losses and scores."""
        with self._writing() as db:
            db.execute("UPDATE cells SET key = ? WHERE key = ?", (new, old))
            for table in ("losses", "scores", "costs"):
                db.execute(f"UPDATE {table} SET cell = ? WHERE cell = ?", (new, old))

    def knows(self, key: str) -> bool:
        """True if a cell is there."""
        return self.db.execute("SELECT 1 FROM cells WHERE key = ?", (key,)).fetchone() is not None

    def progress(self, key: str) -> tuple[int, bool]:
        """Return how many steps a cell has made, and whether they are all."""
        row = self.db.execute("SELECT step, done FROM cells WHERE key = ?", (key,)).fetchone()
        return (0, False) if row is None else (int(row[0]), bool(row[1]))

    def cell(self, key: str) -> dict[str, Any]:
        """Return what is known of a cell."""
        names = ("settings", "step", "done", "seconds", "parameters", "equation")
        row = self.db.execute(f"SELECT {', '.join(names)} FROM cells WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(f"the store {self.path} knows no cell {key}")
        found = dict(zip(names, row, strict=True))
        return found | {"settings": json.loads(found["settings"])}

    def losses(self, key: str) -> list[tuple[int, float]]:
        """Return the losses of a cell, in order."""
        rows = self.db.execute("SELECT step, loss FROM losses WHERE cell = ? ORDER BY step", (key,))
        return [(step, _number(loss)) for step, loss in rows]

    def scores(self, key: str) -> list[Score]:
        """Return every score of a cell, in order."""
        asked = "SELECT * FROM scores WHERE cell = ? ORDER BY variant, protocol, length"
        rows = self.db.execute(asked, (key,))
        return [
            Score(cell, variant, protocol, length, _number(mean), half, count, json.loads(detail), _unpacked(windows))
            for cell, variant, protocol, length, mean, half, count, detail, windows in rows
        ]

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()


def opened(out: Path) -> Store:
    """Return the store of a folder that milepost compare wrote; none is made where there is none."""
    path = out / "lab.sqlite"
    if not path.is_file():
        raise FileNotFoundError(f"{out}: there is no lab.sqlite in it; give the --out of a milepost compare")
    return Store(path)


def _is_full(error: sqlite3.OperationalError) -> bool:
    """True if the disk takes no more. Before Python 3.11 an error has no code, only SQLite's own words for it."""
    code = getattr(error, "sqlite_errorcode", None)
    return str(error) == "database or disk is full" if code is None else code == SQLITE_FULL


def _packed(windows: Sequence[float]) -> bytes | None:
    """Numbers as float32, four bytes each, the same on every machine."""
    return struct.pack(f"<{len(windows)}f", *windows) if windows else None


def _unpacked(kept: bytes | None) -> tuple[float, ...]:
    return () if kept is None else struct.unpack(f"<{len(kept) // 4}f", kept)


def _number(value: float | None) -> float:
    """SQLite keeps what is not a number as nothing: a model that diverged is a finding too."""
    return math.nan if value is None else value
