"""A whole run: groups are checked, measured, and written as JSON and as a page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import torch

from milepost.bench.compile_ahead import compile_ahead
from milepost.bench.harness.clock import Budget, Stopwatch, short, tidy, wait
from milepost.bench.harness.contest import Contest
from milepost.bench.harness.page import page
from milepost.bench.harness.report import Report, Table, joined, machine, read
from milepost.bench.harness.settings import Settings
from milepost.bench.harness.tables import printed
from milepost.bench.suites.groups import GROUPS, contests_of
from milepost.refusal import refuse
from milepost.seams.arguments import did_you_mean

AT_ONCE = partial(print, flush=True)
"""A run takes minutes, and may be cut short."""


def run(
    groups: Sequence[str], peers: bool = True, out: Path = Path("out/bench"), markdown: Path | None = None,
    stored: Sequence[Path] = (), warm: int | None = None, skip: Sequence[str] = (), rounds: int = 15,
    seconds: float | None = None,
) -> None:  # fmt: skip
    """Measure these groups, or put together what was measured before."""
    if stored:
        if groups or markdown is None:
            refuse("bench --from: nothing is measured, so give no group, and --markdown FILE for the page to write")
        for path in stored:
            if not path.is_file():
                refuse(f"bench --from {path}: there is no such file; `milepost bench` writes out/bench/bench.json")
        report = joined([read(path) for path in stored])
    else:
        names = _checked(list(groups))
        device = "cuda" if any(GROUPS[name].on_gpu for name in names) else "cpu"
        settings = Settings(
            device, rounds=rounds, peers="with" if peers else "without", skip=tuple(skip), budget=Budget(seconds or inf)
        )
        report = _measured(names, settings, out / "bench.json", warm)
    if markdown is not None:
        write_page(report, markdown)


def write_page(report: Report, to: Path) -> None:
    """Write the page of a report."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(page(report, [(name, each.title, each.note) for name, each in GROUPS.items()]), encoding="utf-8")
    print(f"the page is {to}")


def _checked(groups: list[str]) -> list[str]:
    """Return the groups to measure; without a name those that need a GPU where there is one, else the others."""
    for name in groups:
        if name not in GROUPS:
            known = ", ".join(GROUPS)
            refuse(f"bench {name}: no group is called that; there are {known}{did_you_mean(name, GROUPS)}")
        if GROUPS[name].on_gpu and not torch.cuda.is_available():
            refuse(f"bench {name}: needs a CUDA GPU, and there is none here; `milepost bench cpu` needs none")
    return groups or [name for name, group in GROUPS.items() if group.on_gpu == torch.cuda.is_available()]


def _measured(names: list[str], settings: Settings, path: Path, warm: int | None) -> Report:
    report = Report(machine(settings.device, _command()))
    print(", ".join(f"{name} {words}" for name, words in report.machine.items() if name != "command"), flush=True)
    watch = Stopwatch()
    if settings.device == "cuda":
        compile_ahead(names, settings, min(12, (os.cpu_count() or 4) - 2) if warm is None else warm)
    measure(names, settings, report, path)
    failed = sum(bool(row.failed) for table in report.tables for row in table.rows)
    print(f"{watch.seconds():.0f} s in all; numbers in {path}; rows with something missing: {failed}")
    return report


def measure(
    names: Sequence[str], settings: Settings, report: Report, path: Path | None = None,
    show: Callable[[str], None] = AT_ONCE,
) -> Report:  # fmt: skip
    """Run every contest of these groups until the time is up. JSON is written after each: a crash loses one table."""
    for name in names:
        watch = Stopwatch()
        for contest in contests_of(name, settings):
            own = settings if GROUPS[name].on_gpu else replace(settings, device="cpu")
            table = _run(contest, own) if own.budget.left() > 0 else None
            if table is None or (own.budget.left() <= 0 and not any(row.measures for row in table.rows)):
                show(f"{name}: no time left for {contest.title}")
                continue
            report.tables.append(table)
            show(printed(table))
            if path is not None:
                report.write(path)
            tidy()
            wait(settings.device)
        show(f"{name}: {watch.seconds():.0f} s")
    return report


def _run(contest: Contest, settings: Settings) -> Table:
    try:
        return contest.run(settings.device, settings.rounds, settings.budget)
    except Exception as error:
        table = Table(contest.group, contest.title, contest.limit, contest.ratio, [])
        table.failed = short(error)
        return table


def _command() -> str:
    """Return the command as typed, without the folders of the program and of what it writes."""
    words = sys.argv[1:]
    for option in ("--out", "--markdown"):
        while option in words[:-1]:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return shlex.join(["milepost", *words] if words[:1] == ["bench"] else ["python", "-m", "milepost.bench", *words])
