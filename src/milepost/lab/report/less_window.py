"""The second picture: every row less the trivial window, window of text by window of text.

Bits go up and down with the text, and all rows with them; in a difference on the same windows that falls out, and lines
that lie on one another by their bits come apart.
"""

from __future__ import annotations

from collections.abc import Callable

from milepost.lab.report.figure import BOTTOM, TOP, Panel, Point, ends_of_bars
from milepost.lab.report.scale import broken, doubling
from milepost.lab.report.views import SIDES, Points, curves_of
from milepost.lab.schemes.naming import WINDOW, proper
from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.measures import paired

NEAR = 0.3
"""So many bits about the window are drawn to scale; what is farther off is compressed."""


def panels(findings: Findings) -> list[Panel]:
    """Bits by length less those of a window, a picture for each group of rows that has one to be less of."""
    found: list[Panel] = []
    for name, rows in findings.groups():
        bar = bar_of(findings, name)
        if bar is None:
            continue
        points = less(bar)
        curves = curves_of(findings, [row for row in rows if row is not bar], points, _named(name))
        ends = [end for curve in curves for end in ends_of_bars(curve.points)]
        if not ends:
            continue
        lengths = sorted({point.x for curve in curves for point in curve.points})
        firsts = [end for curve in curves for end in ends_of_bars([p for p in curve.points if p.x == lengths[0]])]
        x = doubling(lengths, *SIDES)
        y = broken([*ends, 0.0], [*firsts, 0.0], BOTTOM, TOP, near=NEAR)
        beneath = tuple(f"{value / findings.ran.trained:g}×" for value, _ in x.ticks)
        base = proper(bar.name)
        title = f"{base}, changed without training" if name else "As trained"
        level = 0.0, "the window" if name else f"{base} in a window"
        said = f"{title}, less {'the window' if name else f'{base} in a window'}"
        axes = x, y, "length in bytes", "more bits per byte"
        found.append(Panel(said, curves, *axes, beneath, level=level, level_beneath=True))
    return found


def bar_of(findings: Findings, name: str) -> Row | None:
    """The window on a checkpoint; for rows of many checkpoints, the first there is."""
    windows = [row for row in findings.rows if row.variant == WINDOW and name in ("", row.name)]
    return windows[0] if windows else None


def less(bar: Row) -> Points:
    """The points of a row less those of another, with the interval of the difference."""

    def points(row: Row) -> list[Point]:
        found: list[Point] = []
        for length, measure in row.scores.get("windows", {}).items():
            other = bar.at("windows", length)
            difference = None if other is None else paired(measure, other)
            if difference is not None:
                found.append(Point(length, difference.mean, difference.half))
        return found

    return points


def _named(name: str) -> Callable[[Row], str]:
    def named(row: Row) -> str:
        return f"{row.base} as trained" if name and not row.variant else row.short

    return named
