"""Train RoPE with randomized positions on strings of up to 40 symbols, and judge longer ones (arXiv:2305.16843).

    python examples/lab_hierarchy.py --jobs 16

Encoders of 5 layers, 64 wide, with 8 heads, as the authors'; here with RMSNorm and SwiGLU, and without dropout. For
each task one model counts its tokens 0, 1, 2 …, and one has random positions of 0 … 2047; the latter is judged at
random positions and at evenly spaced ones. Rerun the command to resume.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from milepost.lab.cells.on_task import COUNTED, EVEN, RANDOM, OnTask
from milepost.lab.cells.store import Store
from milepost.lab.command.experiment import worked
from milepost.lab.judging.scoring import Judging
from milepost.lab.tasks import HIERARCHY, trivial
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe

TASKS = [
    "bucket-sort", "reverse-string", "duplicate-string", "odds-first", "stack-manipulation", "missing-duplicate",
    "even-pairs", "binary-addition",
]  # fmt: skip
"""Those learned within the steps given here, most of them: long answers are learned sooner than a class."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the page above as it is."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
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
    parser.add_argument("--jobs", type=int, default=1, help="models at the same time")
    parser.add_argument("--out", type=Path, default=Path("out/hierarchy"), help="scores and checkpoints")
    return parser.parse_args(arguments)


def cells_of(asked: argparse.Namespace) -> dict[str, list[OnTask]]:
    """Return, by task, a cell that counts its tokens and one with random positions for each seed."""
    for name in ("places", "count"):
        if getattr(asked, name) < 1:
            raise ValueError(f"--{name} {getattr(asked, name)}: give at least 1")
    judging = Judging(longest=max(asked.judged), answers=asked.count)
    shape = Shape(asked.width, asked.layers, asked.heads)
    recipe = Recipe(
        batch=asked.batch, steps=asked.steps, rate=asked.rate, warmup=min(200, asked.steps // 5), decay=0.0,
        precision=asked.precision,
    )  # fmt: skip
    return {
        name: [
            OnTask(
                asked.scheme, seed, shape, recipe, judging, "", on=HIERARCHY[name], lengths=(1, asked.trained),
                judged=tuple(dict.fromkeys(asked.judged)), places=places,
            )
            for seed in asked.seeds
            for places in (0, asked.places)
        ]
        for name in (HIERARCHY if "all" in asked.tasks else asked.tasks)
    }  # fmt: skip


def table(store: Store, cells: dict[str, list[OnTask]]) -> str:
    """Accuracies in per cent: a line for each task and length, seeds averaged."""
    ways = (COUNTED, RANDOM, EVEN)
    lines = [f"{'accuracy, %':<30}{'length':>8}{'trivial':>9}" + "".join(f"{way:>10}" for way in ways)]
    for name, own in cells.items():
        scores = [score for cell in own for score in store.scores(cell.key)]
        for length in own[0].judged:
            line = f"{name:<30}{length:>8}{100 * trivial(own[0].on, [length], own[0].judging.answers):>9.1f}"
            for way in ways:
                means = [score.mean for score in scores if (score.protocol, score.length) == (way, length)]
                line += f"{100 * sum(means) / len(means):>10.1f}"
            lines.append(line)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and judge what is asked for and not done yet, and print the table."""
    asked = options_of(arguments)
    cells = cells_of(asked)
    store = worked([cell for own in cells.values() for cell in own], asked.out, asked.device, asked.jobs)
    print(f"\n{table(store, cells)}\n\nwritten: {store.path}")
    store.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; what was done is kept, and the same command does the rest")
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"lab_hierarchy: {error}")
