"""Pictures as SVG, whole without a script: the script only answers the pointer, from what stands here already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from milepost.lab.report.look import Look, swatch
from milepost.lab.report.scale import Axis

WIDTH, HEIGHT, BESIDE = 400.0, 320.0, 148.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 390.0, 26.0, 276.0
"""The edges of the drawing; the curves keep a little away from its sides."""
INSET = 10.0
APART = 13.0
"""The least distance between two names."""
DODGE = 1.3
"""How far apart two curves are drawn where they stand at the same x, so that bars do not hide one another."""
LONGEST = 24
"""Letters of a name that fit beside a picture."""


@dataclass(frozen=True)
class Point:
    """A place on a curve, in the axes' own units, and half its interval."""

    x: float
    y: float
    half: float | None = None


@dataclass(frozen=True)
class Curve:
    """What one row contributes to a picture."""

    row: int
    name: str
    look: Look
    points: tuple[Point, ...]
    trivial: bool = False


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    curves: tuple[Curve, ...]
    x: Axis
    y: Axis
    x_name: str
    y_name: str
    beneath: tuple[str, ...] = ()
    """A second line under each mark of the x axis."""
    upright: tuple[float, str] | None = None
    """A vertical rule and its name: the trained length."""
    level: tuple[float, str] | None = None
    """A horizontal rule and its name: a guess, or the window."""
    level_beneath: bool = False
    """Whether the name stands beneath its rule."""
    dense: bool = False
    """Curves of so many points that they carry no markers."""
    decimals: int = 3
    unit: str = ""


def drawn(panel: Panel) -> str:
    """A panel as a figure: the drawing, the names beside it, and the key for a narrow screen."""
    low = BOTTOM + max(0.0, APART * len(panel.curves) - (BOTTOM - TOP))
    below = low - BOTTOM
    size = HEIGHT + below
    ends = _ends(panel)
    keys = sorted({point.x for curve in panel.curves for point in curve.points})
    labels = "|".join(_key(key) for key in keys)
    pixels = " ".join(f"{panel.x.at(key):.1f}" for key in keys)
    # The first curves, those that are trivial, are drawn first, beneath the others, and stand farthest to the left.
    aside = [DODGE * (n - (len(panel.curves) - 1) / 2) for n in range(len(panel.curves))]
    curves = zip(panel.curves, [0.0] * len(aside) if panel.dense else aside, strict=True)
    body = "".join([_frame(panel), *(_curve(panel, curve, keys, by) for curve, by in curves)])
    key = "".join(_entry(curve) for curve in panel.curves)
    return (
        f'<figure class="panel"><figcaption>{panel.title}</figcaption><div class="drawing">'
        f'<svg class="plot" viewBox="0 0 {WIDTH:.0f} {size:.0f}" role="img" aria-label="{escape(_spoken(panel))}" '
        f'data-x="{pixels}" data-keys="{labels}" data-name="{escape(panel.x_name)}" data-top="{TOP:.0f}" '
        f'data-bottom="{BOTTOM:.0f}">{body}</svg>'
        f'<svg class="names" viewBox="0 0 {BESIDE:.0f} {size:.0f}">{_names(panel, ends, low)}</svg></div>'
        f'<ul class="key">{key}</ul></figure>'
    )


def _key(value: float) -> str:
    return f"{value:,.0f}"


def _spoken(panel: Panel) -> str:
    """What a reader hears who sees no picture; the numbers are in the tables."""
    return f"{panel.y_name} by {panel.x_name}: {', '.join(curve.name for curve in panel.curves)}"


