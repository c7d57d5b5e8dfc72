"""The report of `milepost extend` as one HTML file, in the look of the lab's reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from milepost import __version__
from milepost.hf.choosing.rule import MARGIN, RULE, Difference, Standing
from milepost.hf.choosing.words import does, loading, serves
from milepost.hf.measuring.judged import STOCK
from milepost.hf.measuring.measured_page import SIDES, look_of
from milepost.hf.measuring.scores import NONE
from milepost.lab.command.progress import duration
from milepost.lab.report.figure import BOTTOM, TOP, Curve, Panel, Point, ends_of_bars, finite
from milepost.lab.report.layout import laid_out, write_whole
from milepost.lab.report.look import Look
from milepost.lab.report.scale import broken, doubling, straight

if TYPE_CHECKING:
    from milepost.hf.choosing.choose import Chosen

NATS = "nats per token"
WIDE, HIGH, FAR = 150.0, 18.0, 0.3
"""Of an interval in the table: its width and height, and nats past which it is cut off."""
SAYS = {"within": "yes", "above": "no", "undecided": "not decided"}


@dataclass(frozen=True)
class Interval:
    """An interval as it is drawn in a line of the table: pixels of its ends and its mean; cut: it goes on."""

    low: float
    mean: float
    high: float
    cut: bool


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    row: str
    look: Look
    chosen: bool
    standing: Standing
    reads: str
    drawn: Interval | None
    inside: str


def write_page(found: Chosen, saved: str | None, out: Path) -> Path:
    """Write the report into a folder; it is there wholly or not at all. saved: the candidate that was saved, if any."""
    path = out / "report.html"
    write_whole(page(found, saved, out), path)
    return path


def page(found: Chosen, saved: str | None, out: Path) -> str:
    """Return the report as HTML."""
    candidate = None if saved is None else found.planned[saved]
    own = next((each for each in found.standings if each.row == saved), None)
    served = [] if candidate is None else serves(candidate, str(out))
    if candidate is not None and candidate.config is None:
        served += _nearest_served(found)
    low, high = _span(found.standings)
    return laid_out(
        "extend.html",
        "milepost.hf.choosing",
        command="extend",
        title=_title(found, saved),
        asked=f"From {found.sizes.trained:,} to {found.target:,} tokens, without training.",
        lede=_lede(found, saved, own),
        made=f"milepost {__version__}",
        doubts=found.doubts,
        does=[] if candidate is None else does(candidate),
        code="" if candidate is None else loading(candidate, str(out)),
        served=served,
        rule=RULE,
        margin=MARGIN,
        lines=[_line(found, each, saved, low, high) for each in found.standings],
        wide=WIDE,
        high=HIGH,
        zero=_at(0.0, low, high),
        bound=_at(MARGIN, low, high),
        far=high,
        window=found.window,
        panels=_panels(found),
        left_out=found.left_out,
        sizes=found.sizes,
        target=found.target,
        keys=any(each.found[1] for each in found.standings),
        facts=_facts(found),
    )


def _title(found: Chosen, saved: str | None) -> str:
    if found.stock and saved is None:
        return "Nothing needs to be changed"
    if saved is None:
        return "Nothing was chosen"
    return saved[:1].upper() + saved[1:]


def _lede(found: Chosen, saved: str | None, own: Standing | None) -> list[str]:
    """Return what was chosen and why, and its price, in a few sentences."""
    lines = [f"{found.verdict()[:1].upper()}{found.verdict()[1:]}."]
    named = None if found.best is None else found.best.name
    if own is not None and saved != named:
        lines.append(
            f"{saved} was named by --method and is saved all the same: {own.more} nats a token beside the window."
        )
    if saved is not None:
        price = found.inside.get(saved)
        lines.append(
            f"Within the trained length, {found.sizes.trained:,} tokens, it costs {price.more} nats a token more than "
            f"the model as it is."
            if price
            else "What it costs within the trained length was not measured: it was given up early."
        )
    stock = next((each for each in found.standings if each.row == STOCK), None)
    if stock is not None and not found.stock:
        lines.append(f"The model as it is stands at {stock.more} there.")
    return lines


def _nearest_served(found: Chosen) -> list[tuple[str, str]]:
    """Return the row that reads best of those that other engines serve."""
    able = [each for each in found.standings if each.row != STOCK and found.planned[each.row].vllm is not None]
    if not able:
        return []
    best = min(able, key=lambda each: each.more.mean)
    said = f"{best.row}: {best.more} nats a token beside the window; --method {best.row!r} saves it"
    return [("nearest that vLLM serves", said)]


# The table


def _line(found: Chosen, own: Standing, saved: str | None, low: float, high: float) -> Line:
    inside = found.inside.get(own.row)
    return Line(
        own.row, look_of(found.measured, own.row), own.row == saved, own, SAYS[own.verdict],
        _drawn(own.more, low, high), str(inside.more) if inside else NONE,
    )  # fmt: skip


def _span(standings: Sequence[Standing]) -> tuple[float, float]:
    """Return from where to where intervals are drawn."""
    ends = [each for own in standings for each in (own.more.low, own.more.high) if math.isfinite(each)]
    return max(-FAR, min([-MARGIN, *ends])), min(FAR, max([2 * MARGIN, *ends]))


def _at(value: float, low: float, high: float) -> float:
    return 4 + (WIDE - 8) * (min(max(value, low), high) - low) / (high - low)


def _drawn(more: Difference, low: float, high: float) -> Interval | None:
    if not math.isfinite(more.mean):
        return None
    ends = [more.low, more.high] if math.isfinite(more.low) else [more.mean, more.mean]
    return Interval(_at(ends[0], low, high), _at(more.mean, low, high), _at(ends[1], low, high), more.mean > high)


# The pictures


def _panels(found: Chosen) -> list[Panel]:
    measured = found.measured
    recall = {
        each.row: [
            Point(float(far), saved.mean, (saved.high - saved.mean) if math.isfinite(saved.high) else None)
            for far, saved in zip(found.sizes.distances, each.recall, strict=True)
        ]
        for each in found.standings
    }
    panels = [_panel(found, "Recall: nats saved on a passage, by how far back it stands", recall, "tokens back")]
    if found.thorough:
        by_length: dict[str, list[Point]] = {}
        for row in measured.rows:
            for length in measured.lengths if row not in measured.trivial else []:
                if length in measured.nats[row]:
                    more = measured.against(row, found.window, length)
                    half = more.half if math.isfinite(more.half) else None
                    by_length.setdefault(row, []).append(Point(float(length), more.mean, half))
        panels.append(_panel(found, "Loss more than the window's, by length", by_length, "length in tokens"))
    return [each for each in panels if each is not None]


def _panel(found: Chosen, title: str, by_row: dict[str, list[Point]], x_name: str) -> Panel | None:
    curves = tuple(
        Curve(n, row, look_of(found.measured, row), finite(sorted(points, key=lambda each: each.x)))
        for n, (row, points) in enumerate(by_row.items())
        if points
    )
    points = [point for curve in curves for point in curve.points]
    if not points:
        return None
    ends = [*ends_of_bars(points), 0.0]
    room = max(0.05, 0.06 * (max(ends) - min(ends)))
    saved = "Recall" in title
    y = (
        straight(min(ends) - room, max(ends) + room, BOTTOM, TOP)
        if saved
        else broken(ends, [0.0], BOTTOM, TOP, near=0.3)
    )
    x = doubling(sorted({point.x for point in points}), *SIDES)
    level = (0.0, "the window")
    return Panel(title, curves, x, y, x_name, NATS, level=level)


def _facts(found: Chosen) -> dict[str, str]:
    sizes, least = found.sizes, min(each.texts for each in found.standings)
    most = max(each.texts for each in found.standings)
    read = f"{most}" if least == most else f"{least} to {most}, those that did better more"
    return {
        **found.facts,
        "lengths": f"trained at {sizes.trained:,}, read at {sizes.target:,}",
        "endings": f"{read}; of each the last {sizes.last:,} tokens are judged, in blocks of {sizes.block}",
        "recall": f"{len(sizes.starts)} passages of {sizes.passage} tokens in each text, from "
        f"{' and '.join(f'{each:,}' for each in (sizes.distances[:1] + sizes.distances[-1:]))} tokens back; each comes "
        f"again at the end"
        if sizes.starts
        else "not measured: no passage is out of the window's sight at this length",
        "choice": "thorough" if found.thorough else "quick (--thorough measures all candidates on more endings)",
        "time": f"{duration(found.took)} of measuring, {duration(found.said)} said before",
    }
