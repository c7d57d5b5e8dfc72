"""The first pictures of a report as a PNG: `python examples/report_picture.py out/demo docs/report.png`.

The report itself is a page, drawn by a browser; this draws the same panels with matplotlib, where there is none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from milepost.lab.cells.store import Store
from milepost.lab.report import Findings, gather
from milepost.lab.report.figure import (
    APART,
    BESIDE,
    BOTTOM,
    DODGE,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Curve,
    Panel,
    spread,
)
from milepost.lab.report.headlines import lede
from milepost.lab.report.views import by_distance, by_length, less_window
from milepost.lab.statistics.table import table
from milepost.lab.sweep.recorded import recorded

STYLE = (files("milepost.lab.report") / "templates" / "drawing.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", STYLE.split("prefers-color-scheme")[0]))
DASHES = {"d0": "-", "d1": (0, (5, 2.5)), "d2": (0, (1, 2)), "d3": (0, (7, 2, 1.5, 2))}
MARKS = {"m0": "o", "m1": "s", "m2": "^", "m3": "D", "m4": "v", "m5": "P", "m6": "o", "m7": "s", "m8": "^", "m9": "x"}
HOLLOW = ("m6", "m7", "m8")


def found_in(folder: Path) -> Findings:
    """What a store found."""
    store = Store(folder / "lab.sqlite")
    sweep, command = recorded(store)
    found = gather(store, sweep, command)
    store.close()
    return found


def draw(ax: Axes, panel: Panel) -> None:
    """A panel, in the units of the page."""
    low = BOTTOM + max(0.0, APART * len(panel.curves) - (BOTTOM - TOP))
    ax.set(xlim=(0, WIDTH + BESIDE), ylim=(max(HEIGHT, low + 8), 0))
    ax.axis("off")
    ax.text(0, -6, panel.title.replace("&#x27;", "'"), weight="bold", size=9)
    _frame(ax, panel)
    ends: list[tuple[float, Curve]] = []
    for n, curve in enumerate(panel.curves):
        aside = DODGE * (n - (len(panel.curves) - 1) / 2)
        hue, dash = curve.look.classes.split()
        ink = COLOURS[hue]
        places = [(panel.x.at(point.x) + aside, panel.y.at(point.y), point) for point in curve.points]
        for x, _, point in places:
            if point.half:
                ax.plot(
                    [x, x],
                    [panel.y.at(point.y - point.half), panel.y.at(point.y + point.half)],
                    c=ink,
                    lw=0.6,
                    alpha=0.7,
                )
        face = COLOURS["paper"] if curve.look.marker in HOLLOW else ink
        mark = {"marker": MARKS[curve.look.marker], "ms": 3.6, "mfc": face, "mew": 0.8}
        width = 1.5 if dash == "d0" else 1.1
        ax.plot([x for x, _, _ in places], [y for _, y, _ in places], c=ink, ls=DASHES[dash], lw=width, **mark)
        if places:
            ends.append((places[-1][1], curve))
    ends.sort(key=lambda each: each[0])
    for (y, curve), at in zip(ends, spread([y for y, _ in ends], APART, TOP, low), strict=True):
        ink = COLOURS[curve.look.classes.split()[0]]
        ax.plot([RIGHT - 2, RIGHT + 4, RIGHT + 18, RIGHT + 22], [y, y, at, at], c=ink, lw=0.5, alpha=0.6)
        ax.text(RIGHT + 26, at + 4, curve.name, color=ink, size=7.5, style="italic" if curve.trivial else "normal")


def _frame(ax: Axes, panel: Panel) -> None:
    soft, hair, rule = COLOURS["soft"], COLOURS["hair"], COLOURS["rule"]
    if panel.y.broken is not None:
        bend = panel.y.at(panel.y.broken)
        ax.add_patch(Rectangle((LEFT, TOP), RIGHT - LEFT, bend - TOP, fc=COLOURS["far"], lw=0))
    for value, label in panel.y.ticks:
        ax.plot([LEFT, RIGHT], [panel.y.at(value)] * 2, c=hair, lw=0.6)
        ax.text(LEFT - 6, panel.y.at(value) + 4, label, ha="right", size=7)
    ax.plot([LEFT, RIGHT], [BOTTOM] * 2, c=rule, lw=0.8)
    for n, (value, label) in enumerate(panel.x.ticks):
        ax.text(panel.x.at(value), BOTTOM + 16, label, ha="center", size=7)
        if n < len(panel.beneath):
            ax.text(panel.x.at(value), BOTTOM + 29, panel.beneath[n], ha="center", size=6.5, color=soft)
    if panel.upright is not None:
        ax.plot([panel.x.at(panel.upright[0])] * 2, [TOP, BOTTOM], c=rule, lw=0.7, ls=":")
    if panel.level is not None:
        ax.plot([LEFT, RIGHT], [panel.y.at(panel.level[0])] * 2, c=rule, lw=0.9, ls=":")
        below = 12 if panel.level_beneath else -4
        ax.text(LEFT + 4, panel.y.at(panel.level[0]) + below, panel.level[1], size=6.5, color=soft)
    ax.text(LEFT - 34, 14, panel.y_name, size=7, color=soft)
    ax.text(RIGHT, BOTTOM + (43 if panel.beneath else 30), panel.x_name, ha="right", size=7, color=soft)


def main(arguments: Sequence[str]) -> None:
    """Draw what was trained and what was done to RoPE: by bits, less the window, and by what is recalled."""
    if len(arguments) != 2 or not (Path(arguments[0]) / "lab.sqlite").exists():
        raise ValueError("give the --out of a milepost compare, and the picture to write: out/demo docs/report.png")
    found = found_in(Path(arguments[0]))
    of_rope = [by_length(found, "windows"), less_window(found), by_distance(found, "recall")]
    if not all(any("RoPE, changed" in each.title for each in panels) for panels in of_rope):
        raise ValueError(f"{arguments[0]}: no rows without training on RoPE were judged there, and these are drawn")
    chosen = [next(each for each in panels if "RoPE, changed" in each.title) for panels in of_rope]
    titles = {2: "random bytes recalled"}
    if chosen[0] is not of_rope[0][0]:
        # What was trained comes first.
        chosen, titles = [of_rope[0][0], *chosen], {3: "random bytes recalled"}
    else:
        found_again = [each for each in by_distance(found, "passages") if "RoPE, changed" in each.title]
        chosen, titles = [*chosen, *found_again[:1]], titles | {3: "passages of text recalled"}
    mpl.rcParams["font.family"] = "DejaVu Sans"
    figure, axes = plt.subplots(2, 2, figsize=(13, 8.2), facecolor=COLOURS["paper"])
    for n, (ax, panel) in enumerate(zip(axes.flat, chosen, strict=False)):
        draw(ax, panel)
        if n in titles:
            ax.texts[0].set_text(f"RoPE, changed without training: {titles[n]}")
    for ax in axes.flat[len(chosen) :]:
        ax.axis("off")
    said = "\n".join(lede(found, table(found))[:3])
    figure.text(0.02, 0.985, said, va="top", size=8.5, wrap=True)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.86, bottom=0.02, wspace=0.02, hspace=0.16)
    figure.savefig(arguments[1], dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"report_picture: {error}")
