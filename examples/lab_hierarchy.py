"""Randomized positions: RoPE trained on strings of up to 40 symbols and judged on longer ones (arXiv:2305.16843).

Encoders of 5 layers, 64 wide, with 8 heads, as the authors'; here with RMSNorm and SwiGLU, and without dropout. For
each task one model counts its tokens 0, 1, 2 …, and one has them stand at random places of 0 … 2047; the latter is
judged at random places too, and at evenly spaced ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import milepost as mp
from milepost.lab.statistics.intervals import interval
from milepost.lab.tasks import HIERARCHY, score, trained_on, trivial
from milepost.lab.tasks.run import Losses, side_by_side
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import precision

TASKS = [
    "bucket-sort", "reverse-string", "duplicate-string", "odds-first", "stack-manipulation", "missing-duplicate",
    "even-pairs", "binary-addition",
]  # fmt: skip
"""Those learned within the steps given here, most of them: long answers are learned sooner than a class."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=[*HIERARCHY, "all"], metavar="TASK")
    parser.add_argument("--scheme", default="rope", help="a name or an expression of the lab")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--trained", type=int, default=40, help="the longest string trained on, from 1")
    parser.add_argument("--judged", type=int, nargs="+", default=[40, 100, 200], help="lengths of strings")
    parser.add_argument("--places", type=int, default=2048, help="how many random positions there are")
    parser.add_argument("--count", type=int, default=512, help="strings judged at each length")
    parser.add_argument("--processes", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("out/lab_hierarchy.json"))
    return parser.parse_args(arguments)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model on one task from one seed, and judge it."""
    watch = Losses(named(job))
    task = HIERARCHY[job["task"]]
    recipe = Recipe(
        batch=job["batch"], steps=job["steps"], rate=job["rate"], warmup=min(200, job["steps"] // 5), decay=0.0,
        precision=job["precision"],
    )  # fmt: skip
    shape = Shape(job["width"], job["layers"], job["heads"])
    places = mp.Randomized(job["places"])
    model = trained_on(
        task, job["scheme"], shape, recipe, range(1, job["trained"] + 1), job["seed"],
        places.sample if job["randomized"] else None, job["device"],
        longest=max(job["judged"]), watch=watch,
    )  # fmt: skip
    ways = {"random": places.sample, "even": places.evenly} if job["randomized"] else {"counted": None}
    accuracy: dict[str, dict[int, tuple[float, float]]] = {}
    with precision(recipe, torch.device(job["device"])):
        for name, positions in ways.items():
            accuracy[name] = {
                length: interval(score(model, task, length, job["count"], job["seed"], positions))
                for length in job["judged"]
            }
    return {
        "accuracy": accuracy,
        "trivial": {length: trivial(task, [length], job["count"]) for length in job["judged"]},
        "loss": watch.last(),
        "parameters": model.count(),
        "seconds": watch.seconds(),
    }


def named(job: dict[str, Any]) -> str:
    """What a run is called."""
    return f"{job['task']}, {'randomized' if job['randomized'] else 'counted'}, seed {job['seed']}"


def table(rows: list[dict[str, Any]]) -> str:
    """Accuracies in per cent: a line for each task and length, seeds averaged."""
    ways = ("counted", "random", "even")
    lines = [f"{'accuracy, %':<30}{'length':>8}{'trivial':>9}" + "".join(f"{way:>10}" for way in ways)]
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        for length in of_task[0]["judged"]:
            cells: list[str] = []
            for way in ways:
                means = [row["accuracy"][way][str(length)][0] for row in of_task if way in row["accuracy"]]
                cells.append(f"{100 * sum(means) / len(means):.1f}" if means else "-")
            line = f"{task:<30}{length:>8}{100 * of_task[0]['trivial'][str(length)]:>9.1f}"
            lines.append(line + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run what is asked for and not done yet; what is done is written as it comes."""
    options = vars(options_of(arguments))
    out, processes = options.pop("out"), options.pop("processes")
    tasks, seeds = options.pop("tasks"), options.pop("seeds")
    jobs: list[dict[str, Any]] = [
        options | {"seed": seed, "task": task, "randomized": randomized}
        for seed in seeds
        for task in (HIERARCHY if "all" in tasks else tasks)
        for randomized in (False, True)
    ]
    rows: list[dict[str, Any]] = []
    for row in side_by_side(run, jobs, processes, out):
        rows.append(row)
        longest = str(max(row["judged"]))
        last = ", ".join(f"{way} {by_length[longest][0]:.1%}" for way, by_length in row["accuracy"].items())
        print(f"{named(row)}: {last} at {longest}, loss {row['loss']:.3f}, {row['seconds']:.0f} s", flush=True)
    print(f"\n{table(rows)}\n\nwritten: {out}")
    return rows


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; what was done is kept, and the same command does the rest")
