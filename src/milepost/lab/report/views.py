"""The pictures of a report, as data: which rows, under which protocol, on which axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milepost.lab.report.figure import BOTTOM, INSET, LEFT, RIGHT, TOP, Curve, Panel, Point, ends_of_bars, finite
from milepost.lab.report.look import looks
from milepost.lab.report.scale import Axis, broken, decades, doubling, straight
from milepost.lab.schemes.naming import WINDOW, proper
from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.measures import paired
from milepost.lab.tasks import PROTOCOLS

Points = Callable[[Row], Sequence[Point]]
SIDES = LEFT + INSET, RIGHT - INSET
BITS, SAVED = "bits per byte", "bits saved per byte"
NEAR = 0.3
"""In the picture less the window, so many bits about it are drawn to scale; what is farther off is compressed."""


@dataclass(frozen=True)
class Group:
    """Curves that belong in one picture."""

    checkpoint: str
    """The scheme whose training-free rows they are; empty for the trained ones."""
    title: str
    curves: tuple[Curve, ...]


def by_length(findings: Findings, protocol: str) -> list[Panel]:
    """Bits by length, a picture for each group of rows."""
    lengths = findings.lengths(protocol)
    trained = findings.ran.trained

    def points(row: Row) -> list[Point]:
        return [Point(length, found.mean, found.interval) for length, found in row.scores.get(protocol, {}).items()]

    if not _values(findings, points):
        return []
    x = doubling(lengths, *SIDES)
    beneath = tuple(f"{value / trained:g}×" for value, _ in x.ticks)
    return [
        Panel(group.title, group.curves, x, _near_and_far(group.curves), "length in bytes", BITS, beneath=beneath)
        for group in _grouped(findings, points)
    ]


def _near_and_far(curves: Sequence[Curve]) -> Axis:
    """An axis of bits for these curves alone: a scheme that reads badly would press those of another picture flat."""
    first = min(point.x for curve in curves for point in curve.points)
    every = [end for curve in curves for end in ends_of_bars(curve.points)]
    firsts = [end for curve in curves for end in ends_of_bars([each for each in curve.points if each.x == first])]
    return broken(every, firsts, BOTTOM, TOP)


def by_distance(findings: Findings, protocol: str) -> list[Panel]:
    """Bits saved by distance, a picture for each group of rows."""
    distances = findings.lengths(protocol)

    def points(row: Row) -> list[Point]:
        return [Point(at, found.mean, found.interval) for at, found in row.scores.get(protocol, {}).items()]

    every = _values(findings, points)
    if not every:
        return []
    x = doubling(distances, *SIDES)
    y = straight(min(*every, 0.0) - 0.2, max(*every, 0.0) + 0.2, BOTTOM, TOP)
    level = 0.0, "nothing saved"
    upright = _inside(findings.ran.trained, distances)
    return [
        Panel(group.title, group.curves, x, y, "distance in bytes", SAVED, upright=upright, level=level)
        for group in _grouped(findings, points)
    ]


def by_position(findings: Findings, length: int) -> list[Panel]:
    """Bits by position in windows of one length, a panel for each group of rows."""

    def points(row: Row) -> list[Point]:
        bins = row.positions.get(length, [])
        ends = [*(first for first, _ in bins[1:]), length][: len(bins)]
        return [Point((first + end + 1) / 2, bits) for (first, bits), end in zip(bins, ends, strict=True)]

    every = _values(findings, points)
    if not every:
        return []
    places = [point.x for row in findings.rows for point in points(row)]
    x = doubling([1, *places, length], *SIDES, most=7)
    y = broken(every, [], BOTTOM, TOP, near=1.0)
    upright = _inside(findings.ran.trained, places)
    return [
        Panel(group.title, group.curves, x, y, "position in the window", BITS, upright=upright, dense=True)
        for group in _grouped(findings, points)
    ]


def by_step(findings: Findings) -> list[Panel]:
    """Bits in training, by step."""

    def points(row: Row) -> list[Point]:
        return [Point(step + 1, bits) for step, bits in row.losses]

    every = _values(findings, points)
    if not every:
        return []
    steps = [point.x for row in findings.rows for point in points(row)]
    x = decades(min(steps), max(steps), *SIDES)
    y = broken(every, [], BOTTOM, TOP, near=1.0)
    rows = [row for row in findings.rows if row.losses]
    curves = curves_of(findings, rows, points, named=lambda row: row.base)
    return [Panel("Training loss", curves, x, y, "step", BITS, dense=True)]


def by_task(findings: Findings) -> list[Panel]:
    """Right answers in per cent by length, a panel for each task and group of rows."""
    panels: list[Panel] = []
    for task in findings.tasks():

        def points(row: Row, task: str = task) -> list[Point]:
            scores = row.scores.get(task, {})
            return [
                Point(x, 100 * of.mean, None if of.interval is None else 100 * of.interval) for x, of in scores.items()
            ]

        lengths = findings.lengths(task)
        x = doubling(lengths, *SIDES, most=7)
        every = _values(findings, points)
        y = straight(min(0.0, *every), max(100.0, *every), BOTTOM, TOP, most=5)
        upright = _inside(findings.ran.trained, lengths)
        guess = 100 * PROTOCOLS[task].task.random
        level = guess, f"a guess, {guess:.0f} %"
        groups = _grouped(findings, points)
        # A checkpoint whose training-free rows were not judged has nothing beside itself.
        for group in [each for each in groups if len(each.curves) > 1] or groups[:1]:
            named = PROTOCOLS[task].title
            named += f": {group.title}" if len(group.curves) > 1 and group.checkpoint else ""
            axes = "length in tokens", "right, in %"
            panels.append(Panel(named, group.curves, x, y, *axes, upright=upright, level=level, decimals=1, unit=" %"))
    return panels


def _values(findings: Findings, points: Points) -> list[float]:
    return [end for row in findings.rows for end in ends_of_bars(points(row))]


def _inside(trained: int, values: Sequence[float]) -> tuple[float, str] | None:
    """Return the rule at the trained length, where it is not an edge of the picture."""
    inside = bool(values) and min(values) < trained < max(values)
    return (trained, f"trained length, {trained:,}") if inside else None


def _grouped(findings: Findings, points: Points) -> list[Group]:
    found: list[Group] = []
    for name, rows in findings.groups():
        title = f"{proper(name)}, changed without training" if name else "As trained"
        curves = curves_of(findings, rows, points, _named(name))
        if any(curve.points for curve in curves):
            found.append(Group(name, title, curves))
    return found


def curves_of(
    findings: Findings, rows: Sequence[Row], points: Points, named: Callable[[Row], str]
) -> tuple[Curve, ...]:
    """Return the curves of some rows, what is trivial first and so beneath the others."""
    numbers = {(row.name, row.variant): n for n, row in enumerate(findings.rows)}
    styles = looks(findings)
    keys = [(row.name, row.variant) for row in rows]
    return tuple(
        Curve(numbers[key], named(row), styles[key], finite(points(row)), row.trivial)
        for key, row in zip(keys, rows, strict=True)
        if any(math.isfinite(point.y) for point in points(row))
    )


def less_window(findings: Findings) -> list[Panel]:
    """Bits by length less those of the window, on the same windows of text, for each group of rows that has one.

    Bits go up and down with the text, and all rows with them; in a difference that falls out.
    """
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
    """Return the window on a checkpoint; for rows of many checkpoints, the first there is."""
    windows = [row for row in findings.rows if row.variant == WINDOW and name in ("", row.name)]
    return windows[0] if windows else None


def less(bar: Row) -> Points:
    """Return the points of a row less those of another, with the interval of the difference."""

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
