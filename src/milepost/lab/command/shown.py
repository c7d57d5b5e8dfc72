"""The table of a sweep in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from milepost.lab.report.headlines import unfinished
from milepost.lab.schemes.naming import proper
from milepost.lab.statistics import table as data
from milepost.lab.tasks import PROTOCOLS

if TYPE_CHECKING:
    from milepost.lab.statistics.findings import Findings

KINDS = {"recall": "recall", "passages": "of text"}
# Columns of tasks beside each other; more would not fit 80 characters.
ABREAST = 4


def table(findings: Findings) -> Group:
    """Every row, the furthest first; intervals are left to the report."""
    sorted_ = data.table(findings)
    drawn = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    drawn.add_column("scheme", min_width=20)
    for title in ("reach", *(f"{length:,}" for length in sorted_.lengths)):
        drawn.add_column(title, justify="right", no_wrap=True)
    for title in (*(KINDS[each] for each in sorted_.recalls), "Δ"):
        drawn.add_column(title, justify="right", no_wrap=True)
    for line in sorted_.lines:
        bits = [
            Text("" if each is None else data.shown(each.mean), style="bold green" if best else "")
            for each, best in zip(line.bits, line.best, strict=True)
        ]
        saved = [
            Text("" if each is None else data.shown(each.mean), style="bold green" if best else "")
            for each, best in zip(line.recall, line.best_recall, strict=True)
        ]
        against = Text("" if line.against is None else data.signed(line.against.mean))
        if line.against is not None and line.against.sign:
            against.stylize("bold")
        few = f" ({line.row.few})" if line.row.few else ""
        label = Text(line.row.label + few + (" *" if line.row.trivial else ""), style="dim" if line.row.trivial else "")
        drawn.add_row(label, data.length_in_words(line), *bits, *saved, against)
    note = (
        f"bits per byte over windows that do not overlap; trained at {sorted_.trained:,}. green: not told apart from "
        f"the best of the column, paired over the same windows, but for rows that only repeat their checkpoint. "
        f"reach: the longest text that costs the last bytes at "
        f"most {sorted_.tolerance:g} bits more than the last {sorted_.trained:,} bytes alone do. Δ: the last length, "
        f"less the window there, bold where the interval is clear of zero. * needs no method at all."
    )
    if sorted_.distance is not None:
        note += f" recall, of random bytes or of text: bits saved on a second copy, {sorted_.distance:,} bytes on."
    if all(len(row.seeds) == 1 for row in findings.rows):
        note += " One seed: these are differences of checkpoints, and rank no method."
    shown: list[Table | Text] = [*map(Text, unfinished(findings)), drawn, Text(note, style="dim")]
    shown += [Text(f"{label}: {text}", style="dim") for label, text in findings.titles().items()]
    chosen = [f"{proper(each.name)} {each.setting}" for each in findings.tried if each.chosen and not each.row]
    if chosen:
        shown.append(Text(f"learning rates, chosen on validation text: {'; '.join(chosen)}", style="dim"))
    tasks = findings.tasks()
    for first in range(0, len(tasks), ABREAST):
        shown.append(_tasks(findings, tasks[first : first + ABREAST]))
    if tasks:
        short, long = (findings.lengths(tasks[0])[which] for which in (0, -1))
        answers = f"right tokens in the answers to the longest examples that fit into {short:,} tokens → into {long:,}"
        guess = "a guess: tokens drawn at random from those that answers are made of."
        shown.append(Text(f"{answers}. {guess}", style="dim"))
    return Group(*shown)


def _tasks(findings: Findings, tasks: Sequence[str]) -> Table:
    """Right answers, a column for each task: at the trained length, and at the longest."""
    drawn = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    drawn.add_column("right answers, %", min_width=20)
    ends = {task: (findings.lengths(task)[0], findings.lengths(task)[-1]) for task in tasks}
    for each in (PROTOCOLS[task] for task in tasks):
        # Long names are broken where they have a dash.
        name = each.name.replace("-", "-\n") + ("" if each.depth is None else f"\ndepth {each.depth:g}")
        drawn.add_column(name, justify="right", no_wrap=True)
    for row in findings.rows:
        pairs = [[row.at(task, length) for length in ends[task]] for task in tasks]
        cells = [" → ".join(f"{100 * each.mean:.0f}" for each in pair if each is not None) for pair in pairs]
        if any(cells):
            drawn.add_row(Text(row.label + (" *" if row.trivial else ""), style="dim" if row.trivial else ""), *cells)
    drawn.add_row(Text("a guess", style="dim"), *(f"{100 * PROTOCOLS[task].task.random:.0f}" for task in tasks))
    return drawn
