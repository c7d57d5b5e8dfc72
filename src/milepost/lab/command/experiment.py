"""Cells of one's own, trained and judged as those of `milepost compare` are, with its progress and its store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.store import Store
from milepost.lab.command.asked import engine_of
from milepost.lab.command.progress import Watched
from milepost.lab.sweep.sweep import Sweep, missing, run
from milepost.lab.text.corpus import of_bytes
from milepost.lab.training.recipe import Size


def worked(cells: Sequence[Cell], out: Path, device: str, jobs: int) -> Store:
    """Do what of these cells is not done yet, and give the store that has all of them; they need no text.

    Stopped anywhere, the same call goes on, each model from its last checkpoint.
    """
    if not cells:
        raise ValueError("worked: there must be at least one cell")
    for cell in cells:
        cell.check()
    first = cells[0]
    size = Size(first.shape, first.recipe, first.judging.longest)
    sweep = Sweep((), size, of_bytes(b"", "no text"))
    engine, store = engine_of("local", out, device, jobs), Store(out / "lab.sqlite")
    if left := {cell.key: len(cell.wanted() - known) for cell, known in missing(sweep, store, cells)}:
        with Watched(cells, left=left) as watched:
            run(sweep, store, engine, watched, cells, watched.waits)
    return store
