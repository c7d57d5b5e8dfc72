"""Tables in a terminal and in a pipe: no digit is cut at any width."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from milepost.lab.report.headlines import at_an_edge, unfinished
from milepost.lab.schemes.naming import proper
from milepost.lab.statistics import difference
from milepost.lab.statistics import table as data
from milepost.lab.statistics.measures import FEWEST
from milepost.lab.tasks import PROTOCOLS

if TYPE_CHECKING:
    from milepost.lab.statistics.findings import Findings, Row

KINDS = {"recall": "recall", "passages": "of text"}
LEAST = 12
"""A column of names is never narrower; longer words in it are folded."""
PIPE = 10_000
"""Columns of a pipe, which has no width of its own: every row of a table is one line."""


def console() -> Console:
    """Return the console of stdout; a pipe is as wide as its tables, unless COLUMNS is set."""
    found = Console()
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE)


@dataclass(frozen=True)
class Column:
    """A column of a table; where there is no room for all, those of the lowest rank are left out first."""

    title: str
    rank: int = 0
    name: bool = False
    """True for names, which are folded; numbers wrap between words alone."""

    def widths(self, cells: Sequence[Text]) -> tuple[int, int]:
        """Return the least width that cuts nothing, and the width at which no line is wrapped."""
        lines = [line for each in (self.title, *(cell.plain for cell in cells)) for line in each.splitlines()]
        word = max((len(word) for line in lines for word in line.split()), default=0)
        full = max(map(len, lines), default=0)
        return min(full, LEAST) if self.name else word, full


@dataclass(frozen=True)
class Fitted:
    """A table that fits any width: names fold, values wrap between words, then whole columns are left out and named."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]
    elsewhere: str = ""
    """Where the columns are that were left out."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        kept = list(range(len(self.columns)))
        bounds = [column.widths([row[n] for row in self.rows]) for n, column in enumerate(self.columns)]
        while len(kept) > 1 and sum(bounds[n][0] + 1 for n in kept) - 1 > width:
            # The later of two columns of one rank stays.
            kept.remove(min((n for n in kept if not self.columns[n].name), key=lambda n: (self.columns[n].rank, n)))
        room = width - sum(bounds[n][0] + 1 for n in kept) + 1
        made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        # Numbers are unfolded first, then names.
        given = {n: bounds[n][0] for n in kept}
        for n in sorted(kept, key=lambda n: self.columns[n].name):
            more = max(0, min(room, bounds[n][1] - bounds[n][0]))
            given[n], room = given[n] + more, room - more
        for n in kept:
            column = self.columns[n]
            made.add_column(column.title, width=given[n], overflow="fold", justify="left" if column.name else "right")
        for row in self.rows:
            made.add_row(*(row[n] for n in kept))
        yield made
        left_out = [column.title for n, column in enumerate(self.columns) if n not in kept]
        if left_out:
            named = ", ".join(" ".join(each.split()) for each in left_out)
            yield Text(f"left out at {width} columns: {named}{self.elsewhere}", style="dim")


def table(findings: Findings) -> Group:
    """Return the table of a sweep, the furthest row first; intervals are left to the report."""
    sorted_ = data.table(findings)
    last = len(sorted_.lengths) - 1
    columns = [
        Column("scheme", name=True),
        Column("reach", 4),
        *(Column(f"{length:,}", 6 if n == last else 2 if n == 0 else 1) for n, length in enumerate(sorted_.lengths)),
        *(Column(KINDS[each], 3) for each in sorted_.recalls),
        Column("Δ", 5),
    ]
    rows: list[list[Text]] = []
    for line in sorted_.lines:
        marked = zip((*line.bits, *line.recall), (*line.best, *line.best_recall), strict=True)
        values = [
            Text("" if each is None else data.shown(each.mean), style="bold green" if best else "")
            for each, best in marked
        ]
        against = Text("" if line.against is None else data.signed(line.against.mean))
        if line.against is not None and line.against.sign:
            against.stylize("bold")
        rows.append([_label(line.row), Text(data.length_in_words(line)), *values, against])
    note = (
        f"bits per byte over windows that do not overlap; trained at {sorted_.trained:,}. green: the best of a column "
        f"and rows not significantly different from it, paired over the same windows, but for rows that only repeat "
        f"their checkpoint. reach: the longest text that costs the last bytes at most {sorted_.tolerance:g} bits more "
        f"than the last {sorted_.trained:,} bytes alone do. Δ: the last length, less the window there, bold where "
        f"significant. * needs no method at all."
    )
    if sorted_.distance is not None:
        note += f" recall, of random bytes or of text: bits saved on a second copy, {sorted_.distance:,} bytes on."
    most = max((len(row.seeds) for row in findings.rows), default=FEWEST)
    if most == 1:
        note += " One seed: these are differences of checkpoints, and rank no method."
    elif most < FEWEST:
        note += f" {most} seeds: too few for a verdict, so nothing is marked; --seeds {FEWEST} gives one."
    shown: list[RenderableType] = [*map(Text, unfinished(findings))]
    shown += [Fitted(columns, rows, "; report.html and --csv have them"), Text(note, style="dim")]
    shown += [Text(f"{label}: {text}", style="dim") for label, text in findings.titles().items()]
    chosen = [f"{proper(each.name)} {each.setting}" for each in findings.tried if each.chosen and not each.row]
    if chosen:
        shown.append(Text(f"learning rates, chosen on validation text: {'; '.join(chosen)}", style="dim"))
    shown += [Text(each, style="dim") for each in at_an_edge(findings)]
    tasks = findings.tasks()
    if tasks:
        shown.append(_tasks(findings, tasks))
        short, long = (findings.lengths(tasks[0])[which] for which in (0, -1))
        answers = f"right tokens in the answers to the longest examples that fit into {short:,} tokens → into {long:,}"
        guess = "a guess: tokens drawn at random from those that answers are made of."
        shown.append(Text(f"{answers}. {guess}", style="dim"))
    return Group(*shown)


def _label(row: Row) -> Text:
    """Return what a row is called, dim and with a * where it is trivial."""
    few = f" ({row.few})" if row.few else ""
    return Text(f"{row.label}{few} *", style="dim") if row.trivial else Text(row.label + few)


def _tasks(findings: Findings, tasks: Sequence[str]) -> Fitted:
    """Return the right answers, a column for each task: at the trained length, and at the longest."""
    ends = {task: (findings.lengths(task)[0], findings.lengths(task)[-1]) for task in tasks}
    columns = [Column("right answers, %", name=True)]
    for each in (PROTOCOLS[task] for task in tasks):
        # Long names are broken where they have a dash.
        depth = "" if each.depth is None else f"\ndepth {each.depth:g}"
        columns.append(Column(each.name.replace("-", "-\n") + depth))
    rows: list[list[Text]] = []
    for row in findings.rows:
        pairs = [[row.at(task, length) for length in ends[task]] for task in tasks]
        cells = [" → ".join(f"{100 * each.mean:.0f}" for each in pair if each is not None) for pair in pairs]
        if any(cells):
            rows.append([_label(row), *map(Text, cells)])
    guess = [Text(f"{100 * PROTOCOLS[task].task.random:.0f}") for task in tasks]
    return Fitted(columns, [*rows, [Text("a guess", style="dim"), *guess]], "; report.html and --csv have them")


def differences(one: Findings, other: Findings, names: tuple[str, str]) -> Group:
    """Return what differs between two sweeps: what was asked, and each row that both have."""
    parts: list[RenderableType] = [Text("both were asked for the same")]
    if asked := difference.differ(one, other):
        titles = [Column(each, rank=n, name=True) for n, each in enumerate(("asked differently", *names))]
        parts = [Fitted(titles, [list(map(Text, each)) for each in asked])]
    for findings, there, name in ((one, other, names[0]), (other, one, names[1])):
        if alone := [row.label for row in findings.rows if difference.same(row, there) is None]:
            parts.append(Text("\n  ".join((f"only in {name}:", *alone))))
    rows: list[list[Text]] = []
    for each in difference.compared(one, other):
        found = "" if each.difference is None else data.difference_in_words(each.difference)
        style = "bold" if each.difference is not None and each.difference.sign else ""
        values = (each.row.label, f"{each.length:,}", data.in_words(each.one), data.in_words(each.other), found)
        rows.append([Text(value, style=style) for value in values])
    if rows:
        note = (
            f"bits per byte over windows that do not overlap; the difference is {names[1]} less {names[0]}, paired "
            f"over the same windows, with the wider of its 95 % intervals; bold where significant."
        )
        if one.ran.seeds != other.ran.seeds:
            note += " It is over the seeds that both have; the columns before it are over all of each."
        if one.ran.digest != other.ran.digest:
            note = "bits per byte over windows of two different texts, so that no differences can be paired."
        columns = [Column("scheme", name=True), Column("length", 3), Column(names[0], 1), Column(names[1], 1)]
        columns.append(Column("difference", 2))
        parts += [Fitted(columns, rows), Text(note, style="dim")]
    return Group(*parts)
