"""Where the name of a curve is written: at its end, or along it where it is alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from milepost.lab.report.figure import APART, BOTTOM, INSET, LEFT, RIGHT, TOP, spread

Numbers = NDArray[np.float64]
LETTER, TALL = 6.3, 11.0
"""How wide a letter is, and how tall a line."""
EARLY = 24.0
"""A curve that ends so far from the edge is named where it ends."""
ALIKE = 0.8
"""Curves that are nowhere further apart, in pixels, look like one."""
CLOSE, FURTHER = 4, 22.0
"""A name that is so close to a curve moves so far away from its end, if that is better."""
LONG = 60
"""Over so many places of the grid one curve has to lie on another for both to be shown."""
GRID: Numbers = np.arange(2 * (LEFT + INSET), 2 * (RIGHT - INSET) + 1, dtype=np.float64) / 2


@dataclass(frozen=True)
class Box:
    """A place that is taken."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right + 4
            and other.left < self.right + 4
            and self.top < other.bottom + 1
            and other.top < self.bottom + 1
        )


@dataclass(frozen=True)
class Name:
    """A name in a picture: the middle of its line where it is written along a curve, its beginning beside one."""

    curve: int
    text: str
    x: float
    y: float
    end: float | None = None
    """The height at which the curve ends, for a name that is tied to it."""

    @property
    def box(self) -> Box:
        """Return the place of a name along a curve."""
        half = LETTER * len(self.text) / 2
        return Box(self.x - half, self.y - TALL, self.x + half, self.y + 2)


def on_grid(points: Sequence[tuple[float, float]]) -> Numbers:
    """Return the heights of a curve [pixels] at every half pixel; NaN where it is not."""
    if not points:
        return np.full(len(GRID), np.nan)
    x, y = (np.array(each, np.float64) for each in zip(*points, strict=True))
    found = np.interp(GRID, x, y, left=np.nan, right=np.nan)
    near = np.clip(np.searchsorted(x, GRID), 1, max(len(x) - 1, 1))
    if len(x) > 1:
        found[~np.isfinite(y[near]) | ~np.isfinite(y[near - 1])] = np.nan
    # The top of a peak may be between two places.
    there = (x >= GRID[0]) & (x <= GRID[-1])
    found[np.rint((x[there] - GRID[0]) * 2).astype(int)] = y[there]
    return found


def named(
    texts: Sequence[str],
    heights: Sequence[Numbers],
    ends: Sequence[float | None],
    low: float,
    taken: Sequence[Box],
    rules: Sequence[Numbers] = (),
    at_ends: bool = False,
) -> list[Name]:
    """Return where each curve is named, and curves that look alike together.

    ends: the height at which each ends, None of one that has no points; low: how far down names may be written;
    rules: horizontal ones, beside which a name would be read as theirs; at_ends: no name along a curve.
    """
    kept = _together(heights, ends)
    joined = {n: ", ".join(texts[each] for each in group) for n, group in kept.items()}
    ended: dict[int, float] = {n: end for n in kept if (end := ends[n]) is not None}
    boxes, along = list(taken), list[Name]()
    crowded = [n for n in ended if not at_ends and any(m != n and abs(ended[n] - ended[m]) < APART for m in ended)]
    early = {n: float(GRID[np.isfinite(heights[n])][-1]) for n in ended if np.isfinite(heights[n]).any()}
    for n, x in early.items():
        if x < GRID[-1] - EARLY:
            boxes.append(about(joined[n], x, ended[n], [heights[m] for m in kept], boxes))
            along.append(Name(n, joined[n], (boxes[-1].left + boxes[-1].right) / 2, boxes[-1].bottom - 1))
    for n in crowded:
        if any(each.curve == n for each in along):
            continue
        others = [*(heights[m] for m in kept if m != n), *rules]
        if (box := clear(joined[n], heights[n], others, boxes)) is not None:
            boxes.append(box)
            along.append(Name(n, joined[n], (box.left + box.right) / 2, box.bottom - 2))
    written = {each.curve for each in along}
    last = sorted(((n, y) for n, y in ended.items() if n not in written), key=lambda each: each[1])
    places = spread([y for _, y in last], APART, TOP, low)
    beside = [Name(n, joined[n], RIGHT, at, y) for (n, y), at in zip(last, places, strict=True)]
    return along + beside


def _together(heights: Sequence[Numbers], ends: Sequence[float | None]) -> dict[int, list[int]]:
    """Return the curves that look alike, by the first of them."""
    found: dict[int, list[int]] = {}
    ended = {n: end for n, end in enumerate(ends) if end is not None}
    for n, end in ended.items():
        first = next((m for m in found if _alike(heights[n], heights[m]) and abs(ended[m] - end) <= ALIKE), n)
        found.setdefault(first, []).append(n)
    return found


