"""The store: what is told is kept at once, and a file that cannot be used is named."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.lab.cells.store import Score, Store

SCORE = Score("a", "", "windows", 128, 1.5, 0.25, 4096, {"last": 1.25, "by_position": [[0, 8.0], [1, 2.5]]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "lab.sqlite"


def filled(path: Path) -> Store:
    """A store with two cells, one of them trained for 2,000 steps."""
    store = Store(path)
    for key in ("a", "b"):
        store.add(key, {"name": key, "seed": 0})
    store.describe("a", 1234, "score = q·k")
    store.trained("a", 2000, [(step, step / 7) for step in range(2000)], 1.5, False)
    store.judged(SCORE)
    return store


def everything(store: Store) -> tuple:
    keys = [key for (key,) in store.db.execute("SELECT key FROM cells ORDER BY key")]
    return [(store.cell(key), store.losses(key), store.scores(key)) for key in keys]


def sound(store: Store) -> bool:
    """True if SQLite finds the file whole."""
    try:
        return store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    except sqlite3.DatabaseError:
        return False


# Keeping


def test_what_was_told_is_there_when_the_store_is_opened_again(path: Path):
    store = filled(path)
    before = everything(store)
    store.close()
    store = Store(path)
    assert everything(store) == before
    assert store.losses("a") == [(step, step / 7) for step in range(2000)]
    assert store.scores("a") == [SCORE]
    assert store.progress("a") == (2000, False)
    assert store.progress("nobody") == (0, False)
    assert store.cell("a") == {
        "settings": {"name": "a", "seed": 0}, "step": 2000, "done": 0, "seconds": 1.5, "parameters": 1234,
        "equation": "score = q·k",
    }  # fmt: skip
    assert sound(store)
    store.close()


def test_scores_come_in_order_whatever_order_they_were_made_in(path: Path):
    store = Store(path)
    for variant, protocol, length in (("b", "windows", 64), ("", "windows", 128), ("", "ends", 64), ("", "ends", 8)):
        store.judged(replace(SCORE, variant=variant, protocol=protocol, length=length))
    found = [(score.variant, score.protocol, score.length) for score in store.scores("a")]
    assert found == [("", "ends", 8), ("", "ends", 64), ("", "windows", 128), ("b", "windows", 64)]
    store.close()


def test_an_event_that_comes_twice_is_kept_once(path: Path):
    store = filled(path)
    before = everything(store)
    store.add("a", {"name": "something else"})
    store.describe("a", 1234, "score = q·k")
    store.trained("a", 2000, [(1998, 1998 / 7), (1999, 1999 / 7)], 0.0, False)
    store.judged(SCORE)
    assert everything(store) == before
    store.trained("a", 2001, [(2000, 0.5)], 0.5, True)
    store.judged(replace(SCORE, mean=9.0))
    assert store.progress("a") == (2001, True)
    assert store.cell("a")["seconds"] == 2.0
    assert [score.mean for score in store.scores("a")] == [9.0]
    store.close()


def test_a_model_that_diverged_is_a_finding_too(path: Path):
    store = filled(path)
    store.trained("b", 3, [(0, 5.5), (1, math.inf), (2, math.nan)], 0.5, False)
    store.judged(replace(SCORE, cell="b", mean=math.nan, half=None, detail={"last": math.nan}))
    (first, second, third), (score,) = store.losses("b"), store.scores("b")
    assert (first, second) == ((0, 5.5), (1, math.inf))
    assert third[0] == 2
    assert math.isnan(third[1])
    assert math.isnan(score.mean)
    assert score.half is None
    store.close()


def test_what_is_not_committed_leaves_no_trace(path: Path):
    store = filled(path)
    before = everything(store)
    with pytest.raises(sqlite3.Error):
        store.trained("a", 9, [(5000, 1.0), (None, 1.0)], 1.0, True)  # pyright: ignore
    writing = store._writing()
    writing.__enter__().execute("DELETE FROM losses")
    assert store.losses("a") == []
    writing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert everything(store) == before
    store.close()


# Others who read it, and being killed


def test_a_reader_is_neither_held_up_nor_shown_half_a_step(path: Path):
    store = filled(path)
    assert store.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    reader = sqlite3.connect(path, timeout=0)
    count = "SELECT count(*) FROM losses WHERE cell = 'b'"
    with store._writing() as db:
        db.executemany("INSERT INTO losses VALUES ('b', ?, 1.0)", [(step,) for step in range(50)])
        assert reader.execute(count).fetchone() == (0,)
    assert reader.execute(count).fetchone() == (50,)
    # A reader in the middle of a look does not hold up the writer.
    reader.execute("BEGIN")
    assert reader.execute(count).fetchone() == (50,)
    store.trained("b", 51, [(50, 1.0)], 0.1, False)
    assert reader.execute(count).fetchone() == (50,)
    reader.execute("COMMIT")
    assert reader.execute(count).fetchone() == (51,)
    reader.close()
    store.close()


def test_two_stores_on_one_file_take_turns(path: Path):
    one, two = filled(path), Store(path)
    one.trained("b", 1, [(0, 1.0)], 0.1, False)
    two.trained("b", 2, [(1, 2.0)], 0.1, False)
    assert one.losses("b") == two.losses("b") == [(0, 1.0), (1, 2.0)]
    one.close()
    two.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from milepost.lab.cells.store import Store
store = Store(Path(sys.argv[1]))
store.add("a", {})
store.trained("a", 3, [(0, 1.5), (1, 2.5), (2, 3.5)], 1.0, False)
with store._writing() as db:
    db.execute("DELETE FROM losses")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_writer_killed_in_the_middle_loses_nothing_it_had_told(path: Path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -9
    store = Store(path)
    assert store.losses("a") == [(0, 1.5), (1, 2.5), (2, 3.5)]
    assert sound(store)
    store.close()


def test_a_store_of_an_earlier_version_is_used_as_it_is(path: Path):
    """What a cell is made of was in a column called told."""
    store = filled(path)
    before = everything(store)
    store.db.execute("ALTER TABLE cells RENAME COLUMN settings TO told")
    store.close()
    for _ in range(2):
        store = Store(path)
        assert everything(store) == before
        store.close()


# What can go wrong


def test_a_full_disk_is_told_and_what_was_kept_stays(path: Path):
    store = filled(path)
    before = everything(store)
    (pages,) = store.db.execute("PRAGMA page_count").fetchone()
    # SQLite answers a limit on pages just as it does a full disk.
    store.db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match=f"no disk space left for {path}; free some, then rerun the command to resume"):
        store.trained("b", 9000, [(step, 1.0) for step in range(9000)], 1.0, False)
    assert everything(store) == before
    assert sound(store)
    store.db.execute("PRAGMA max_page_count = 100000")
    store.trained("b", 9000, [(step, 1.0) for step in range(9000)], 1.0, False)
    assert len(store.losses("b")) == 9000
    store.close()


def harm(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "no store at all":
        path.write_bytes(b"my notes\n" * 1000)
    elif how == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    else:
        # The first page, with the names of the tables, is left as it was.
        path.write_bytes(whole[:4096] + bytes((byte * 7 + 13) % 256 for byte in whole[4096:]))


@pytest.mark.parametrize("how", ["no store at all", "cut off", "changed inside"])
def test_a_damaged_store_is_named_when_it_is_opened_and_left_as_it_was(path: Path, how: str):
    filled(path).close()
    harm(path, how)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"the store {path} is damaged \(.+\); move it away, and .* checkpoints"):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("why", ["disk I/O error", "attempt to write a readonly database", "database is locked"])
def test_a_whole_store_that_cannot_be_used_now_is_not_called_damaged(path: Path, why: str, monkeypatch):
    filled(path).close()
    connect = sqlite3.connect

    class Busy(sqlite3.Connection):
        def executescript(self, text: str) -> sqlite3.Cursor:
            raise sqlite3.OperationalError(why)

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Busy))
    with pytest.raises(OSError, match=rf"the store {path} cannot be used now \({why}\), and nothing in it is lost"):
        Store(path)


def test_a_store_that_another_program_holds_is_not_written_and_not_lost(path: Path):
    store, other = filled(path), sqlite3.connect(path, isolation_level=None)
    store.db.execute("PRAGMA busy_timeout=1")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match=r"cannot be used now \(database is locked\)"):
        store.add("another", {})
    other.execute("ROLLBACK")
    store.add("another", {})
    store.close()


def test_a_store_damaged_while_open_is_not_sound(path: Path):
    store = filled(path)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    harm(path, "changed inside")
    store.db.execute("PRAGMA shrink_memory")
    assert not sound(store)
    store.close()


def test_a_cell_that_is_not_there_is_named(path: Path):
    store = Store(path)
    with pytest.raises(KeyError, match=f"the store {path} knows no cell z"):
        store.cell("z")
    store.close()


# Stores of earlier versions


def test_the_bits_of_every_window_are_kept_as_four_bytes_each(path: Path):
    store = filled(path)
    windows = (1.5, 2.25, math.inf)
    store.judged(replace(SCORE, windows=windows))
    assert store.scores("a") == [replace(SCORE, windows=windows)]
    assert store.db.execute("SELECT length(windows) FROM scores").fetchone() == (12,)
    store.close()


def test_a_store_of_before_windows_were_kept_still_opens_and_loses_nothing(path: Path):
    store = filled(path)
    store.db.execute("ALTER TABLE scores DROP COLUMN windows")
    store.close()
    store = Store(path)
    assert store.scores("a") == [SCORE]
    store.judged(replace(SCORE, length=256, windows=(1.0, 2.0)))
    assert [score.windows for score in store.scores("a")] == [(), (1.0, 2.0)]
    store.close()


def test_a_cell_goes_on_under_another_key_with_all_it_has(path: Path):
    store = filled(path)
    before = store.cell("a"), store.losses("a")
    store.rename("a", "c")
    assert (store.cell("c"), store.losses("c")) == before
    assert store.scores("c") == [replace(SCORE, cell="c")]
    assert not store.knows("a")
    store.close()
