"""A sweep on one machine, several cells at a time: while one compiles or judges, another trains."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.multiprocessing as processes

from milepost.lab.cells.cell import Cell, Known
from milepost.lab.cells.events import Event
from milepost.lab.cells.turns import PAUSE, Turn
from milepost.lab.engines.local import Local, Waiting, failures
from milepost.lab.text.corpus import Corpus

START = "forkserver" if "forkserver" in processes.get_all_start_methods() else "spawn"
"""How processes begin; Windows copies none."""
FIRST = ["torch._dynamo", "scipy.fft"]
"""Imported before a process is copied that computes on CPUs: torch's optimizers import the one at their first step, and
intervals the other, two seconds in every copy otherwise. For a GPU they are left to the copies, where CUDA is begun."""


@dataclass(frozen=True)
class Jobs:
    """Up to `count` cells at a time, each in a process of its own; all of them share the device."""

    folder: Path
    device: str = "cpu"
    count: int = 2

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        waiting, begun, failed = Waiting(cells), 0, list[tuple[Cell, Exception]]()
        busy: dict[Any, tuple[Cell, BaseProcess]] = {}
        try:
            while waiting.more or busy:
                while len(busy) < self.count and (turn := waiting.now()) is not None:
                    pipe, process = self._begin(*turn, corpus)
                    busy[pipe] = turn[0], process
                    begun += 1
                # While others work on what is left, it is asked for again now and then.
                pause = PAUSE if waiting.more and len(busy) < self.count else None
                if not busy:
                    time.sleep(pause or 0)
                ready: list[Any] = wait(list(busy), pause) if busy else []
                for pipe in ready:
                    cell, process = busy[pipe]
                    heard = _heard(pipe, process)
                    if isinstance(heard, Event):
                        yield cell, heard
                        with contextlib.suppress(ConnectionError):
                            # One that has died says so when it is heard next.
                            pipe.send(None)
                        continue
                    del busy[pipe]
                    process.join()
                    if heard is not None:
                        failed.append((cell, heard))
        finally:
            for _, process in busy.values():
                process.kill()
        if failed:
            raise RuntimeError(failures(failed, begun)) from failed[0][1]

    def _begin(self, cell: Cell, known: Known, corpus: Corpus) -> tuple[Any, BaseProcess]:
        """Return a process that works one cell, and the pipe on which it is heard."""
        context: Any = processes.get_context(START)
        if START == "forkserver":
            # One that has imported everything and done nothing is copied for every cell; CUDA is begun in the copies.
            context.set_forkserver_preload([__name__, *(FIRST if self.device == "cpu" else [])])
        here, there = context.Pipe()
        process = context.Process(
            target=_work, args=(there, cell, known, corpus, self.folder, self.device), daemon=True
        )
        process.start()
        there.close()
        return here, process


def _heard(pipe: Any, process: BaseProcess) -> Event | Exception | None:
    """Return what a process says next: an event, what went wrong, or that it is done."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        process.join()
        return RuntimeError(f"its process died (exit code {process.exitcode})")


def _work(pipe: Connection, cell: Cell, known: Known, corpus: Corpus, folder: Path, device: str) -> None:
    """One cell, in a process of its own. It waits until each event is kept, and ends where nobody keeps them."""
    try:
        for _, event in Local(folder, device).run([(cell, known)], corpus):
            pipe.send(event)
            pipe.recv()
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return
    except Exception as error:
        pipe.send(error if type(error).__module__ == "builtins" else RuntimeError(f"{type(error).__name__}: {error}"))
        return
    pipe.send(None)