def _alike(one: Numbers, other: Numbers) -> bool:
    own, its = np.isfinite(one), np.isfinite(other)
    both = own & its
    # One that ends early is not named with one that goes on.
    return both.sum() > max(own.sum(), its.sum()) / 2 and bool(np.abs(one - other)[both].max() <= ALIKE)


def beneath(heights: Sequence[Numbers]) -> list[tuple[int, int, slice]]:
    """Return the stretches over which a curve lies beneath later ones: which, how many lie on it, and where."""
    found: list[tuple[int, int, slice]] = []
    for n, one in enumerate(heights):
        hidden = [np.abs(one - other) <= ALIKE for other in heights[n + 1 :]]
        depth: Numbers = np.zeros(len(GRID)) + sum((_long(each) for each in hidden), np.zeros(len(GRID)))
        edges = np.flatnonzero(np.diff(depth, prepend=-1, append=-1))
        found += [
            (n, min(int(depth[start]), 2), slice(start, end))
            for start, end in pairwise(edges.tolist())
            if depth[start] > 0
        ]
    return sorted(found, key=lambda each: -each[1])


def _long(cells: NDArray[np.bool_]) -> Numbers:
    """Return 1 in runs that are long, and 0 elsewhere."""
    kept = np.zeros(len(cells))
    edges = np.flatnonzero(np.diff(cells.astype(int), prepend=0, append=0))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - start >= LONG:
            kept[start:end] = 1
    return kept


def about(text: str, x: float, y: float, curves: Sequence[Numbers], boxes: Sequence[Box]) -> Box:
    """Return the place for a name beneath, above or beside the end of a curve, where others are furthest off.

    It is further away where no place near the end is free.
    """
    width = LETTER * len(text)
    middle = min(max(x - width / 2, LEFT), RIGHT - width)

    def around(off: float) -> list[Box]:
        tops = y + off, y - off - TALL
        corners = [(middle, top) for top in tops] + [(x + 8, y - TALL / 2)] + [(x + 8, top) for top in tops]
        found = [Box(left, top, left + width, top + TALL) for left, top in corners]
        free = [each for each in found if each.top > TOP - 4 and each.bottom < BOTTOM + 2 and each.right < RIGHT + 2]
        return free or found[:1]

    def worth(box: Box) -> int:
        return round(min(_distance(each, box) for each in curves)) - 99 * any(map(box.meets, boxes))

    near = around(5.0)
    # The first of those that are equally good.
    best = max(near, key=worth)
    return best if worth(best) >= CLOSE else max([*near, *around(FURTHER)], key=worth)


def leader(x: float, y: float, box: Box) -> str:
    """Return the path from a place to a name about it; none where the name is right beside it."""
    near = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
    return "" if math.dist((x, y), near) < TALL else f"M{x:.1f} {y:.1f}L{near[0]:.1f} {near[1]:.1f}"


def clear(text: str, own: Numbers, others: Sequence[Numbers], boxes: Sequence[Box], least: float = 12.0) -> Box | None:
    """Return the best place along a curve for its name: it touches that curve, and others are so far off at least."""
    width, best, found = LETTER * len(text) + 4, -math.inf, None
    cells = int(width * 2)
    for start in range(4, len(GRID) - cells - 4, 8):
        line = own[start : start + cells]
        if not np.isfinite(line).all():
            continue
        for top in (float(line.min()) - 4 - TALL, float(line.max()) + 4):
            box = Box(float(GRID[start]), top, float(GRID[start + cells]), top + TALL)
            if top < TOP - 4 or box.bottom > BOTTOM - 2 or any(box.meets(each) for each in boxes):
                continue
            apart = min((_distance(each, box) for each in others), default=99.0)
            worth = min(apart, 36.0) - 0.4 * float(np.ptp(line))
            if apart >= least and worth > best:
                best, found = worth, box
    return found


def _distance(line: Numbers, box: Box) -> float:
    """Return how near a curve comes to a box; 0 where it crosses it."""
    inside = line[(box.left <= GRID) & (box.right >= GRID)]
    if (inside < box.top).any() and (inside > box.bottom).any():
        return 0.0
    aside = np.maximum(np.maximum(box.left - GRID, GRID - box.right), 0.0)
    beyond = np.maximum(np.maximum(box.top - line, line - box.bottom), 0.0)
    apart = np.hypot(aside, beyond)
    return float(np.nanmin(apart)) if np.isfinite(apart).any() else 99.0


def level_name(text: str, height: float, heights: Sequence[Numbers], boxes: Sequence[Box]) -> Box:
    """Return the place for the name of a horizontal rule: where no curve is in the way, or at its beginning."""
    rule = np.full(len(GRID), height)
    fallback = Box(LEFT + 4, height - 4 - TALL, LEFT + 4 + LETTER * len(text), height - 4)
    return clear(text, rule, heights, boxes, 3.0) or fallback


__all__ = ["LETTER", "Box", "Name", "about", "beneath", "clear", "leader", "level_name", "named", "on_grid"]
