"""Timing several contenders side by side, and the memory that one of them takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Work = Callable[[], object]


def race(contenders: dict[str, Work], repeats: int = 5) -> dict[str, float]:
    """The median seconds of each contender. They take turns, so that a slow spell of the machine meets them all."""
    for work in contenders.values():
        work()
        work()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def table(title: str, seconds: dict[str, float], baseline: str, note: str = "") -> None:
    """Print milliseconds and the ratio to the baseline."""
    print(f"\n{title}")
    for name, each in seconds.items():
        print(f"  {name:<44} {each * 1e3:>10.1f} ms   {each / seconds[baseline]:>6.2f} × {baseline}")
    if note:
        print(f"  {note}")


def peak_gigabytes(prepare: str, work: str) -> float:
    """How far a process's memory peaks above where it stood when it began the work, in GB.

    Both arguments are Python source; they run in a child of their own, so that nothing else is counted.
    """
    begin, end = "from milepost.bench.timing import peak, resident\nstart = resident()", "print(peak() - start)"
    source = "\n".join((prepare, begin, work, end))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the measured process failed:\n{done.stderr}")
    return float(done.stdout.split()[-1]) / 1e9


def resident() -> int:
    """The bytes this process holds now."""
    return _status("VmRSS")


def peak() -> int:
    """The most bytes this process has held."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; memory is measured on Linux only")
