"""Attention over several processes beside that of one: every method by every way, texts of every shape, compositions.

    python -m tests.sweeps.parallel [--out docs/sweeps/parallel.md]

Outputs and all gradients, in float64, on gloo. `make sweep-parallel` writes the page; `make test` runs a sample.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import time
from collections import Counter, defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import milepost as mp
from milepost import causal, window
from milepost.parallel import Layout, pairs
from tests.cases import CASES
from tests.parallel import jobs
from tests.parallel.world import World

WAYS = ("gather", "ring", "heads")
RANKS = (2, 4)


class Sweep:
    """What came out, by what was asked."""

    def __init__(self) -> None:
        self.worlds = {n: World(n) for n in RANKS}
        self.tally: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.refusals: Counter[str] = Counter()
        self.worst, self.wrong = 0.0, list[str]()

    def ask(self, row: str, how: str, ranks: int, job: Any, **given: Any) -> None:
        """Run one case, and write down what came out; what hung or died leaves a new group behind."""
        try:
            found = self.worlds[ranks].run(job, how=how, **given)
        except AssertionError as error:
            self.tally[row, how]["wrong"] += 1
            self.wrong.append(f"{row}, {how}, {ranks} ranks, {given}: {str(error).strip().splitlines()[-1]}")
            self.worlds[ranks].close()
            self.worlds[ranks] = World(ranks)
            return
        self.tally[row, how]["refused" if found[0].refusal else "same"] += 1
        self.worst = max(self.worst, *(each.apart for each in found))
        if found[0].refusal:
            self.refusals[found[0].refusal.partition("): ")[2]] += 1

    def table(self, rows: list[str], head: str) -> list[str]:
        """Return a table of rows by ways."""
        lines = [f"| {head} | {' | '.join(WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
        for row in rows:
            cells = (", ".join(f"{n} {what}" for what, n in self.tally[row, how].items()) for how in WAYS)
            lines.append(f"| {row} | {' | '.join(cells)} |")
        return [*lines, ""]


def busiest(layout: Layout, work: torch.Tensor) -> float:
    """Return the pairs of the busiest rank over the mean."""
    sums = [float(sum(work[slice(*span)].sum() for span in spans)) for spans in layout.spans]
    return max(sums) * layout.ranks / sum(sums)


def balance() -> list[str]:
    """Return a table of how even the work is."""
    t, drawn = 131_072, random.Random(0)
    lengths: list[int] = []
    while sum(lengths) < t:
        lengths.append(min(drawn.choice((511, 1024, 3001, 8192, 20_000)), t - sum(lengths)))
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    whole, packed = pairs(mp.Scheme(causal), t), pairs(mp.Scheme(causal), t, documents)
    windowed = pairs(mp.Scheme(window(4096)), t)
    rows = {
        "causal, contiguous": lambda n: busiest(Layout.contiguous(t, n), whole),
        "causal, head-tail": lambda n: busiest(Layout.head_tail(t, n), whole),
        "window(4096), contiguous": lambda n: busiest(Layout.contiguous(t, n), windowed),
        f"{len(lengths)} documents, contiguous": lambda n: busiest(Layout.contiguous(t, n), packed),
        f"{len(lengths)} documents, head-tail": lambda n: busiest(Layout.head_tail(t, n), packed),
        f"{len(lengths)} documents, head-tail of each": lambda n: busiest(Layout.of_documents(lengths, n), packed),
        f"{len(lengths)} documents, by work (blocks of 512)": lambda n: busiest(
            Layout.by_work(packed, n, block=512), packed
        ),
    }
    lines = ["| layout of 131,072 tokens | 2 ranks | 4 | 8 |", "|---|---|---|---|"]
    return [*lines, *(f"| {row} | {' | '.join(f'{of(n):.3f}' for n in (2, 4, 8))} |" for row, of in rows.items()), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out, began, sweep = parser.parse_args().out, time.monotonic(), Sweep()
    for ranks in RANKS:
        for how in WAYS:
            for name in CASES:
                for layout in jobs.LAYOUTS:
                    sweep.ask(name, how, ranks, jobs.method, name=name, layout=layout)
            for shape in jobs.SHAPES if how == "gather" else jobs.SHAPES.keys() - jobs.GATHERED:
                for name in jobs.SHAPED:
                    sweep.ask(shape, how, ranks, jobs.shaped, name=name, shape=shape)
            for name in jobs.MORE:
                sweep.ask(name, how, ranks, jobs.more, name=name)
            for number in range(30):
                sweep.ask("compositions", how, ranks, jobs.composed, number=number, layout="head-tail")
            print(ranks, how, f"{time.monotonic() - began:.0f} s", flush=True)
    for world in sweep.worlds.values():
        world.close()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    total = sum(map(Counter, sweep.tally.values()), Counter[str]())
    came_out = ", ".join(f"{n:,} {what}" for what, n in total.items())
    page = [
        "# Attention over several processes, beside that of one",
        "",
        f"`make sweep-parallel`, {datetime.now(timezone.utc):%Y-%m-%d}, commit {commit}, torch {torch.__version__}, "
        f"gloo, 2 and 4 processes on two cores, {time.monotonic() - began:.0f} seconds.",
        "",
        f"{sum(total.values()):,} cases: {came_out}. Same: outputs and the gradients of q, k, v and all weights are "
        f"within 1e-10 of one process's, in float64; the largest difference is {sweep.worst:.0e}.",
        "",
        *(f"- WRONG: {each}" for each in sweep.wrong),
        *(["## What is refused", "", "| reason, and what to use | cases |", "|---|---|"] if sweep.refusals else []),
        *(f"| {reason} | {n} |" for reason, n in sorted(sweep.refusals.items())),
        "",
        "## By method",
        "",
        "2 and 4 ranks, contiguous and head-tail: four cases each, of 22 tokens.",
        "",
        *sweep.table([*CASES], "method"),
        "## By shape",
        "",
        f"2 and 4 ranks, {len(jobs.SHAPED)} methods: {', '.join(jobs.SHAPED)}.",
        "",
        *sweep.table([*jobs.SHAPES], "shape"),
        "## Compositions",
        "",
        "Two cases each, and 30 that are drawn by their numbers, on 2 and 4 ranks.",
        "",
        *sweep.table([*jobs.MORE, "compositions"], "composition"),
        "## How even the work is",
        "",
        "Pairs that the busiest rank computes, over the mean of all.",
        "",
        *balance(),
    ]
    text = "\n".join(page)
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
