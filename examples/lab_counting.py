"""Counting with CoPE: programs of up to 512 statements, and what a variable holds at their end (arXiv:2405.18719).

Decoders of 4 layers, 256 wide, with 4 heads, that see ten thousand programs a hundred times, as the authors'; here with
RMSNorm and SwiGLU, and without dropout. Published errors with 3 and 5 variables: absolute 67.6 % and 71.5 %, relative
17.8 % and 22.4 %, CoPE 1.2 % and 7.4 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from milepost.lab.statistics.intervals import interval
from milepost.lab.tasks import Counting, score, trained_on, trivial
from milepost.lab.tasks.run import Losses, side_by_side
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import precision

SCHEMES = {
    "absolute": "Learned({block}, width)",
    "relative": "Shaw(dim, reach={block} - 1, values=False)",
    "cope": "Cope(dim, {positions})",
}
"""The three rows of the paper; any other name or expression of the lab can be given too."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variables", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--programs", type=int, default=10_000, help="seen again every epoch; 0: fresh at every step")
    parser.add_argument("--steps", type=int, default=15_600, help="a hundred epochs, as the authors'")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compiled", action="store_true", help="torch.compile: a slow start, then faster")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--block", type=int, default=512, help="tokens of a program, at most; the rest is cut off")
    parser.add_argument("--positions", type=int, help="rows of CoPE's table; block + 1 if not given")
    parser.add_argument("--statements", type=int, nargs=2, default=[3, 512], help="of a program: least and most")
    parser.add_argument("--count", type=int, default=1024, help="programs judged, over all lengths")
    parser.add_argument("--lengths", type=int, default=32, help="how many lengths they are spread over")
    parser.add_argument("--processes", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("out/lab_counting.json"))
    return parser.parse_args(arguments)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one scheme with one number of variables from one seed, and judge it."""
    watch = Losses(named(job))
    task = Counting(job["variables"], job["block"])
    recipe = Recipe(
        batch=job["batch"], steps=job["steps"], rate=job["rate"], warmup=min(400, job["steps"] // 5), decay=0.0,
        precision=job["precision"], compiled=job["compiled"],
    )  # fmt: skip
    least, most = job["statements"]
    positions = job["positions"] or job["block"] + 1
    scheme: str = job["scheme"]
    scheme = SCHEMES.get(scheme, scheme).format(block=job["block"], positions=positions)
    shape = Shape(job["width"], job["layers"], job["heads"])
    model = trained_on(
        task, scheme, shape, recipe, range(least, most + 1), job["seed"], device=job["device"],
        examples=job["programs"] or None, watch=watch,
    )  # fmt: skip
    lengths = [least + round(n * (most - least) / max(1, job["lengths"] - 1)) for n in range(job["lengths"])]
    each = max(1, job["count"] // len(lengths))
    with precision(recipe, torch.device(job["device"])):
        found = {length: score(model, task, length, each, job["seed"]) for length in lengths}
    right, half = interval(torch.cat(list(found.values())))
    return {
        "error": 1 - right,
        "half": half,
        "trivial": 1 - trivial(task, lengths, each),
        "by_length": {length: 1 - float(scores.mean()) for length, scores in found.items()},
        "loss": watch.last(),
        "losses": [round(float(part.mean()), 4) for part in torch.stack(watch.losses).split(100)],
        "parameters": model.count(),
        "seconds": watch.seconds(),
    }


def named(job: dict[str, Any]) -> str:
    """What a run is called."""
    return f"{job['scheme']}, {job['variables']} variables, seed {job['seed']}"


def table(rows: list[dict[str, Any]]) -> str:
    """Errors in per cent: a line for each scheme, a column for each number of variables, seeds averaged."""
    columns = sorted({row["variables"] for row in rows})
    lines = [f"{'error, %':<28}" + "".join(f"{f'{n} variables':>18}" for n in columns)]
    for name in dict.fromkeys(row["scheme"] for row in rows):
        cells: list[str] = []
        for n in columns:
            found = [row for row in rows if (row["scheme"], row["variables"]) == (name, n)]
            mean = sum(100 * row["error"] for row in found) / max(1, len(found))
            half = sum((100 * row["half"]) ** 2 for row in found) ** 0.5 / max(1, len(found))
            cells.append(f"{mean:10.1f} ± {half:4.1f}" if found else "-")
        lines.append(f"{name:<28}" + "".join(f"{cell:>18}" for cell in cells))
    same = {row["variables"]: 100 * row["trivial"] for row in rows}
    lines.append(f"{'always the same answer':<28}" + "".join(f"{same[n]:11.1f}{'':7}" for n in columns).rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run what is asked for and not done yet; what is done is written as it comes."""
    options = vars(options_of(arguments))
    out, processes = options.pop("out"), options.pop("processes")
    several = {name: options.pop(name) for name in ("seeds", "variables", "schemes")}
    jobs: list[dict[str, Any]] = [
        options | {"seed": seed, "variables": variables, "scheme": scheme}
        for seed in several["seeds"]
        for variables in several["variables"]
        for scheme in several["schemes"]
    ]
    rows: list[dict[str, Any]] = []
    for row in side_by_side(run, jobs, processes, out):
        rows.append(row)
        line = f"error {row['error']:.1%}, loss {row['loss']:.3f}, {row['seconds']:.0f} s"
        print(f"{named(row)}: {line}", flush=True)
    print(f"\n{table(rows)}\n\nwritten: {out}")
    return rows


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; what was done is kept, and the same command does the rest")
