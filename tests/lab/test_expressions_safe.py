"""Expressions come from anywhere: what would take all time or all memory is refused at once, and signs are printed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from milepost import Alibi, AlibiNtk, Pivot, Rerope, Rope
from milepost.lab.cells.events import Stepped
from milepost.lab.cells.store import Score
from milepost.lab.command.progress import Watched
from milepost.lab.schemes.expressions import evaluate, spelled
from milepost.lab.schemes.named import build
from milepost.lab.sweep.sweep import Sweep
from milepost.lab.training.model import Shape
from tests.lab.test_sweep import SIZE, SWEEP

SHAPE = Shape(width=16, layers=2, heads=2, hidden=16)
OWN = {"dim": 8, "heads": 2, "width": 16, "layers": 2, "trained": 16, "longest": 64, "group": 4}
REFUSED = {
    "Rope(dim, theta=9**9**9)": r"9 \*\* 387420489 is too large a number",
    "Rope(dim, theta=10**10**10)": "too large a number",
    "Rope(dim, theta=2.0**9**9)": "too large a number",
    "Rope(dim, theta=(0 - 8)**0.5)": "is no real number",
    "Learned(10**11, width)": "Learned.*100,000,000,000: at most 2,147,483,648",
    "Learned(10**9, width)": "Learned.* would learn 16,000,000,000 numbers; at most",
    "T5Bias(10**9)": "heads=1,000,000,000: at most 65,536",
    "Rope(10**9)": "dim=1,000,000,000: at most 65,536",
    "Alibi(10**9)": "heads=1,000,000,000: at most 65,536",
    "LongRope((1.0,) * 10**9, trained)": "only numbers can be multiplied",
    "Kerple(heads, 'power' * 10**9)": "only numbers can be multiplied",
    "Kerple(heads, '%999999999d' % 5)": "only numbers can be divided",
    " + ".join(["LogN(trained)"] * 20_000): "319,997 characters; at most",
    "LogN(" + "-" * 1900 + "1)": "nested too deeply",
    "(" * 900 + "causal" + ")" * 900: "no expression|nested too deeply",
    "Rope(dim, theta=" + "9" * 1000 + ")": "too large a number",
}


# In a process of its own, with little time and memory, so that a test that fails does not take the machine along.
ASK = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from milepost.lab.schemes.named import build
from milepost.lab.training.model import Shape
from milepost.lab.schemes.expressions import spelled
said = []
for text in json.load(sys.stdin):
    for ask in (lambda: build(text, Shape(width=16, layers=2, heads=2, hidden=16), 16, 64), lambda: spelled(text)):
        try:
            ask()
        except ValueError as error:
            said.append(str(error))
            break
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory")
def test_what_would_take_everything_is_refused_at_once():
    texts = ["Rope(dim, theta=9**9**9)", "Learned(10**11, width)", "LogN(1) + " * 20_000 + "causal"]
    done = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(texts), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == len(texts), said
    for each in said:
        assert len(each) < 300, "and in a few words"
        assert each.startswith("the scheme ")


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_what_would_take_all_time_or_memory_is_refused(text: str):
    with pytest.raises(ValueError, match=REFUSED[text]) as refused:
        evaluate(spelled(text), OWN)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "text",
    ["Rope(dim, theta=10**6)", "Learned(2**15, width)", "Rope(dim, theta=5e5) + LogN(trained, clip=False)",
     "Sinusoidal(width, amplitude=width ** -0.5)", "Rope(dim) + (causal & (window(trained) | sinks(4)))",
     "LogN(max(trained, 4) % 7 + 2 - 1)"],
)  # fmt: skip
def test_what_people_write_still_works(text: str):
    build(text, SHAPE, 16, 64)


def test_asking_how_large_a_table_is_changes_no_weight():
    torch.manual_seed(0)
    built = build("Learned(longest, width) + T5Bias(heads)", SHAPE, 16, 64)
    torch.manual_seed(0)
    from milepost import Learned

    assert torch.equal(next(iter(Learned(64, 16).parameters())), next(iter(built.parameters())))


NAMED = "Rope(dim, theta=7.0)  # [/bold] and [red]"


@pytest.mark.parametrize("terminal", [False, True])
def test_signs_of_the_terminal_in_a_name_are_printed_and_not_obeyed(terminal: bool):
    (cell,) = Sweep((NAMED,), SIZE, SWEEP.corpus, judging=SWEEP.judging, free=False).cells()
    shown = io.StringIO()
    watched = Watched([cell], Console(file=shown, force_terminal=terminal, width=200))
    with watched:
        watched(cell, Stepped(10, [(9, 1.0)], 1.0, 64, False))
        watched(cell, Stepped(14, [(13, 1.0)], 1.0, 64, True))
        watched(cell, Score(cell.key, "", "windows", 16, 2.0, None, 8, {}))
        watched(cell, Score(cell.key, "[/bold]", "windows", 16, 2.0, None, 8, {}))
    assert "# [/bold] and [red]" in shown.getvalue()


def test_nor_in_the_table(tmp_path: Path):
    from milepost.lab.command.shown import table
    from tests.lab.test_table import made, row

    shown = io.StringIO()
    Console(file=shown, width=200).print(table(made(row(NAMED, "", (1.5,) * 4), row(NAMED, "[/bold]", (1.5,) * 4))))
    assert "# [/bold] and [red]: [/bold]" in shown.getvalue()


def test_an_expression_of_0_1_is_read():
    # Stores keep expressions: later arguments by place, and a width called dim.
    assert evaluate("Pivot(Rerope(4), 8, 0.25)", OWN) == Pivot(Rerope(4), 8, strength=0.25)
    assert evaluate("Rope(dim=dim, theta=100.0)", OWN) == Rope(8, theta=100.0)
    assert evaluate("Alibi(heads, AlibiNtk(2.0))", OWN) == Alibi(2, stretch=AlibiNtk(2.0))
    with pytest.raises(TypeError, match=r"takes 3 positional arguments but 4"):
        evaluate("Pivot(Rerope(4), 8, 0.25, strength=0.5)", OWN)
    with pytest.raises(TypeError, match=r"takes 2 positional arguments but 6"):
        evaluate("Rope(dim, 1, 2, 3, 4)", OWN)
