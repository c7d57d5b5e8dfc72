"""A whole run: what was asked is checked, measured, and written as JSON and as a page."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from milepost.bench.groups import GROUPS, default_groups, measure
from milepost.bench.page import page
from milepost.bench.report import Report, joined, machine, read
from milepost.bench.settings import Settings
from milepost.bench.warm import warm as compile_ahead
from milepost.refusal import refuse
from milepost.seams.arguments import did_you_mean


def run(
    groups: Sequence[str], peers: bool = True, out: Path = Path("out/bench"), markdown: Path | None = None,
    stored: Sequence[Path] = (), warm: int | None = None, skip: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure these groups, or put together what was measured before."""
    if stored:
        report = _stored(groups, stored, markdown)
    else:
        report = _measured(list(groups), peers, out, warm, tuple(skip))
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(page(report), encoding="utf-8")
        print(f"the page is {markdown}")


def _stored(groups: Sequence[str], stored: Sequence[Path], markdown: Path | None) -> Report:
    if groups or markdown is None:
        refuse("bench --from: nothing is measured, so give no group, and --markdown FILE for the page to write")
    for path in stored:
        if not path.is_file():
            refuse(f"bench --from {path}: there is no such file; `milepost bench` writes out/bench/bench.json")
    return joined([read(path) for path in stored])


def _measured(groups: list[str], peers: bool, out: Path, warm: int | None, skip: tuple[str, ...]) -> Report:
    for name in groups:
        if name not in GROUPS:
            known = ", ".join(GROUPS)
            refuse(f"bench {name}: no group is called that; there are {known}{did_you_mean(name, GROUPS)}")
        if GROUPS[name].on_gpu and not torch.cuda.is_available():
            refuse(f"bench {name}: needs a CUDA GPU, and there is none here; `milepost bench cpu` needs none")
    names = groups or default_groups()
    device = "cuda" if any(GROUPS[name].on_gpu for name in names) else "cpu"
    settings = Settings(device=device, peers=peers, skip=skip)
    report = Report(machine(device, _command()))
    print(", ".join(f"{name} {words}" for name, words in report.machine.items() if name != "command"), flush=True)
    start = time.perf_counter()
    if device == "cuda":
        compile_ahead(names, settings, min(12, (os.cpu_count() or 4) - 2) if warm is None else warm)
    path = out / "bench.json"
    measure(names, settings, report, path)
    failed = sum(bool(row.failed) for table in report.tables for row in table.rows)
    print(f"{time.perf_counter() - start:.0f} s in all; numbers in {path}; rows with something missing: {failed}")
    return report


def _command() -> str:
    """What was typed, without the folders of the program and of what it writes."""
    words = sys.argv[1:]
    for option in ("--out", "--markdown"):
        while option in words[:-1]:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return shlex.join(["milepost", *words] if words[:1] == ["bench"] else ["python", "-m", "milepost.bench", *words])
