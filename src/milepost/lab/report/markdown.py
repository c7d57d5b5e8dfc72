"""Findings as Markdown: the tables of the report, for a page of one's own or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from milepost.lab.report import tables
from milepost.lab.report.headlines import lede, unfinished
from milepost.lab.report.tables import MEANS, Cell, Line
from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.table import RECALLS, Table, table

SPECIAL = re.compile(r"([\\`*_\[\]|&$])")
"""What Markdown would read as more than itself."""


def to_markdown(findings: Findings) -> str:
    """Return the command, the headlines, and the tables that have something in them."""
    sorted_ = table(findings)
    again = " ".join(findings.ran.again.split())
    parts = [
        f"    {again}",
        *map(_plain, (*unfinished(findings), *lede(findings, sorted_))),
        *_tables(findings, sorted_),
    ]
    parts += [_plain(f"{label}: {text}") for label, text in findings.titles().items()]
    return "\n\n".join(parts) + "\n"


def _tables(findings: Findings, sorted_: Table) -> Iterator[str]:
    over = "windows" if len(findings.ran.seeds) == 1 else "seeds"
    if over == "seeds" and any(len(row.seeds) == 1 for row in findings.rows):
        over += ", or over windows where a row has one"
    if grid := tables.by_length(sorted_):
        against = ["against window"] if any(line.against is not None for line in sorted_.lines) else []
        recalls = [f"{name} saved at {sorted_.distance:,}" for name in grid.heads[: len(sorted_.recalls)]]
        lines = [replace(line, cells=(Cell(line.reach[0]), *line.cells)) for line in grid.lines]
        wider = "; against window: in pairs, ± the wider of both" if against and len(findings.ran.seeds) > 1 else ""
        yield (
            f"Bits per byte by length, ± over {over}{wider}; bold: the best of its column and what is not "
            f"significantly different from it, but for rows that only repeat their checkpoint there."
        )
        yield _written(["", "reach", *against, *recalls, *grid.heads[len(sorted_.recalls) :]], lines)
    for name in RECALLS:
        if grid := tables.by_distance(findings, sorted_, name):
            yield f"{MEANS[name][0]}, in bits saved on the second copy, by distance; ± over {over}."
            yield _written(["", *grid.heads], grid.lines)
    if grid := tables.differences(findings, sorted_):
        heads = [f"{what}, {head}" for what in ("less the window", "less the best") for head in grid.heads]
        yield f"At {sorted_.lengths[-1]:,}, in pairs, on the same windows; bold: significant."
        yield _written(["", *heads], grid.lines)
    if grid := tables.by_quarter(findings, sorted_):
        yield "Bits by quarter of the longest windows, and over their last bytes; without intervals."
        yield _written(["", *grid.heads[1:]], grid.lines)
    if grid := tables.tried(findings):
        yield "Bits on validation text, by which rates and settings were chosen; bold: chosen."
        yield _written(grid.heads, grid.lines)


def _written(heads: Sequence[str], lines: Iterable[Line]) -> str:
    """Return a table; numbers to the right."""
    rows = [[_plain(line.name if line.row is None else _label(line.row)), *map(_cell, line.cells)] for line in lines]
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([_plain(head) for head in heads], rule, *rows))


def _label(row: Row) -> str:
    tags = ", ".join(filter(None, ("trivial" if row.trivial else "" if row.whole else "forgets", row.few)))
    label = f"{row.short} on {row.base}" if row.variant else row.short
    return f"{label} ({tags})" if tags else label


def _cell(cell: Cell) -> str:
    text = _plain(cell.text)
    return " ".join(filter(None, (f"**{text}**" if cell.strong and text else text, cell.half)))


def _plain(text: str) -> str:
    """Text that says no more in Markdown than it says."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("<", "&lt;")
