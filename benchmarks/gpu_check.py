"""Everything that only a GPU can show, in one run of a given length, most important first.

    PYTHONPATH=src python benchmarks/gpu_check.py --seconds 280 --out out/gpu

First, together, in processes of their own: reproductions of wrong answers, a fuzz of remembered calls, the GPU tests,
and the compiling of what is timed later. Then, alone on the device, the groups of `milepost bench`, peers at the end.
Every part survives the failure of the others, and is cut off when its time is up; what it has found by then is kept.

In --out: summary.md and summary.json; findings.log, fuzz.log, tests.log and timing.log, the output of each part;
bench.json, which `milepost bench --from` makes the page from, and speed.md, that page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("host", "attention", "decoding", "encoder", "packed", "rotary", "memory", "models")
PEERS = ("attention", "decoding", "packed", "rotary")
"""Groups that are timed once more with the peers alone, when there is time left."""
CALLS, PROCESSES = 2000, 6
"""Calls of the fuzz, all in all, and its processes; each may make half as many again as its share."""
TOGETHER, EXTRA = 0.47, 20.0
"""The share of the time that the first part may take, and the seconds after it that the fuzz has to come to an end."""
RESERVE, WIND_DOWN = 6.0, 12.0
"""Seconds kept for stopping and writing, and before that for timing what has been compared."""


# The parts that run together.


def gpu_tests() -> list[str]:
    """Return the files with tests for a GPU: the core's first, checkpoints last."""
    found = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text("utf-8")]
    found = [path for path in found if "sweeps" not in path.parts]
    return [str(path.relative_to(ROOT)) for path in sorted(found, key=lambda path: ("hf" in path.parts, path.name))]


def commands(tiny: bool) -> dict[str, list[list[str]]]:
    """Return the commands of each part that runs in processes of its own; those of one part share a log."""
    python, test = [sys.executable, "-u", "-m"], ["pytest", "-vv", "--no-header", "-p", "no:cacheprovider"]
    test += ["-p", "no:benchmark"]
    marks = ["-m", "not gpu" if tiny else "gpu"]
    each = 10 if tiny else CALLS * 3 // 2 // PROCESSES
    count = 2 if tiny else PROCESSES
    files = ["tests/bench/test_rotary.py"] if tiny else gpu_tests()
    several = [] if tiny else ["-n", "5"]
    # FlexAttention compiles for each of its cases: they come after all others.
    first, last = ([*python, *test, *several, *marks, "-k", words, *files] for words in ("not flex", "flex"))
    chain = f"{_shell(first)}; test $? -le 1 && {_shell(last)}"
    return {
        "findings": [[*python, *test, *([] if tiny else ["-n", "3"]), *marks, "tests/sweeps/test_stale_on_device.py"]],
        "fuzz": [[*python, "tests.sweeps.memory", "--calls", str(each), "--seed", str(n)] for n in range(count)],
        "tests": [["nice", "-n", "5", "bash", "-c", chain]],
    }


def _shell(words: list[str]) -> str:
    return " ".join(f"'{word}'" for word in words)


