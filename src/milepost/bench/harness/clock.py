"""Timing contenders on one device: they take turns, and a contender that fails is left out with its reason.

The only timer of `milepost bench` and of `benchmarks/`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from milepost.bench.harness.report import Measure

Work = Callable[[], object]
How = Literal["cold", "burst", "graph", "memory"]
"""cold: calls in a row without waiting, by the device's clock, its cache cleared before each, as often as it takes the
host to be ahead of it.
burst: many calls, then one wait, by the host's clock: the cost of a call for its caller, host or device.
graph: calls recorded in a CUDA graph. memory: the peak of what is allocated during a call."""
CACHE = 256 << 20
"""Bytes that are written between two calls, more than the device caches."""
SLOW = 2.0
"""Seconds from which on one call is the figure."""
SHARE = 0.4
"""Seconds that one contender may take up in a race; a slower one sits some rounds out."""
LEAST = 3
"""Rounds that every contender runs in."""
WARM = 6
"""Calls before one is timed, where they are quick: milepost records the third of a kind, and replays those after."""
BURST = 10e-3
"""Seconds that a burst of calls takes, about."""
GRACE = 8.0
"""Seconds after a run's time is up in which contenders that have been compared are still timed, in the least rounds."""
AHEAD = 128
"""How often the device's cache is cleared at the most, so that the host is ahead of it when a call begins."""


class Stopwatch:
    """Seconds since it was made, with all work of the device done at both ends."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        wait(device)
        self.begun = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds until the device is done."""
        wait(self.device)
        return self.seconds_of_host()

    def seconds_of_host(self) -> float:
        """Return the seconds until now, without waiting for the device."""
        return time.perf_counter() - self.begun


@dataclass(frozen=True)
class Budget:
    """How long a run may take: so many seconds from `watch` on."""

    seconds: float = math.inf
    watch: Stopwatch = field(default_factory=Stopwatch)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - self.watch.seconds_of_host()

    def check(self, grace: float = 0.0) -> None:
        """Raise TimeoutError where none are left, nor of the grace."""
        if self.left() <= -grace:
            raise TimeoutError(f"the {self.seconds:.0f} seconds of this run are up")


def wait(device: str) -> None:
    """Wait until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


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
    samples: list[float] = field(default_factory=list[float])
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(
        default_factory=list[tuple[torch.cuda.Event, torch.cuda.Event]]
    )


def short(error: BaseException) -> str:
    """Return an error in one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def tidy() -> None:
    """Free what a failed contender left allocated."""
    gc.collect()
    # A device that has failed for good fails here, too, and the rows that follow report it.
    with contextlib.suppress(Exception):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def race(
    works: dict[str, Work], how: How, device: str, rounds: int, budget: Budget | None = None
) -> dict[str, Measure | str]:
    """Return the median of each contender with its quartiles, in milliseconds or bytes; or why there is none."""
    found: dict[str, Measure | str] = {}
    runners: dict[str, _Runner] = {}
    budget = budget or Budget()
    for name, work in works.items():
        try:
            budget.check(GRACE)
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
        if number < LEAST or budget.left() > 0:
            _round({name: each for name, each in runners.items() if number % each.every == 0}, how, device, found)
    wait(device)
    for name, runner in runners.items():
        if name not in found:
            found[name] = _measured(runner, how, device)
    return found


def _tried(work: Work, device: str) -> float:
    """Return the seconds of a call after others: the first may compile, and so may the second."""
    seconds = 0.0
    for number in range(WARM + 2):
        watch = Stopwatch(device)
        work()
        seconds = watch.seconds()
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
        # The device's clock starts as the call begins: a host that is behind would be timed instead.
        clear = _seconds_to_clear()
        runner.clears = max(1, min(AHEAD, math.ceil(2 * _host_microseconds(runner) * 1e-6 / clear)))
    elif how == "burst" and device == "cuda":
        runner.calls = max(1, min(100, int(BURST / runner.seconds)))
    wanted = max(LEAST, min(rounds, int(SHARE / (runner.seconds * runner.calls + 1e-9))))
    runner.every = max(1, rounds // wanted)
    return runner


def _graphed(work: Work, calls: int) -> Work:
    """Return the replay of so many calls of it from one graph."""
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
    """Run each contender once. On a GPU nothing is waited for until the times are read, after the race."""
    for name, runner in runners.items():
        if name in found:
            continue
        try:
            if device == "cuda" and how != "burst":
                _timed_by_device(runner, cold=how == "cold")
            else:
                watch = Stopwatch(device)
                for _ in range(runner.calls):
                    runner.work()
                runner.samples.append(watch.seconds() / runner.calls * 1e3)
        except Exception as error:
            found[name] = short(error)
            tidy()


@functools.cache
def _scratch() -> torch.Tensor:
    """Return what is written over to clear the device's cache."""
    return torch.empty(CACHE, dtype=torch.int8, device="cuda")


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


@functools.cache
def _seconds_to_clear() -> float:
    """Return how long the device takes to write over its cache once."""
    _scratch().zero_()
    start, end = _events()
    start.record()
    for _ in range(10):
        _scratch().zero_()
    end.record()
    wait("cuda")
    return start.elapsed_time(end) / 10 * 1e-3


def _timed_by_device(runner: _Runner, cold: bool) -> None:
    start, end = _events()
    for _ in range(runner.clears if cold else 0):
        _scratch().zero_()
    start.record()
    runner.work()
    end.record()
    runner.events.append((start, end))


def _measured(runner: _Runner, how: How, device: str) -> Measure | str:
    """Return the median and quartiles; and, where calls are made one by one, the host's time."""
    calls = runner.calls if how == "graph" else 1
    try:
        samples = runner.samples + [start.elapsed_time(end) / calls for start, end in runner.events]
        low, middle, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
        host = _host_microseconds(runner) if device == "cuda" and how != "graph" else None
    except Exception as error:
        return short(error)
    return Measure(middle, "ms", low, high, len(samples), host)


def _host_microseconds(runner: _Runner) -> float:
    """Return how long a call occupies the host; the device's work is not waited for."""
    calls = 10 if runner.seconds < 0.02 else 2
    watch = Stopwatch("cuda")
    for _ in range(calls):
        runner.work()
    taken = watch.seconds_of_host()
    wait("cuda")
    return taken / calls * 1e6


def _memory(work: Work, device: str) -> Measure:
    """Return the peak allocated during a call, over what was allocated before it, in bytes."""
    if device != "cuda":
        raise RuntimeError("peak memory is counted on a GPU only")
    # What the first call compiles and keeps is not counted.
    work()
    tidy()
    wait(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait(device)
    peak = float(torch.cuda.max_memory_allocated() - before)
    return Measure(peak, "bytes", peak, peak, 1)
