"""The pictures of a report, as data: which rows, under which protocol, on which axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.lab.report.figure import BOTTOM, INSET, LEFT, RIGHT, TOP, Curve, Panel, Point, ends_of_bars, finite
from milepost.lab.report.look import looks
from milepost.lab.report.scale import Axis, broken, decades, doubling, straight
from milepost.lab.schemes.naming import WINDOW, proper
from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.measures import paired
from milepost.lab.tasks import PROTOCOLS

Points = Callable[[Row], Sequence[Point]]
SIDES = LEFT + INSET, RIGHT - INSET
TRAINED = "As trained"
BITS, SAVED = "bits per byte", "bits saved per byte"
NEAR = 0.3
"""In the picture less the window, so many bits about it are drawn to scale; what is farther off is compressed."""


def by_length(findings: Findings, protocol: str) -> list[Panel]:
    """Bits by length, a picture for each group of rows."""
    if not (groups := _grouped(findings, _scores(protocol))):
        return []
    x = doubling(findings.lengths(protocol), *SIDES)
    beneath = _times(x, findings)
    return [
        Panel(title, curves, x, _near_and_far(curves), "length in bytes", BITS, beneath=beneath)
        for title, curves in groups
    ]


def by_distance(findings: Findings, protocol: str) -> list[Panel]:
    """Bits saved by distance, a picture for each group of rows."""
    if not (groups := _grouped(findings, _scores(protocol))):
        return []
    distances, every = findings.lengths(protocol), [end for _, curves in groups for end in _ends(curves)]
    x = doubling(distances, *SIDES)
    y = straight(min(*every, 0.0) - 0.2, max(*every, 0.0) + 0.2, BOTTOM, TOP)
    upright = _inside(findings.ran.trained, distances)
    level = 0.0, "nothing saved"
    return [
        Panel(title, curves, x, y, "distance in bytes", SAVED, upright=upright, level=level) for title, curves in groups
    ]


def by_position(findings: Findings, length: int) -> list[Panel]:
    """Bits by position in windows of one length, a panel for each group of rows."""

    def points(row: Row) -> list[Point]:
        bins = row.positions.get(length, [])
        ends = [*(first for first, _ in bins[1:]), length][: len(bins)]
        return [Point((first + end + 1) / 2, bits) for (first, bits), end in zip(bins, ends, strict=True)]

    if not (groups := _grouped(findings, points)):
        return []
    places = [point.x for _, curves in groups for curve in curves for point in curve.points]
    x = doubling([1, *places, length], *SIDES, most=7)
    y = broken([end for _, curves in groups for end in _ends(curves)], [], BOTTOM, TOP, near=1.0)
    upright = _inside(findings.ran.trained, places)
    return [
        Panel(title, curves, x, y, "position in the window", BITS, upright=upright, dense=True)
        for title, curves in groups
    ]


def by_step(findings: Findings) -> list[Panel]:
    """Bits in training, by step."""

    def points(row: Row) -> list[Point]:
        return [Point(step + 1, bits) for step, bits in row.losses]

    curves = _curves(findings, findings.rows, points, named=lambda row: row.base)
    if not curves:
        return []
    steps = [step + 1 for row in findings.rows for step, _ in row.losses]
    x = decades(min(steps), max(steps), *SIDES)
    y = broken(_ends(curves), [], BOTTOM, TOP, near=1.0)
    return [Panel("Training loss", curves, x, y, "step", BITS, dense=True)]


def by_task(findings: Findings) -> list[Panel]:
    """Right answers in per cent by length, a panel for each task and group of rows."""
    panels: list[Panel] = []
    for task in findings.tasks():
        groups, lengths = _grouped(findings, _scores(task, 100)), findings.lengths(task)
        every = [end for _, curves in groups for end in _ends(curves)]
        x = doubling(lengths, *SIDES, most=7)
        y = straight(min(0.0, *every), max(100.0, *every), BOTTOM, TOP, most=5)
        upright = _inside(findings.ran.trained, lengths)
        guess = 100 * PROTOCOLS[task].task.random
        level = guess, f"a guess, {guess:.0f} %"
        # A checkpoint whose training-free rows were not judged has nothing beside itself.
        for title, curves in [each for each in groups if len(each[1]) > 1] or groups[:1]:
            named = PROTOCOLS[task].title + (f": {title}" if len(curves) > 1 and title != TRAINED else "")
            axes = "length in tokens", "right, in %"
            panels.append(Panel(named, curves, x, y, *axes, upright=upright, level=level, decimals=1, unit=" %"))
    return panels


def less_window(findings: Findings) -> list[Panel]:
    """Bits by length less those of the window, on the same windows of text, for each group of rows that has one.

    Bits go up and down with the text, and all rows with them; in a difference that falls out.
    """
    found: list[Panel] = []
    for name, rows in findings.groups():
        # For rows of many checkpoints, the first window there is.
        bar = next((row for row in findings.rows if row.variant == WINDOW and name in ("", row.name)), None)
        curves = (
            () if bar is None else _curves(findings, [row for row in rows if row is not bar], _less(bar), _named(name))
        )
        if bar is None or not curves:
            continue
        x = doubling(sorted({point.x for curve in curves for point in curve.points}), *SIDES)
        y = _near_and_far(curves, 0.0, near=NEAR)
        window = f"{proper(bar.name)} in a window"
        said = f"{_title(name)}, less {'the window' if name else window}"
        level = 0.0, "the window" if name else window
        axes = x, y, "length in bytes", "more bits per byte"
        found.append(Panel(said, curves, *axes, _times(x, findings), level=level, level_beneath=True))
    return found


def _scores(protocol: str, times: float = 1.0) -> Points:
    """Return the points of a row under a protocol, by length or distance, with their intervals."""

    def points(row: Row) -> list[Point]:
        found = row.scores.get(protocol, {}).items()
        return [Point(x, times * of.mean, None if of.interval is None else times * of.interval) for x, of in found]

    return points


def _less(bar: Row) -> Points:
    """Return the points of a row less those of another, with the interval of the difference."""

    def points(row: Row) -> list[Point]:
        scores = row.scores.get("windows", {}).items()
        found = ((length, paired(measure, bar.at("windows", length))) for length, measure in scores)
        return [Point(length, more.mean, more.half) for length, more in found if more is not None]

    return points


def _ends(curves: Sequence[Curve]) -> list[float]:
    return [end for curve in curves for end in ends_of_bars(curve.points)]


def _near_and_far(curves: Sequence[Curve], *more: float, near: float = 0.6) -> Axis:
    """Return an axis for these curves alone: a scheme that reads badly would press those of another picture flat."""
    first = min(point.x for curve in curves for point in curve.points)
    firsts = [end for curve in curves for end in ends_of_bars([each for each in curve.points if each.x == first])]
    return broken([*_ends(curves), *more], [*firsts, *more], BOTTOM, TOP, near=near)


def _times(x: Axis, findings: Findings) -> tuple[str, ...]:
    """Return how many times the trained length each mark of an axis is."""
    return tuple(f"{value / findings.ran.trained:g}×" for value, _ in x.ticks)


def _inside(trained: int, values: Sequence[float]) -> tuple[float, str] | None:
    """Return the rule at the trained length, where it is not an edge of the picture."""
    inside = bool(values) and min(values) < trained < max(values)
    return (trained, f"trained length, {trained:,}") if inside else None


def _grouped(findings: Findings, points: Points) -> list[tuple[str, tuple[Curve, ...]]]:
    """Return the curves that belong in one picture, with its title: those trained, then by checkpoint."""
    found = [(_title(name), _curves(findings, rows, points, _named(name))) for name, rows in findings.groups()]
    return [(title, curves) for title, curves in found if curves]


def _title(checkpoint: str) -> str:
    return f"{proper(checkpoint)}, changed without training" if checkpoint else TRAINED


def _curves(findings: Findings, rows: Sequence[Row], points: Points, named: Callable[[Row], str]) -> tuple[Curve, ...]:
    """Return the curves of some rows that have a point to draw."""
    numbers = {(row.name, row.variant): n for n, row in enumerate(findings.rows)}
    styles = looks(findings)
    drawn = (((row.name, row.variant), row, finite(points(row))) for row in rows)
    return tuple(Curve(numbers[key], named(row), styles[key], each, row.trivial) for key, row, each in drawn if each)


def _named(name: str) -> Callable[[Row], str]:
    def named(row: Row) -> str:
        return f"{row.base} as trained" if name and not row.variant else row.short

    return named
