"""The catalogue in a terminal: a table that fits any width."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from milepost.catalogue import words
from milepost.catalogue.names import chinese
from milepost.catalogue.names.chinese import label
from milepost.catalogue.sheet import Sheet, grouped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MEDIUM, WIDE = 110, 150
"""The least widths with room for papers, and for everything."""
WORD = re.compile(r"(?<=\S) |(?<=[\u3001-\uffef])(?=.)")
"""Where a line may break: at blanks, and after every Chinese character."""
GAPS = 4
"""The blanks before two columns."""


T = TypeVar("T")


def printed(write: Callable[[Console, T], None], what: T) -> str:
    """Return the output for this terminal, coloured if it supports that; no line ends in blanks."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        write(console, what)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


@dataclass(frozen=True)
class Column:
    """One column: its heading, the lines of a cell with their styles, and its width; None takes the rest."""

    heading: str
    lines: Callable[[Sheet], list[tuple[str, str]]]
    width: int | None = None


def table(console: Console, listed: list[Sheet], lang: str = "en") -> None:
    """Print every group with its methods. No cell is cut: words wrap, and narrow terminals get fewer columns."""
    columns = _columns(console.width, listed, lang)
    for number, (group, members) in enumerate(grouped(listed)):
        title, about = chinese.group(group.title, group.about, lang)
        line = text([(title, "bold magenta")])
        line.append(f" · {about}", "dim")
        console.print(line)
        console.print(_rows(columns, members, headed=number == 0))
        console.print()
    hint = "milepost methods NAME shows one in full"
    if console.width < WIDE:
        hint += ", with an example; --markdown and --json list what a wider terminal shows"
    console.print(text([(f"{hint}.", "dim")]))


def _columns(width: int, listed: list[Sheet], lang: str) -> list[Column]:
    def named(heading: str) -> str:
        return label(heading, lang)

    does = Column(named("what it does, and its formula"), _does)
    method = _column(named("method"), _name_and_verbs, listed)
    if width < (method.width or 0) + (_column("", _does, listed).width or 0) + GAPS:
        return [
            Column(named("method, what it does, and its formula"), lambda sheet: _name_and_verbs(sheet) + _does(sheet))
        ]
    paper = _column(named("paper"), lambda sheet: [(sheet.paper, "dim")], listed)
    if width < WIDE:
        return [method, does, *([paper] if width >= MEDIUM else [])]
    return [
        _column(named("method"), lambda sheet: [(sheet.name, "bold")], listed),
        _column(named("verbs"), _verbs, listed),
        does,
        paper,
        _column(named("relative"), lambda sheet: [(words.relative(sheet), "")], listed),
        _column(named("learned"), lambda sheet: [(words.learned(sheet), "")], listed),
        _column(named("backends"), lambda sheet: [(words.backends(sheet), "")], listed),
    ]


def _column(heading: str, lines_of: Callable[[Sheet], list[tuple[str, str]]], listed: list[Sheet]) -> Column:
    """Return a column as wide as its longest word, so that none is broken."""
    from rich.cells import cell_len

    lines = [heading, *(line for sheet in listed for line, _ in lines_of(sheet))]
    # An indent belongs to the word that follows it.
    return Column(heading, lines_of, max(cell_len(word) for line in lines for word in WORD.split(line)))


def _verbs(sheet: Sheet) -> list[tuple[str, str]]:
    return [(verb, "green") for verb in sheet.verbs]


def _name_and_verbs(sheet: Sheet) -> list[tuple[str, str]]:
    return [(sheet.name, "bold"), *((f"  {verb}", "green") for verb in sheet.verbs)]


def _does(sheet: Sheet) -> list[tuple[str, str]]:
    return [(sheet.does, ""), (words.formula(sheet), "cyan")]


def _rows(columns: list[Column], members: list[Sheet], headed: bool) -> Table:
    from rich.table import Table

    made = Table(box=None, expand=True, show_header=headed, header_style="dim", padding=(0, 0, 0, 2))
    for column in columns:
        made.add_column(column.heading, width=column.width, ratio=None if column.width else 1, overflow="fold")
    for sheet in members:
        made.add_row(*(text(column.lines(sheet)) for column in columns))
    return made


def text(lines: list[tuple[str, str]]) -> Text:
    """Lines with their styles. Not markup: formulas contain brackets."""
    from rich.text import Text

    return Text("\n", overflow="fold").join(Text(line, style=style) for line, style in lines if line)