def _frame(panel: Panel) -> str:
    """Axes, rules and their names, behind the curves."""
    parts: list[str] = []
    foot = HEIGHT - (1 if panel.beneath else 12)
    if panel.y.broken is not None:
        bend = panel.y.at(panel.y.broken)
        parts.append(f'<rect class="far" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{bend - TOP:.1f}"/>')
        parts.append(_text(LEFT, foot, f"shaded: compressed above {panel.y.broken:g}", "faint"))
    for value, label in panel.y.ticks:
        y = panel.y.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 4, label, "end"))
    parts.append(f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
    for n, (value, label) in enumerate(panel.x.ticks):
        x = panel.x.at(value)
        parts.append(f'<path class="axis" d="M{x:.1f} {BOTTOM}v4"/>')
        parts.append(_text(x, BOTTOM + 16, label, "middle"))
        if n < len(panel.beneath):
            parts.append(_text(x, BOTTOM + 29, panel.beneath[n], "middle faint"))
    parts.append(_text(LEFT - 34, 12, panel.y_name, "title"))
    parts.append(_text(RIGHT, foot, panel.x_name, "end title"))
    if panel.upright is not None:
        x = panel.x.at(panel.upright[0])
        parts.append(f'<path class="rule" d="M{x:.1f} {TOP}V{BOTTOM}"/>')
        parts.append(_text(x, TOP - 6, panel.upright[1], "middle faint"))
    if panel.level is not None:
        y = panel.y.at(panel.level[0])
        parts.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        # Above the rule, or beneath it where all curves begin there.
        parts.append(_text(LEFT + 4, y + (12 if panel.level_beneath else -4), panel.level[1], "faint"))
    return "".join(parts)


def _text(x: float, y: float, label: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(label)}</text>'


def _curve(panel: Panel, curve: Curve, keys: Sequence[float], aside: float = 0.0) -> str:
    places = [(panel.x.at(point.x) + aside, panel.y.at(point.y), point) for point in curve.points]
    line = "".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y, _) in enumerate(places))
    bars = "".join(
        f"M{x:.1f} {panel.y.at(point.y - point.half):.1f}V{panel.y.at(point.y + point.half):.1f}"
        for x, _, point in places
        if point.half
    )
    bars = f'<path class="bars" d="{bars}"/>' if bars else ""
    by_key = {point.x: point for point in curve.points}
    values = "|".join(said(by_key[key], panel) if key in by_key else "" for key in keys)
    shown = [] if panel.dense else places
    markers = "".join(f'<use href="#{curve.look.marker}" x="{x:.1f}" y="{y:.1f}"/>' for x, y, _ in shown)
    return (
        f'<g class="curve {curve.look.classes}" data-row="{curve.row}" data-name="{escape(curve.name)}" '
        f'data-values="{values}"><title>{escape(curve.name)}</title>'
        f'{bars}<path class="line" d="{line}"/>{markers}</g>'
    )


def said(point: Point, panel: Panel) -> str:
    """A value and its interval, as the pointer tells it."""
    half = "" if point.half is None else f" ±{point.half:.{panel.decimals}f}"
    return f"{point.y:.{panel.decimals}f}{half}{panel.unit}"


def _ends(panel: Panel) -> list[tuple[Curve, float, float]]:
    """The curves that have a last point, with its place, from the top down."""
    last = [(curve, curve.points[-1]) for curve in panel.curves if curve.points]
    found = [(curve, panel.x.at(point.x), panel.y.at(point.y)) for curve, point in last]
    return sorted(found, key=lambda each: each[2])


def _names(panel: Panel, ends: list[tuple[Curve, float, float]], low: float) -> str:
    """The names of the curves where they end, moved apart, each tied to its end."""
    heights = spread([y for _, _, y in ends], APART, TOP, low)
    parts: list[str] = []
    for (curve, _, y), at in zip(ends, heights, strict=True):
        short = curve.name if len(curve.name) <= LONGEST else curve.name[: LONGEST - 1] + "…"
        style = " trivial" if curve.trivial else ""
        parts.append(
            f'<g class="name {curve.look.classes}{style}" data-row="{curve.row}"><title>{escape(curve.name)}</title>'
            f'<path class="tie" d="M-12 {y:.1f}H-4L12 {at:.1f}h4"/>{_text(20, at + 4, short, "")}</g>'
        )
    return "".join(parts)


def spread(wanted: Sequence[float], apart: float, top: float, bottom: float) -> list[float]:
    """Heights as near to those wanted, ascending, as being `apart` from each other allows, between top and bottom."""
    # Less n · apart each, the heights need only not descend: neighbours that do are put at their common mean.
    pools: list[tuple[float, int]] = []
    for n, each in enumerate(wanted):
        mean, count = each - n * apart, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean, count = (before * members + mean * count) / (members + count), members + count
        pools.append((mean, count))
    room = bottom - apart * (len(wanted) - 1)
    level = [min(max(mean, top), max(room, top)) for mean, count in pools for _ in range(count)]
    return [each + n * apart for n, each in enumerate(level)]


def _entry(curve: Curve) -> str:
    """A line of the key, which a script makes a switch."""
    return (
        f'<li><label class="{curve.look.classes}{" trivial" if curve.trivial else ""}" data-row="{curve.row}">'
        f'<input type="checkbox" checked data-row="{curve.row}">{swatch(curve.look)}{escape(curve.name)}</label></li>'
    )


def finite(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that can be drawn."""
    return tuple(point for point in points if math.isfinite(point.y))


def ends_of_bars(points: Sequence[Point]) -> list[float]:
    """What an axis must have room for: every value, and both ends of its interval."""
    return [point.y + side * (point.half or 0.0) for point in finite(points) for side in (-1, 1)]
