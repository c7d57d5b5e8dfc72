"""The report of a measurement as one HTML file that needs nothing else, in the look of the lab's reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from milepost import __version__
from milepost.hf.measuring.scores import NONE, Score, Scores, perplexity_range, with_interval
from milepost.lab.report.figure import BOTTOM, INSET, LEFT, RIGHT, TOP, Curve, Panel, Point, ends_of_bars, finite
from milepost.lab.report.layout import laid_out, write_whole
from milepost.lab.report.look import COLOURS, MARKERS, Look
from milepost.lab.report.scale import broken, doubling
from milepost.refusal import need

NATS = "nats per token"
SIDES = LEFT + INSET, RIGHT - INSET
NEAR = 0.4
"""What a picture shows at full size above its least value, in nats."""


def page(measured: Scores) -> str:
    """The report as HTML."""
    return laid_out(
        "measure.html",
        "milepost.hf.measuring",
        command="measure",
        title=f"Trained at {measured.trained:,}, measured to {measured.lengths[-1]:,}",
        asked=f"The same last {measured.last} tokens of {measured.windows} windows at every length; intervals of 95 %, "
        "which allow for windows of one text being alike; differences paired over the same tokens.",
        lede=_lede(measured),
        made=f"milepost {__version__}",
        panels=_panels(measured),
        beside=measured.beside,
        lengths=measured.lengths,
        losses={row: [_loss(measured, row, n) for n in measured.lengths] for row in measured.rows},
        needles=[
            (row, list(found), {depth: [each[depth] for each in found.values()] for depth in measured.depths(row)})
            for row, found in measured.needle.items()
        ],
        masses=_masses(measured),
    )


def _lede(measured: Scores) -> list[str]:
    """What the tables say, in a sentence or two."""
    longest = measured.lengths[-1]
    whole = [row for row in measured.rows if row not in measured.trivial and longest in measured.nats[row]]
    if not whole:
        return measured.left_out()
    best = min(whole, key=lambda row: measured.nats[row][longest].mean)
    own = measured.nats[best][longest]
    lines = [
        f"At {longest:,} tokens {best} has a loss of {with_interval(own.mean, own.half)} nats a token, a perplexity of "
        f"{perplexity_range(own)}."
    ]
    if measured.trained in measured.nats[best] and longest > measured.trained:
        ratio, low, high = measured.grown(best, longest)
        between = f" ({low:.3f} to {high:.3f})" if math.isfinite(low) else ""
        lines.append(f"That is {ratio:.3f} times{between} its own at {measured.trained:,}.")
    if measured.beside:
        lines.append(f"Against {measured.beside}: {measured.more(best, longest)} nats a token.")
    return lines + [f"{each}." for each in measured.left_out()]


def look_of(measured: Scores, row: str) -> Look:
    """Return the look of a row: grey where it needs no method."""
    if row in measured.trivial:
        n = measured.trivial.index(row)
        return Look(f"cx d{1 + n % 3}", f"m{n % MARKERS}")
    n = [each for each in measured.rows if each not in measured.trivial].index(row)
    return Look(f"c{n % COLOURS} d{n // COLOURS % 4}", f"m{n % MARKERS}")


def _panels(measured: Scores) -> list[Panel]:
    recall = {row: {n: each.second for n, each in found.items()} for row, found in measured.recall.items()}
    panels = [
        _panel(measured, "Loss on the same last tokens", measured.nats, "length in tokens", NATS),
        _panel(measured, "Recall: loss on the second copy of a passage", recall, "distance in tokens", NATS),
        _panel(measured, "Entropy of the guess", measured.entropy, "length in tokens", NATS),
    ]
    return [panel for panel in panels if panel is not None]


def _panel(
    measured: Scores, title: str, by_row: Mapping[str, Mapping[int, Score]], x_name: str, y_name: str
) -> Panel | None:  # fmt: skip
    curves = tuple(
        Curve(
            n,
            row,
            look_of(measured, row),
            finite([_point(*each) for each in by_row[row].items()]),
            row in measured.trivial,
        )
        for n, row in enumerate(measured.rows)
        if row in by_row
    )
    points = [point for curve in curves for point in curve.points]
    if not points:
        return None
    xs = sorted({point.x for point in points})
    x = doubling(xs, *SIDES)
    firsts = ends_of_bars([point for point in points if point.x == xs[0]])
    # What anybody could do is never compressed: it is what the others are looked at for.
    most = max((point.y for curve in curves if curve.trivial for point in curve.points), default=0.0)
    y = broken(ends_of_bars(points), firsts, BOTTOM, TOP, near=max(NEAR, most - min(point.y for point in points)))
    upright = (float(measured.trained), f"trained length, {measured.trained:,}")
    inside = xs[0] < measured.trained < xs[-1]
    return Panel(title, curves, x, y, x_name, y_name, upright=upright if inside else None)


def _point(x: int, score: Score) -> Point:
    return Point(float(x), score.mean, score.half if math.isfinite(score.half) else None)


def _loss(measured: Scores, row: str, length: int) -> tuple[str, str]:
    """Return nats a token, and how many more than those of the row that others are compared with."""
    if length not in measured.nats[row]:
        return NONE, ""
    own, more = measured.nats[row][length], measured.more(row, length)
    return _unbroken(with_interval(own.mean, own.half)), _unbroken(more)


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _masses(measured: Scores) -> list[tuple[str, str]]:
    """Return rows, and where their attention goes, or why they have no weights."""
    items: list[tuple[str, str]] = []
    seen, unseen = measured.masses()
    for row, found in seen.items():
        layers = ", ".join(f"{each:.0%}" for each in found.mass)
        nats = ", ".join(f"{each:.2f}" for each in found.entropy)
        on = f"on the first {found.sinks} of {found.length:,} tokens"
        items.append((row, f"layer by layer {layers} {on}; entropy {nats} nats"))
    return items + [(", ".join(rows), f"no weights: {why}") for why, rows in unseen.items()]


@dataclass
class Measured(Scores):
    """Scores of every row: `print(measured)` shows them, `to_json()` keeps them, `to_html(path)` writes a page."""

    def to_html(self, path: str | Path) -> Path:
        """Write the report: one HTML file that needs no network, there wholly or not at all."""
        need("to_html", "hf", ("jinja2",))
        write_whole(page(self), Path(path))
        return Path(path)
