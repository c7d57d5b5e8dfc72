"""Compiling ahead, in several processes at a time: what they compile is kept on disk, and found when it is timed."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence

from milepost.bench.groups import contests_of
from milepost.bench.settings import Settings

COMPILED = ("attention", "packed", "encoder", "rotary", "decoding", "models", "accuracy")
"""Groups in which compiling takes longer than measuring."""
SHARES = 5
"""Into how many jobs the contenders of one contest are divided."""
PATIENCE = 240.0
"""Seconds after which whatever is left is compiled when its turn comes."""
Job = tuple[Settings, str, int, int]


def jobs(names: Sequence[str], settings: Settings) -> list[Job]:
    """What can be compiled apart: the slowest contests first."""
    contests = [(name, n) for name in names if name in COMPILED for n in range(len(contests_of(name, settings)))]
    return [(settings, name, n, share) for share in range(SHARES) for name, n in contests]


def warm(names: Sequence[str], settings: Settings, processes: int) -> None:
    """Compile in so many processes, and wait for them; none is left when this returns."""
    waiting = jobs(names, settings)
    if not waiting or processes < 2:
        return
    start = time.perf_counter()
    done = 0
    with multiprocessing.get_context("spawn").Pool(min(processes, len(waiting)), _silent) as pool:
        found = pool.imap_unordered(_compile, waiting)
        try:
            while done < len(waiting):
                found.next(max(1.0, PATIENCE - (time.perf_counter() - start)))
                done += 1
        except multiprocessing.TimeoutError:
            # A process that died never answers, either.
            pass
        pool.terminate()
        pool.join()
    print(f"compiled ahead in {time.perf_counter() - start:.0f} s, {done} of {len(waiting)} parts", flush=True)


def _silent() -> None:
    """In a process that compiles: its rows are made later, and say then what went wrong."""
    # Each of these processes is one of many already.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _compile(job: Job) -> None:
    settings, name, number, share = job
    try:
        contests_of(name, settings)[number].warm_up(share, SHARES)
    except Exception:
        # As above: the contest itself will tell.
        return
