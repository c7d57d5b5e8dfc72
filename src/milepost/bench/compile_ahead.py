"""Compiling ahead in several processes: what they compile is kept on disk, and found when it is timed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence

from milepost.bench.harness.clock import Stopwatch
from milepost.bench.harness.settings import Settings
from milepost.bench.suites.groups import contests_of

COMPILED = ("host", "attention", "packed", "encoder", "rotary", "decoding", "memory", "models", "accuracy")
"""Groups on a GPU, whose kernels take longer to compile than to measure."""
SHARES = 5
"""Into how many jobs the contenders of one contest are divided."""
PATIENCE = 240.0
"""Seconds after which whatever is left is compiled when its turn comes."""
Job = tuple[Settings, str, int, int]


def jobs(names: Sequence[str], settings: Settings) -> list[Job]:
    """Return what can be compiled apart, contest by contest."""
    contests = [(name, n) for name in names if name in COMPILED for n in range(len(contests_of(name, settings)))]
    return [(settings, name, n, share) for name, n in contests for share in range(SHARES)]


def compile_ahead(names: Sequence[str], settings: Settings, processes: int, patience: float = PATIENCE) -> None:
    """Compile in so many processes, and wait for them; none is left when this returns."""
    waiting = jobs(names, settings)
    if not waiting or processes < 2:
        return
    watch = Stopwatch()
    done = 0
    with multiprocessing.get_context("spawn").Pool(min(processes, len(waiting)), _silent) as pool:
        found = pool.imap_unordered(_compile, waiting)
        try:
            while done < len(waiting):
                found.next(max(1.0, patience - watch.seconds()))
                done += 1
        except multiprocessing.TimeoutError:
            # A process that died returns nothing, either.
            pass
        pool.terminate()
        pool.join()
    print(f"compiled ahead in {watch.seconds():.0f} s, {done} of {len(waiting)} parts", flush=True)


def _silent() -> None:
    """Make the output of a process that compiles go nowhere: its rows report errors when they are made later."""
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
        # As above: the contest itself reports it.
        return