class Part:
    """Processes with one log."""

    stdin = subprocess.DEVNULL

    def __init__(self, name: str, commands: list[list[str]], out: Path) -> None:
        self.name, self.begun, self.taken = name, time.monotonic(), 0.0
        self.logs = [out / f".{name}.{n}" if len(commands) > 1 else out / f"{name}.log" for n in range(len(commands))]
        around = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}
        around.setdefault("OMP_NUM_THREADS", "1")
        around["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        self.processes: list[subprocess.Popen[Any]] = []
        for words, log in zip(commands, self.logs, strict=True):
            with log.open("w", encoding="utf-8") as file:
                streams: dict[str, Any] = {"stdin": self.stdin, "stdout": file, "stderr": subprocess.STDOUT}
                self.processes.append(subprocess.Popen(words, env=around, cwd=ROOT, start_new_session=True, **streams))

    def running(self) -> bool:
        return any(each.poll() is None for each in self.processes)

    def text(self) -> str:
        return "\n".join(log.read_text("utf-8", "replace") for log in self.logs)

    def send(self, number: int) -> None:
        """Send a signal to every process and its children."""
        for each in self.processes:
            # The group outlives its leader where a child does.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(each.pid, number)

    def stop(self) -> None:
        """End every process and its children."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.send(number)
            until = time.monotonic() + 1
            while self.running() and time.monotonic() < until:
                time.sleep(0.05)
        self.taken = self.taken or time.monotonic() - self.begun

    def join_logs(self, out: Path) -> None:
        """Make one file of several."""
        if len(self.logs) > 1:
            text = "\n".join(f"=== process {n}\n{log.read_text('utf-8', 'replace')}" for n, log in enumerate(self.logs))
            (out / f"{self.name}.log").write_text(text, encoding="utf-8")
            for log in self.logs:
                log.unlink()
            self.logs = [out / f"{self.name}.log"]


# What the logs have.


def tests_in(text: str) -> dict[str, Any]:
    """Count the tests in pytest's output, whole or cut off, and name those that failed."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        # Alone `file::test PASSED [ 3%]`, with several processes `[gw0] [ 3%] PASSED file::test`.
        match = re.search(r"(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", line)
        other = re.search(r"\] (PASSED|FAILED|ERROR|SKIPPED|XFAIL) (tests/\S+::.+)", line)
        if other:
            found[other[2].strip()] = other[1]
        elif match:
            found[match[1].strip()] = match[2]
    counts = {word: sum(each == word for each in found.values()) for word in dict.fromkeys(found.values())}
    collected = re.findall(r"collected .*|workers \[.*", text)
    failed = [name for name, word in found.items() if word in ("FAILED", "ERROR")]
    return {"counts": counts, "collected": collected, "failed": failed}


def calls_in(text: str) -> dict[str, Any]:
    """Count the calls of the fuzz from the output of each process, whole or cut off."""
    calls = 0
    for part in text.split("=== process"):
        progress = re.findall(r"^(\d+) calls, (\d+) wrong$", part, flags=re.M)
        calls += int(progress[-1][0]) if progress else 0
    lines = [line for line in text.splitlines() if re.match(r"call \d+: |FlexAttention: |Traceback|\w*Error: ", line)]
    wrong = sum(bool(re.match(r"call \d+: |FlexAttention: ", line)) for line in lines)
    return {"calls": calls, "wrong": wrong, "lines": lines[:100]}


def fuzzed(part: Part) -> int:
    """Return the calls so far of all processes."""
    return sum(calls_in(log.read_text("utf-8", "replace"))["calls"] for log in part.logs)


def tables_in(path: Path) -> dict[str, Any]:
    """Return what `bench.json` has: figures in short, bounds that are missed, rows that failed."""
    # Torch is loaded when all else is done.
    from milepost.bench.harness.report import read

    tables: dict[str, Any] = {}
    missed: list[str] = []
    failed: list[str] = []
    for table in read(path).tables if path.is_file() else []:
        title = f"{table.group}: {table.title}"
        tables[title] = {
            row.name: {
                label: [round(each.value, 5), each.unit, each.ratio and round(each.ratio, 3)]
                for label, each in row.measures.items()
            }
            for row in table.rows
        }
        failed += [f"{title}: {table.failed}"] if table.failed else []
        for row in table.rows:
            failed += [f"{title}: {row.name}: {row.failed}"] if row.failed else []
            for label, each in row.measures.items():
                if each.misses(table.ratio):
                    missed.append(f"{title}: {row.name}, {label}: {each.ratio:.3f}, target {each.bound:.3f}")
    return {"tables": tables, "missed": missed, "failed": failed}


def write(out: Path, found: dict[str, Any]) -> None:
    """Write what is known so far as JSON and as Markdown."""
    (out / "summary.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    lines = ["# GPU check", ""]
    for name, each in found.items():
        lines += [f"## {name}", ""]
        if not isinstance(each, dict):
            lines += [str(each), ""]
            continue
        for key, value in each.items():
            if key == "tables":
                for title, rows in value.items():
                    lines += [f"- {title}"]
                    lines += [f"  - {row}: " + ", ".join(f"{k} {v[0]} {v[1]} ({v[2]}×)" for k, v in m.items())
                              for row, m in rows.items()]  # fmt: skip
            elif isinstance(value, list):
                lines += [f"- {key}: {len(value)}", *(f"  - {one}" for one in value)]
            else:
                lines += [f"- {key}: {value}"]
        lines += [""]
    (out / "summary.md").write_text("\n".join(lines), encoding="utf-8")


# Timing, in a process of its own.


def timing(asked: argparse.Namespace) -> None:
    """Compile ahead, wait for a line with the time to end at, then measure group after group."""
    from dataclasses import replace

    import torch

    from milepost.bench.compile_ahead import compile_ahead
    from milepost.bench.harness.clock import Budget
    from milepost.bench.harness.report import Report, machine, read
    from milepost.bench.harness.settings import Settings
    from milepost.bench.run import measure, write_page

    settings = Settings(rounds=asked.rounds, peers="without")
    if asked.tiny:
        from tests.bench.tiny import TINY as settings  # noqa: N811
    else:
        torch.zeros(1, device="cuda")
    if asked.processes:
        # Models take minutes to compile, and come when all others are done.
        ours = [name for name in asked.groups if ":" not in name and name != "models"]
        peers = [name.removesuffix(":peers") for name in asked.groups if ":" in name]
        ahead = Budget(asked.patience)
        compile_ahead(ours, settings, asked.processes, ahead.left())
        if ahead.left() > 5:
            compile_ahead(peers, replace(settings, peers="only"), asked.processes, ahead.left())
        print("compiled", flush=True)
    settings = replace(settings, budget=Budget(float(sys.stdin.readline()) - time.monotonic()))
    path = asked.out / "bench.json"
    command = f"python benchmarks/gpu_check.py --groups {' '.join(asked.groups)} --rounds {asked.rounds}"
    report = read(path) if path.is_file() else Report(machine(settings.device, command))
    for name in asked.groups:
        print(f"group {name}, {settings.budget.left():.0f} s left", flush=True)
        group, _, only = name.partition(":")
        measure([group], replace(settings, peers="only") if only else settings, report, path)
        write_page(report, asked.out / "speed.md")
    print("all groups are done", flush=True)


# The whole.


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=280, help="the length of the whole run")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"))
    parser.add_argument("--together", type=float, help=f"seconds of the first part; {TOGETHER} of all by default")
    parser.add_argument("--groups", nargs="*", default=[*GROUPS, *(f"{name}:peers" for name in PEERS)])
    parser.add_argument("--rounds", type=int, default=7, help="how often each row is timed")
    parser.add_argument("--processes", type=int, default=6, help="processes that compile ahead")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    parser.add_argument("--tiny", action="store_true", help="run every part at small sizes, on a CPU")
    parser.add_argument("--timing", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--patience", type=float, default=120, help=argparse.SUPPRESS)
    return parser.parse_args()


class Timing(Part):
    """The process that times."""

    stdin = subprocess.PIPE

    def __init__(self, asked: argparse.Namespace, groups: list[str], processes: int, patience: float) -> None:
        words = [sys.executable, "-u", "-m", "benchmarks.gpu_check", "--timing", "--out", str(asked.out)]
        words += ["--rounds", str(asked.rounds), "--processes", str(processes), "--patience", str(patience)]
        words += ["--tiny"] if asked.tiny else []
        super().__init__("timing", [[*words, "--groups", *groups]], asked.out)

    def go(self, until: float) -> None:
        """Let it measure until so much of the monotonic clock."""
        given = self.processes[0].stdin
        assert given is not None
        try:
            given.write(f"{until:.1f}\n".encode())
            given.close()
        except OSError as error:
            print(f"timing has ended before it began: {error}", flush=True)


def main() -> int:
    asked = arguments()
    if asked.timing:
        timing(asked)
        return 0
    begun = time.monotonic()
    asked.out = asked.out.resolve()
    parts_of = commands(asked.tiny)
    if asked.dry_run:
        for name, each in parts_of.items():
            print(f"{name}:", *("  " + " ".join(words) for words in each), sep="\n")
        print("timing:", *(f"  {name}" for name in asked.groups), sep="\n")
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    for old in ("bench.json", "speed.md"):
        (asked.out / old).unlink(missing_ok=True)

    ends = begun + asked.seconds - RESERVE
    """When timing is stopped; it ends by itself before, with what it has."""

    def left() -> float:
        return ends - time.monotonic()

    together = begun + (asked.together or asked.seconds * TOGETHER)
    found: dict[str, Any] = {}
    timer = Timing(asked, asked.groups, asked.processes, together - begun - 8)
    parts = {name: Part(name, each, asked.out) for name, each in parts_of.items()}
    ready = False
    # The fuzz has a little longer than the rest.
    while time.monotonic() < together + (EXTRA if parts["fuzz"].running() else 0):
        time.sleep(0.5)
        for part in parts.values():
            if not part.taken and not part.running():
                part.taken = time.monotonic() - part.begun
        if parts["fuzz"].running() and fuzzed(parts["fuzz"]) >= CALLS:
            parts["fuzz"].stop()
        ready = ready or not timer.running() or "compiled" in timer.text()
        if ready and not any(part.running() for part in parts.values()):
            break
    cut = {name: part.running() for name, part in parts.items()}
    # Interrupted, pytest still writes why tests failed.
    for part in parts.values():
        if part.running():
            part.send(signal.SIGINT)
    until = time.monotonic() + 4
    while any(part.running() for part in parts.values()) and time.monotonic() < until:
        time.sleep(0.1)
    for name, part in parts.items():
        part.stop()
        part.join_logs(asked.out)
        numbers = calls_in(part.text()) if name == "fuzz" else tests_in(part.text())
        found[name] = {"seconds": round(part.taken), "cut off": cut[name], **numbers}
        write(asked.out, found)
        print(name, {key: value for key, value in found[name].items() if key != "lines"}, flush=True)
    groups = list(asked.groups)
    timer.go(ends - WIND_DOWN)
    # A process that dies has spoilt its group alone: another goes on after it.
    while left() > 0:
        time.sleep(0.2)
        if not timer.running():
            text = timer.text()
            if "all groups are done" in text:
                break
            last = re.findall(r"^group (\S+),", text, flags=re.M)
            print(f"timing ended early, in {last[-1:]}: {text[-800:]}", flush=True)
            groups = groups[groups.index(last[-1]) + 1 :] if last else groups[1:]
            if not groups or left() < 20:
                break
            (asked.out / "timing.log").rename(asked.out / f".timing.{len(groups)}")
            timer = Timing(asked, groups, 0, 0)
            timer.go(ends - WIND_DOWN)
    timer.stop()
    for old in sorted(asked.out.glob(".timing.*")):
        text = old.read_text("utf-8", "replace") + (asked.out / "timing.log").read_text("utf-8", "replace")
        (asked.out / "timing.log").write_text(text, encoding="utf-8")
        old.unlink()
    found["timing"] = tables_in(asked.out / "bench.json")
    found["seconds"] = round(time.monotonic() - begun)
    write(asked.out, found)
    print((asked.out / "summary.md").read_text("utf-8")[-11000:], flush=True)
    failed = [*found["findings"]["failed"], *found["tests"]["failed"], *found["timing"]["failed"]]
    return int(bool(failed) or found["fuzz"]["wrong"] > 0 or (found["fuzz"]["calls"] < CALLS and not asked.tiny))


if __name__ == "__main__":
    sys.exit(main())
