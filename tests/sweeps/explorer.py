"""How fast the explorer's page follows a slider, what it weighs, and whether it grows: the tables of docs/explorer.md.

    python -m tests.sweeps.explorer

Times are the page's own: from the slider's event to the frame after the view is drawn. All five views are shown, and each change is
made when the last one is drawn. Memory is read after the page's garbage is collected.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from milepost.bench.harness.clock import Stopwatch
from milepost.explore.server import told
from milepost.explore.server.export import export, of_link
from milepost.explore.server.page import MORE_SCRIPTS, SCRIPTS, STYLES, html, static
from milepost.explore.stories.all import STORIES
from tests.explore.server.browsing import still, windows

SCHEMES = ("Rope(64), causal", "Rope(64, stretch=Yarn(8, 4096)), causal")
CHANGE = """(value) => new Promise((done) => {
    const slider = document.querySelector(".card [data-control=theta] input[type=range]"), found = {};
    const from = performance.now();
    const heard = (event) => requestAnimationFrame(() => {
        found[event.detail] = performance.now() - from;
        if (["score", "weights", "maps", "angles", "distances"].some((each) => !(each in found))) return;
        document.removeEventListener("computed", heard);
        done(found);
    });
    document.addEventListener("computed", heard);
    slider.value = value;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""
TARGETS = {8192: 100, 131_072: 300}
"""Milliseconds for curves, by length; maps have 300."""
KIB, MIB = 1 << 10, 1 << 20


@contextmanager
def explorer() -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run the command, as a user does."""
    command = [sys.executable, "-m", "milepost", "explore", "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split("milepost explore: ")[1].strip()
    finally:
        process.terminate()
        process.wait()


def composed(link: str, length: int) -> str:
    return f"{link}#{urlencode([('compose', ''), *(('s', each) for each in SCHEMES), ('length', length)])}"


def times(open_: Any, link: str, length: int, changes: int) -> list[dict[str, float]]:
    """Return the milliseconds of each view at each change, after three that warm up."""
    window = open_(composed(link, length))
    page = window.page
    page.wait_for_selector(".card [data-control=theta]")
    still(page)
    found: list[dict[str, float]] = []
    for n in range(changes + 3):
        ends = [
            float(page.locator(".card [data-control=theta] input").first.get_attribute(each)) for each in ("min", "max")
        ]
        found.append(page.evaluate(CHANGE, ends[0] + (ends[1] - ends[0]) * (0.1 + 0.8 * (n * 0.618 % 1))))
        still(page)
    assert window.wrong == []
    page.context.close()
    return found[3:]


def memory(process: subprocess.Popen[str], open_: Any, link: str, changes: int) -> list[tuple[int, float, float, int]]:
    """Return changes so far, MiB of the server and of the page, and the page's nodes."""
    window = open_(composed(link, 8192))
    page = window.page
    page.wait_for_selector(".card [data-control=theta]")
    still(page)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    rows: list[tuple[int, float, float, int]] = []
    for n in range(changes + 1):
        if n % (changes // 5) == 0:
            session.send("HeapProfiler.collectGarbage")
            told_ = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
            status = Path(f"/proc/{process.pid}/status").read_text()
            server = int(status.split("VmRSS:")[1].split()[0]) / KIB
            rows.append((n, server, told_["JSHeapUsedSize"] / MIB, int(told_["Nodes"])))
        page.evaluate(CHANGE, 3 + n * 0.618 % 1)
        still(page)
    assert window.wrong == []
    return rows


def weight() -> tuple[int, int]:
    """Return the bytes of the page with all that it loads, as they are and by gzip."""
    start = {"stories": [told.story(each) for each in STORIES]}
    files = [html("en"), json.dumps(start), *(static(each) or "" for each in (*STYLES, *SCRIPTS, *MORE_SCRIPTS))]
    return sum(len(each.encode()) for each in files), sum(len(gzip.compress(each.encode())) for each in files)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--changes", type=int, default=500)
    asked.add_argument("--times", type=int, default=30)
    given = asked.parse_args()
    whole, packed = weight()
    print(f"The page: {whole / 1000:.0f} KB, {packed / 1000:.0f} KB by gzip.\n", flush=True)
    with explorer() as (process, link), windows() as open_:
        print(
            "| ms, median and slowest tenth | "
            + " | ".join(f"{each:,} tokens" for each in TARGETS)
            + " |\n|---|---:|---:|"
        )
        found = {length: times(open_, link, length, given.times) for length in TARGETS}
        for view in ("score", "distances", "angles", "weights", "maps"):
            cells: list[str] = []
            for rows in found.values():
                ordered = sorted(row[view] for row in rows)
                cells.append(f"{statistics.median(ordered):.0f}, {ordered[int(0.9 * len(ordered))]:.0f}")
            print(f"| {view} | " + " | ".join(cells) + " |", flush=True)
        print("\n| changes | server, MiB | page, MiB | nodes of the page |\n|---:|---:|---:|---:|")
        for row in memory(process, open_, link, given.changes):
            print(f"| {row[0]} | {row[1]:.0f} | {row[2]:.1f} | {row[3]:,} |", flush=True)
    print("\n| exported | KB | settings | seconds |\n|---|---:|---:|---:|")
    named: list[tuple[str, Any]] = [(each.name, lambda each=each: export(each)) for each in STORIES]
    schemes = composed("", 8192)
    story, set_, guessed = of_link(schemes, STORIES)
    for name, make in [*named, ("two schemes", lambda: export(story, set_, guessed=guessed))]:
        watch = Stopwatch()
        made = make()
        print(
            f"| {name} | {len(made.html.encode()) / 1000:.0f} | {made.settings} | {watch.seconds():.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
