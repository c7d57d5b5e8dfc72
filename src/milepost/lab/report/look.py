"""How rows are told apart: by colour, and, for who sees none, by dash and marker as well."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.lab.schemes.naming import TRIVIAL
from milepost.lab.statistics.findings import Findings

COLOURS = 9
"""How many colours report.css names, c0 … c8; cx is the grey of what is trivial."""
MARKERS = {
    "m0": '<circle r="3.2"/>',
    "m1": '<path d="M-3-3H3V3H-3Z"/>',
    "m2": '<path d="M0-4 3.8 3H-3.8Z"/>',
    "m3": '<path d="M0-4.2 4.2 0 0 4.2-4.2 0Z"/>',
    "m4": '<path d="M0 4 3.8-3H-3.8Z"/>',
    "m5": '<path d="M-3.4-1.2H-1.2V-3.4H1.2V-1.2H3.4V1.2H1.2V3.4H-1.2V1.2H-3.4Z"/>',
}


@dataclass(frozen=True)
class Look:
    """The classes of a row's line and the marker on it."""

    classes: str
    marker: str


def looks(findings: Findings) -> dict[tuple[str, str], Look]:
    """The look of every row, by name and variant: the same in every picture."""
    found: dict[tuple[str, str], Look] = {}
    names = list(dict.fromkeys(row.name for row in findings.rows))
    for number, name in enumerate(names):
        found[name, ""] = _look(number)
        # A change of a scheme is drawn beside the scheme itself, so it has another colour.
        free = [n for n in range(4 * COLOURS) if n % COLOURS != number % COLOURS]
        own = [row for row in findings.rows if row.name == name and row.variant]
        for row in (each for each in own if each.trivial):
            found[name, row.variant] = Look(f"cx d{1 + TRIVIAL.index(row.variant)}", f"m{TRIVIAL.index(row.variant)}")
        for n, row in enumerate(each for each in own if not each.trivial):
            found[name, row.variant] = _look(free[n % len(free)])
    return found


def _look(number: int) -> Look:
    return Look(f"c{number % COLOURS} d{number // COLOURS % 4}", f"m{number % len(MARKERS)}")


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
