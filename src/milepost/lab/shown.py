"""The table of a sweep in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from milepost.lab import table as data

if TYPE_CHECKING:
    from milepost.lab.report.findings import Findings


def table(findings: Findings) -> Group:
    """Every row, the furthest first; intervals are left to the report."""
    sorted_ = data.table(findings)
    drawn = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    drawn.add_column("scheme", min_width=20)
    for title in ("reach", *(f"{length:,}" for length in sorted_.lengths)):
        drawn.add_column(title, justify="right", no_wrap=True)
    for title in ("recall",) * (sorted_.distance is not None) + ("Δ",):
        drawn.add_column(title, justify="right", no_wrap=True)
    for line in sorted_.lines:
        bits = [
            Text("" if each is None else data.shown(each.mean), style="bold green" if best else "")
            for each, best in zip(line.bits, line.best, strict=True)
        ]
        recall = [] if sorted_.distance is None else [Text("" if line.recall is None else data.shown(line.recall.mean))]
        against = "" if line.against is None else data.signed(line.against)
        label = Text(line.row.label + (" *" if line.row.trivial else ""), style="dim" if line.row.trivial else "")
        drawn.add_row(label, data.reach_in_words(line), *bits, *recall, against)
    note = (
        f"bits per byte over windows that do not overlap; trained at {sorted_.trained:,}. reach: how far a row stays "
        f"within {sorted_.tolerance:g} bits of itself and of the window. Δ: the last length, less the window there. "
        f"* needs no method at all."
    )
    if sorted_.distance is not None:
        note += f" recall: the bits of a second copy, {sorted_.distance:,} bytes after the first."
    return Group(drawn, Text(note, style="dim"))
