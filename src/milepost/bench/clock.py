"""Timing contenders on one device: they take turns, and what fails is left out with its reason."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from milepost.bench.report import Measure

Work = Callable[[], object]
How = Literal["cold", "burst", "graph", "memory"]
"""cold: calls that follow one another without waiting, by the device's own clock, its cache cleared before each, as
often as it takes the host to be ahead of it.
burst: many calls, then one wait, by the host's clock: what a call costs whoever makes it, host or device.
graph: calls recorded in a CUDA graph. memory: the peak of what is allocated during a call."""
CACHE = 256 << 20
"""Bytes that are written between two calls, more than the device keeps."""
SLOW = 2.0
"""Seconds from which on one call is the figure."""
SHARE = 0.4
"""Seconds that one contender may take up in a race; a slower one sits some rounds out."""
LEAST = 3
"""Rounds that everybody runs in."""
WARM = 6
"""Calls before one is timed, where they are quick: milepost writes the third of a kind down, and plays those after."""
BURST = 10e-3
"""Seconds that a burst of calls takes, or so."""
AHEAD = 128
"""How often the device's cache is cleared at the most, so that the host is ahead of it when a call begins."""


@dataclass
class _Runner:
    """A contender in a race."""

    work: Work
    seconds: float
    """Of one call, as tried."""
    calls: int = 1
    """Calls in one round, or in the graph."""
    every: int = 1
    """It runs in every so many rounds."""
    clears: int = 1
    """How often the device's cache is cleared before a call."""

    def __post_init__(self) -> None:
        self.samples: list[float] = []
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []


def short(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def tidy() -> None:
    """Give back what a failed contender left allocated."""
    gc.collect()
    # A device that has failed for good fails here, too, and the rows to come will say so.
    with contextlib.suppress(Exception):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def race(works: dict[str, Work], how: How, device: str, rounds: int) -> dict[str, Measure | str]:
    """The median of each contender with its quartiles, in milliseconds or bytes; or why there is none."""
    found: dict[str, Measure | str] = {}
    runners: dict[str, _Runner] = {}
    for name, work in works.items():
        try:
            if how == "memory":
                found[name] = _memory(work, device)
                continue
            runner = _Runner(work, _tried(work, device))
            if runner.seconds > SLOW:
                ms = runner.seconds * 1e3
                found[name] = Measure(ms, "ms", ms, ms, 1)
            else:
                runners[name] = _ready(runner, how, device, rounds)
        except Exception as error:
            found[name] = short(error)
            tidy()
    for number in range(rounds):
        _round({name: each for name, each in runners.items() if number % each.every == 0}, how, device, found)
    _wait(device)
    for name, runner in runners.items():
        if name not in found:
            found[name] = _measured(runner, how, device)
    return found


def _tried(work: Work, device: str) -> float:
    """Seconds of a call, after others: the first may compile, and so may the second, for what the first left."""
    seconds = 0.0
    for number in range(WARM + 2):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        seconds = time.perf_counter() - start
        if number > 1 and (seconds > SLOW or seconds * WARM > SHARE):
            break
    return seconds


def _ready(runner: _Runner, how: How, device: str, rounds: int) -> _Runner:
    if how == "graph":
        if device != "cuda":
            raise RuntimeError("CUDA graphs need a GPU")
        runner.calls = max(4, min(100, int(3e-3 / runner.seconds)))
        runner.work = _graphed(runner.work, runner.calls)
    elif how == "cold" and device == "cuda":
        # The device's clock runs from the call's beginning: a host that is behind would be timed instead.
        clear = _seconds_to_clear()
        runner.clears = max(1, min(AHEAD, math.ceil(2 * _host_microseconds(runner) * 1e-6 / clear)))
    elif how == "burst" and device == "cuda":
        runner.calls = max(1, min(100, int(BURST / runner.seconds)))
    wanted = max(LEAST, min(rounds, int(SHARE / (runner.seconds * runner.calls + 1e-9))))
    runner.every = max(1, rounds // wanted)
    return runner


def _graphed(work: Work, calls: int) -> Work:
    """Replay so many calls of it from one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return graph.replay


def _round(runners: dict[str, _Runner], how: How, device: str, found: dict[str, Measure | str]) -> None:
    """One turn of everybody. On a GPU nobody is waited for until the round's times are read, after the race."""
    for name, runner in runners.items():
        if name in found:
            continue
        try:
            if device == "cuda" and how != "burst":
                _timed_by_device(runner, cold=how == "cold")
            else:
                _timed_by_host(runner, device)
        except Exception as error:
            found[name] = short(error)
            tidy()


_written: dict[str, torch.Tensor] = {}
"""What is written over to clear the cache."""


def _clear() -> None:
    if "cuda" not in _written:
        _written["cuda"] = torch.empty(CACHE, dtype=torch.int8, device="cuda")
    _written["cuda"].zero_()


@functools.cache
def _seconds_to_clear() -> float:
    """How long the device takes to write over its cache once."""
    _clear()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        _clear()
    end.record()
    _wait("cuda")
    return start.elapsed_time(end) / 10 * 1e-3


def _timed_by_device(runner: _Runner, cold: bool) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(runner.clears if cold else 0):
        _clear()
    start.record()
    runner.work()
    end.record()
    runner.events.append((start, end))


def _timed_by_host(runner: _Runner, device: str) -> None:
    _wait(device)
    start = time.perf_counter()
    for _ in range(runner.calls):
        runner.work()
    _wait(device)
    runner.samples.append((time.perf_counter() - start) / runner.calls * 1e3)


def _measured(runner: _Runner, how: How, device: str) -> Measure | str:
    """The median and quartiles; and, where calls are made one by one, the host's time."""
    calls = runner.calls if how == "graph" else 1
    samples = runner.samples + [start.elapsed_time(end) / calls for start, end in runner.events]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    host = None
    if device == "cuda" and how != "graph":
        try:
            host = _host_microseconds(runner)
        except Exception as error:
            return short(error)
    return Measure(middle, "ms", low, high, len(samples), host)


def _host_microseconds(runner: _Runner) -> float:
    """How long a call keeps the host, the device's work left to itself."""
    calls = 10 if runner.seconds < 0.02 else 2
    _wait("cuda")
    start = time.perf_counter()
    for _ in range(calls):
        runner.work()
    taken = time.perf_counter() - start
    _wait("cuda")
    return taken / calls * 1e6


def _memory(work: Work, device: str) -> Measure:
    """The most that is allocated during a call, over what was allocated before it, in bytes."""
    if device != "cuda":
        raise RuntimeError("peak memory is counted on a GPU only")
    # What the first call compiles and keeps is not counted.
    work()
    tidy()
    _wait(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    _wait(device)
    peak = float(torch.cuda.max_memory_allocated() - before)
    return Measure(peak, "bytes", peak, peak, 1)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
