"""The page of one method in a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from milepost.catalogue import words
from milepost.catalogue.groups import FUNCTIONS
from milepost.catalogue.names.chinese import label
from milepost.catalogue.names.spelling import plain
from milepost.catalogue.register import first_sentence
from milepost.catalogue.sheet import Sheet
from milepost.catalogue.signature import signature
from milepost.catalogue.terminal import text
from milepost.seams.facets import FACETS
from milepost.seams.verbs import VERBS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

OUTSIDE = {
    "frequencies": "Return the frequencies of a rotation.",
    "magnitude": "Return the factor on its cosines and sines.",
    "slopes": "Return the slopes of ALiBi.",
    "sample": "Draw positions.",
}
"""The methods of those that are not parts of a scheme."""
RELATIVE = {
    True: "yes: shifting all positions changes nothing",
    False: "no: absolute positions matter",
    None: "depends on its arguments",
}


def page(console: Console, sheet: Sheet, lang: str = "en") -> None:
    """Print all that is known of one method."""
    titled = sheet.title and plain(sheet.title) != plain(sheet.name)
    console.print(text([(f"{sheet.name}, {sheet.title}" if titled else sheet.name, "bold")]))
    if sheet.arguments is not None:
        console.print(text([(signature(sheet.name, sheet.arguments, console.width), "green")]))
    console.print()
    if lang == "zh":
        console.print(text([(sheet.does, "")]))
        console.print()
    _docstring(console, sheet.about)
    if facts(sheet):
        console.print()
        console.print(_grid([(label(name, lang), "\n".join(lines)) for name, lines in facts(sheet)], style="bold"))
    if sheet.composes:
        console.print()
        console.print(text([(label("How it composes", lang), "bold")]))
        console.print(_grid([("  ·", sentence) for sentence in sheet.composes]))
    if sheet.example:
        console.print()
        console.print(text([(label("Example", lang), "bold")]))
        code = text([(f"  {line}" if line else " ", "cyan") for line in sheet.example.splitlines()])
        # Code is never wrapped: it is there to be copied.
        console.print(code, soft_wrap=True)


def _docstring(console: Console, about: str) -> None:
    """Paragraphs wrapped anew; formulas and lists as they are, indented."""
    for number, paragraph in enumerate(about.split("\n\n")):
        if number:
            console.print()
        column = words.column_of(paragraph)
        if words.is_indented(paragraph):
            _indented(console, textwrap.dedent(paragraph))
        elif column is not None:
            rows = [(line[:column].rstrip(), line[column:]) for line in paragraph.splitlines()]
            console.print(_grid([(f"  {left}", right) for left, right in rows]))
        else:
            console.print(text([(" ".join(paragraph.split()), "")]))


def _indented(console: Console, block: str) -> None:
    from rich.padding import Padding

    lines = (wrapped for line in block.splitlines() for wrapped in _hanging(line, console.width - 4))
    console.print(Padding(text([(line, "cyan") for line in lines]), (0, 0, 0, 4)))


def _hanging(line: str, width: int) -> list[str]:
    """Return the lines that one of a formula fills, the second and later ones further in."""
    inner = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False) or [""]


def _grid(rows: list[tuple[str, str]], style: str = "") -> Table:
    """Return a grid of labels and texts."""
    from rich.cells import cell_len
    from rich.table import Table

    made = Table(box=None, show_header=False, expand=True, padding=(0, 2, 0, 0))
    made.add_column(width=max(cell_len(left) for left, _ in rows), no_wrap=True)
    made.add_column(ratio=1, overflow="fold")
    for left, words_ in rows:
        made.add_row(text([(left, style)]), text([(words_, "")]))
    return made


def facts(sheet: Sheet) -> list[tuple[str, list[str]]]:
    """Return the short facts of the page, by label."""
    listed = {
        "seam": [sheet.group if sheet.group != FUNCTIONS.title else ""],
        "verbs": [f"{verb}: {_sentence(OUTSIDE.get(verb) or VERBS[verb].__doc__)}" for verb in sheet.verbs],
        "facets": [f"{facet}: {_sentence(FACETS[facet].__doc__)}" for facet in sheet.facets],
        "paper": [sheet.paper, sheet.link],
        "relative": [RELATIVE[sheet.relative] if sheet.runs else ""],
        "learned": [words.numbers(sheet)],
        "backends": [
            ", ".join(sheet.backends) if sheet.runs else "",
            *(f"not {name}: it {why}" for name, why in sheet.refusals.items()),
        ],
    }
    return [(label, list(filter(None, lines))) for label, lines in listed.items() if any(lines)]


def _sentence(doc: str | None) -> str:
    """Return the first sentence of a docstring, for use after a colon."""
    sentence = first_sentence(doc or "")
    return sentence[:1].lower() + sentence[1:].rstrip(".")
