"""How rows are told apart: by colour, and, for who sees none, by dash and marker as well."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.lab.schemes.naming import TRIVIAL
from milepost.lab.statistics.findings import Findings, Row

COLOURS = 9
"""How many colours drawing.css names, c0 … c8; cx is the grey of what is trivial."""
MARKERS = 10
"""How many markers markers.html draws, m0 … m9."""


@dataclass(frozen=True)
class Look:
    """The classes of a row's line and the marker on it."""

    classes: str
    marker: str


def looks(findings: Findings) -> dict[tuple[str, str], Look]:
    """Return the look of every row, by name and variant: the same in every picture.

    What was trained is a solid line, each in a hue of its own. Rows on one checkpoint are broken lines, in hues that
    are not the checkpoint's: long dashes where tokens are placed anew, dots where the rotation is stretched. What
    forgets is grey. No two rows of a checkpoint share hue and marker.
    """
    found: dict[tuple[str, str], Look] = {}
    for number, name in enumerate(dict.fromkeys(row.name for row in findings.rows)):
        found[name, ""] = Look(f"c{number % COLOURS} d{3 * (number >= COLOURS)}", f"m{number % MARKERS}")
        hues = [n for n in range(COLOURS) if n != number % COLOURS]
        own = [row for row in findings.rows if row.name == name and row.variant]
        forgets = [row for row in own if row.trivial or not row.whole]
        forgets.sort(key=lambda row: TRIVIAL.index(row.variant) if row.trivial else len(TRIVIAL))
        for n, row in enumerate(forgets):
            found[name, row.variant] = Look(f"cx d{1 + n % 3}", f"m{n % MARKERS}")
        for n, row in enumerate(row for row in own if row not in forgets):
            found[name, row.variant] = Look(f"c{hues[n % len(hues)]} {_dash(row)}", f"m{n % MARKERS}")
    return found


def _dash(row: Row) -> str:
    """By what a row without training changes: where tokens are placed, or something else."""
    verbs = {term.verb for equation in row.equations for term in equation.terms}
    return "d1" if "place" in verbs or not verbs else "d2"
