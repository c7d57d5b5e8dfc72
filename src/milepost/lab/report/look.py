"""How rows are told apart: by colour, and, for who sees none, by dash and marker as well."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.lab.schemes.naming import TRIVIAL
from milepost.lab.statistics.findings import Findings, Row

COLOURS = 9
"""How many colours report.css names, c0 … c8; cx is the grey of what is trivial."""
MARKERS = {
    "m0": '<circle r="3.2"/>',
    "m1": '<path d="M-3-3H3V3H-3Z"/>',
    "m2": '<path d="M0-4 3.8 3H-3.8Z"/>',
    "m3": '<path d="M0-4.2 4.2 0 0 4.2-4.2 0Z"/>',
    "m4": '<path d="M0 4 3.8-3H-3.8Z"/>',
    "m5": '<path d="M-3.4-1.2H-1.2V-3.4H1.2V-1.2H3.4V1.2H1.2V3.4H-1.2V1.2H-3.4Z"/>',
    "m6": '<circle class="hollow" r="2.9"/>',
    "m7": '<path class="hollow" d="M-2.7-2.7H2.7V2.7H-2.7Z"/>',
    "m8": '<path class="hollow" d="M0-3.8 3.6 2.7H-3.6Z"/>',
    "m9": '<path class="hollow" d="M-3-3 3 3M-3 3 3-3"/>',
}


@dataclass(frozen=True)
class Look:
    """The classes of a row's line and the marker on it."""

    classes: str
    marker: str


def looks(findings: Findings) -> dict[tuple[str, str], Look]:
    """The look of every row, by name and variant: the same in every picture.

    What was trained is a solid line, each in a hue of its own. Rows on one checkpoint are broken lines, in hues that
    are not the checkpoint's: long dashes where tokens are placed anew, dots where the rotation is stretched. What
    forgets is grey. No two rows of a checkpoint share hue and marker.
    """
    found: dict[tuple[str, str], Look] = {}
    for number, name in enumerate(dict.fromkeys(row.name for row in findings.rows)):
        found[name, ""] = Look(f"c{number % COLOURS} d{3 * (number >= COLOURS)}", f"m{number % len(MARKERS)}")
        hues = [n for n in range(COLOURS) if n != number % COLOURS]
        own = [row for row in findings.rows if row.name == name and row.variant]
        forgets = [row for row in own if row.trivial or not row.whole]
        for n, row in enumerate(sorted(forgets, key=_trivial_first)):
            found[name, row.variant] = Look(f"cx d{1 + n % 3}", f"m{n % len(MARKERS)}")
        for n, row in enumerate(row for row in own if row not in forgets):
            found[name, row.variant] = Look(f"c{hues[n % len(hues)]} {_dash(row)}", f"m{n % len(MARKERS)}")
    return found


def _trivial_first(row: Row) -> int:
    return TRIVIAL.index(row.variant) if row.trivial else len(TRIVIAL)


def _dash(row: Row) -> str:
    """By what a row without training changes: where tokens are placed, or something else."""
    verbs = {term.verb for equation in row.equations for term in equation.terms}
    return "d1" if "place" in verbs or not verbs else "d2"


def definitions() -> str:
    """The markers, once for all pictures."""
    shapes = "".join(f'<g id="{name}">{shape}</g>' for name, shape in MARKERS.items())
    return f'<svg class="definitions" aria-hidden="true" width="0" height="0"><defs>{shapes}</defs></svg>'


def swatch(look: Look) -> str:
    """A short piece of a row's line."""
    return (
        f'<svg class="swatch {look.classes}" viewBox="0 0 26 10" aria-hidden="true">'
        f'<path class="line" d="M1 5H25"/><use href="#{look.marker}" x="13" y="5"/></svg>'
    )
