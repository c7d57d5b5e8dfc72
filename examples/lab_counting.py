"""Count with CoPE: programs of up to 512 statements, and the value of a variable at their end (arXiv:2405.18719).

    python examples/lab_counting.py --jobs 6 --compiled --precision bfloat16

Decoders of 4 layers, 256 wide, with 4 heads, that see ten thousand programs a hundred times, as the authors'; here with
RMSNorm and SwiGLU, and without dropout. Published errors with 3 and 5 variables: absolute 67.6 % and 71.5 %, relative
17.8 % and 22.4 %, CoPE 1.2 % and 7.4 %. Rerun the command to resume.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from milepost.lab.cells.on_task import OnTask
from milepost.lab.cells.store import Store
from milepost.lab.command.experiment import worked
from milepost.lab.judging.scoring import Judging
from milepost.lab.statistics.intervals import interval
from milepost.lab.tasks import Counting, trivial
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe

SCHEMES = {
    "absolute": "Learned({block}, width)",
    "relative": "Shaw(dim, reach={block} - 1, values=False)",
    "cope": "Cope(dim, {positions})",
}
"""The three rows of the paper; any other name or expression of the lab can be given too."""
SPREAD = 32
"""How many lengths the judged programs are spread over."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the page above as it is."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
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
    parser.add_argument("--count", type=int, default=1024, help="about how many programs are judged, over all lengths")
    parser.add_argument("--jobs", type=int, default=1, help="models at the same time")
    parser.add_argument("--out", type=Path, default=Path("out/counting"), help="scores and checkpoints")
    return parser.parse_args(arguments)


def cells_of(asked: argparse.Namespace) -> dict[tuple[str, int], list[OnTask]]:
    """By scheme and number of variables, one cell a seed."""
    for name in ("count", "block", "positions"):
        if getattr(asked, name) is not None and getattr(asked, name) < 1:
            raise ValueError(f"--{name} {getattr(asked, name)}: give at least 1")
    least, most = asked.statements
    if least > most:
        raise ValueError(f"--statements {least} {most}: the least comes first")
    sizes = {"block": asked.block, "positions": asked.positions or asked.block + 1}
    named = {name: text.format(**sizes) for name, text in SCHEMES.items()}
    spread = sorted({least + round(n * (most - least) / (SPREAD - 1)) for n in range(SPREAD)})
    judging = Judging(longest=asked.block, answers=max(1, asked.count // len(spread)))
    shape = Shape(asked.width, asked.layers, asked.heads)
    recipe = Recipe(
        batch=asked.batch, steps=asked.steps, rate=asked.rate, warmup=min(400, asked.steps // 5), decay=0.0,
        precision=asked.precision, compiled=asked.compiled,
    )  # fmt: skip

    def cell(scheme: str, variables: int, seed: int) -> OnTask:
        text = named.get(scheme, scheme)
        task = Counting(variables, asked.block)
        return OnTask(
            text, seed, shape, recipe, judging, "", on=task, lengths=(least, most), judged=tuple(spread),
            examples=asked.programs or None,
        )  # fmt: skip

    return {
        (scheme, variables): [cell(scheme, variables, seed) for seed in asked.seeds]
        for scheme in asked.schemes
        for variables in asked.variables
    }


def errors(store: Store, cells: Sequence[OnTask]) -> tuple[float, float]:
    """Per cent of the programs that are answered wrongly, and half its interval over programs, seeds averaged."""
    found = [interval([right for score in store.scores(cell.key) for right in score.windows or ()]) for cell in cells]
    means, halves = zip(*found, strict=True)
    return 100 * (1 - sum(means) / len(found)), 100 * sum(half**2 for half in halves) ** 0.5 / len(found)


def table(store: Store, cells: dict[tuple[str, int], list[OnTask]]) -> str:
    """Errors in per cent: a line for each scheme, a column for each number of variables."""
    columns = list(dict.fromkeys(variables for _, variables in cells))
    lines = [f"{'error, %':<28}" + "".join(f"{f'{n} variables':>18}" for n in columns)]
    for name in dict.fromkeys(scheme for scheme, _ in cells):
        found = [errors(store, cells[name, n]) for n in columns]
        lines.append(f"{name:<28}" + "".join(f"{mean:11.1f} ± {half:4.1f}" for mean, half in found))
    firsts = [next(own[0] for (_, n), own in cells.items() if n == column) for column in columns]
    same = [100 * (1 - trivial(cell.on, cell.judged, cell.judging.answers)) for cell in firsts]
    lines.append(f"{'always the same answer':<28}" + "".join(f"{wrong:11.1f}{'':7}" for wrong in same).rstrip())
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
        sys.exit(f"lab_counting: {error}")
