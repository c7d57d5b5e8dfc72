"""The tables of a page, so that another page can show a row of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from guide.builder.paths import ROOT


@dataclass(frozen=True)
class Table:
    """A table: the heading above it, the last line of bold text above it, and its cells."""

    section: str
    lead: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def row(self, name: str) -> tuple[str, ...] | None:
        """Return the row of that name, emphasis aside."""
        return next((row for row in self.rows if bare(row[0]) == name), None)


def bare(cell: str) -> str:
    """Return a cell without emphasis."""
    return cell.replace("*", "").strip()


def cells_of(line: str) -> tuple[str, ...]:
    """Return the cells of a line; a bar in code is written with a backslash before it."""
    return tuple(each.replace("\\|", "|").strip() for each in re.split(r"(?<!\\)\|", line.strip())[1:-1])


@cache
def tables(page: str) -> tuple[Table, ...]:
    """Return the tables of a page of the checkout."""
    found: list[Table] = []
    section = lead = ""
    block: list[str] = []
    for line in [*(ROOT / page).read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            block.append(line)
            continue
        if len(block) > 2:
            head, _, *rows = map(cells_of, block)
            found.append(Table(section, lead, head, tuple(rows)))
        block = []
        if line.startswith("#"):
            section, lead = line.lstrip("# "), ""
        elif line.startswith("**"):
            lead = bare(line)
    return tuple(found)


def written(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in line)} |" for line in lines)
