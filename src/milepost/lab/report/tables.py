"""The tables of a report, as data: what stands in each cell; tables.html lays them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from milepost.lab.judging.judge import LAST
from milepost.lab.schemes.naming import proper
from milepost.lab.statistics.findings import Findings, Measure, Row, Tried
from milepost.lab.statistics.measures import Difference
from milepost.lab.statistics.table import Table, extreme, interval_in_words, length_in_words, not_apart, shown, signed
from milepost.lab.tasks import PROTOCOLS

MEANS = {
    "windows": (
        "Windows",
        "The text is cut into windows of each length that do not overlap, and every byte counts. The first bytes of a "
        "window have little before them to go by, so longer windows score better for that reason alone (the "
        "early-token effect): compare rows at one length, rather than lengths of one row.",
    ),
    "less": (
        "Less the window",
        "The bits of each row less those of the trivial window, on the same windows of text: what these have in common "
        "falls out, so rows come apart here that lie on one another by their bits. Below zero a row gains from what "
        "lies farther back; above zero it would have been better to forget it.",
    ),
    "ends": (
        "Last bytes at fixed ends",
        "The same bytes, the last 256 at most before fixed places in the text, are judged at every length; only how "
        "far back the model may look changes. So the early-token effect is gone: a curve that falls uses what stands "
        "farther back, a level one gains nothing from it, a rising one is hurt by it.",
    ),
    "recall": (
        "Recall of random bytes",
        "Some bytes, drawn one by one from the text, come twice; a row is judged by what it saves on the second copy, "
        "against the same bytes at the same place where they did not come before, by how far back the first copy "
        "began. Nothing but looking back saves anything: a window shorter than the distance may keep its bits low on "
        "text, but it saves nothing here. More is better.",
    ),
    "passages": (
        "Recall of text",
        "The same with passages of the text itself, and text between the copies: what comes again in real reading, "
        "where a good guess leaves less to save. More is better.",
    ),
    "sliding": (
        "Sliding",
        "Windows overlap, and only the last quarter of each counts, so every byte has at least three quarters of the "
        "window before it. It scores better than windows that do not overlap, for the same model.",
    ),
    "alone": (
        "Each byte alone",
        "Every byte is judged by itself, on exactly the window that ends before it. That costs one reading for each "
        "byte, so few are judged and the interval is wide.",
    ),
}
"""By protocol: what it is called and what it means."""
KINDS = {"recall": "random", "passages": "text"}
"""What is recalled, by protocol."""
COSTS = {"trained": "trained at\nbytes/s", "read": "reads\nbytes/s", "written": "writes\nbytes/s", "memory": "memory"}
"""What is measured, each with its heading."""


@dataclass(frozen=True)
class Cell:
    """A value, and half its interval, small, where the column has intervals."""

    text: str = ""
    half: str | None = None
    strong: bool = False
    classes: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a table: its cells, and the row it is of, or what it is called."""

    cells: Sequence[Cell]
    row: Row | None = None
    name: str = ""
    reach: tuple[str, str, str] = ("", "", "")
    """In the sorted table: the reach, how many times the trained length that is, and its interval."""


@dataclass(frozen=True)
class Grid:
    """A table: its headings, some of two lines, and its lines."""

    heads: tuple[str, ...]
    lines: tuple[Line, ...]


def by_length(table: Table) -> Grid | None:
    """Return the sorted table; what a narrow screen shows without scrolling comes first."""
    if not table.lengths:
        return None
    windows = any(line.against is not None for line in table.lines)
    lines: list[Line] = []
    for line in table.lines:
        cells = [_against(line.against)] if windows else []
        cells += [cell(each, best) for each, best in zip(line.recall, line.best_recall, strict=True)]
        for length, measure, same, best in zip(table.lengths, line.bits, line.same, line.best, strict=True):
            past = line.reach is not None and length > (line.reach.length or 0)
            cells.append(cell(measure, best, [word for word, holds in (("same", same), ("past", past)) if holds]))
        times = "" if line.effective_length is None else f"{line.effective_length / table.trained:g}×"
        between = "" if line.reach is None else interval_in_words(line.reach)
        lines.append(Line(cells, line.row, reach=(length_in_words(line), times, between)))
    return Grid((*(KINDS[each] for each in table.recalls), *(f"{length:,}" for length in table.lengths)), tuple(lines))


def _against(difference: Difference | None) -> Cell:
    """Return a difference and the wider of its intervals; strong where it is clear of zero."""
    if difference is None:
        return Cell(classes="sign")
    half = "" if difference.half is None else f"±{difference.half:.3f}".replace("±0", "±")
    return Cell(signed(difference.mean), half, bool(difference.sign), "sign")


def cell(measure: Measure | None, best: bool = False, classes: Iterable[str] = (), share: bool = False) -> Cell:
    """A mean with its interval; strong is the best of its column, and what is not significantly different from it."""
    if measure is None:
        return Cell()
    mean = f"{100 * measure.mean:.1f} %" if share else shown(measure.mean)
    within = measure.interval
    half = "" if within is None else f"{100 * within:.1f}" if share else f"{within:.3f}"
    return Cell(mean, half and f"±{half.removeprefix('0')}", best, " ".join([*classes, *(["best"] if best else [])]))


def _column(
    measures: Sequence[Measure | None], of: Callable[..., Measure | None], share: bool = False
) -> tuple[Cell, ...]:
    """Return a column of scores; strong is the best, by min or max, and what is not significantly different from it."""
    best = extreme(measures, of)
    same = [not_apart(each, best) for each in measures]
    # Of shares none is marked where none differs.
    marked = not share or any(each is not None and not level for each, level in zip(measures, same, strict=True))
    return tuple(cell(each, marked and level, share=share) for each, level in zip(measures, same, strict=True))


def _lines(rows: Sequence[Row], columns: Iterable[Sequence[Cell]]) -> tuple[Line, ...]:
    """Return a line for each row, from the cells of every column."""
    return tuple(Line(cells, row) for row, cells in zip(rows, zip(*columns, strict=True), strict=True))


def by_distance(findings: Findings, table: Table, protocol: str) -> Grid | None:
    """Return what every row saves on a second copy, at each distance, sorted as the table is."""
    distances, rows = findings.lengths(protocol), [line.row for line in table.lines]
    columns = [_column([row.at(protocol, at) for row in rows], max) for at in distances]
    return Grid(tuple(f"{each:,}" for each in distances), _lines(rows, columns)) if distances else None


def differences(findings: Findings, table: Table) -> Grid | None:
    """Return every row less the window on its checkpoint, and less the best row, each with both intervals."""
    lines = [line for line in table.lines if line.against is not None or line.behind is not None]
    if not lines:
        return None
    several = len(findings.ran.seeds) > 1
    heads = ("bits", "over windows", "over seeds") if several else ("bits", "over windows")
    found = (Line([*_pair(each.against, several), *_pair(each.behind, several)], each.row) for each in lines)
    return Grid(heads, tuple(found))


def _pair(found: Difference | None, several: bool) -> list[Cell]:
    if found is None:
        return [Cell()] * (3 if several else 2)
    halves = (found.windows, found.seeds)[: 2 if several else 1]
    mean = Cell(signed(found.mean), strong=bool(found.sign))
    return [mean, *(Cell("" if each is None else f"±{each:.3f}") for each in halves)]


def by_protocol(findings: Findings) -> Grid | None:
    """Return the trained rows at the trained length under every protocol of bits."""
    length = findings.ran.trained
    names = [name for name in ("windows", "sliding", "alone", "ends") if length in findings.lengths(name)]
    rows = [row for row in findings.rows if not row.variant]
    if len(names) < 2:
        return None
    heads = (MEANS[name][0].lower().replace(" at ", "\nat ") for name in names)
    columns = [_column([row.at(name, length) for row in rows], min) for name in names]
    return Grid((f"at {length:,} bytes", *heads), _lines(rows, columns))


def by_quarter(findings: Findings, table: Table) -> Grid | None:
    """The bits of each quarter of the longest windows, and of their last 256 bytes, as far as the store has them."""
    length = table.lengths[-1] if table.lengths else 0
    rows = [(line.row, quarters(line.row.positions.get(length, []), length)) for line in table.lines]
    if length < 4 or not any(found for _, found in rows):
        return None
    lines: list[Line] = []
    for row, found in rows:
        last = Cell(shown(row.last[length])) if length in row.last else Cell()
        lines.append(Line([*([Cell(shown(each)) for each in found] or [Cell()] * 4), last], row))
    heads = ("first quarter", "second", "third", "last quarter", f"last {min(LAST, length)} bytes")
    return Grid((f"at {length:,} bytes", *heads), tuple(lines))


def quarters(bins: Sequence[tuple[int, float]], length: int) -> list[float]:
    """Return the mean of each quarter of a window from means over bins of positions; [] where no bins begin there."""
    edges = [first for first, _ in bins] + [length]
    cuts = [n * length // 4 for n in range(5)]
    if not length or length % 4 or not set(cuts) <= set(edges):
        return []
    parts = [(first, end - first, bits) for (first, bits), end in zip(bins, edges[1:], strict=True)]
    return [
        sum(size * bits for first, size, bits in parts if start <= first < stop) / (stop - start)
        for start, stop in pairwise(cuts)
    ]


def by_task(findings: Findings) -> Grid | None:
    """Return the share of right answers at each task's longest length."""
    tasks = [(PROTOCOLS[task], task, findings.lengths(task)[-1]) for task in findings.tasks()]
    if not tasks:
        return None
    rows = [row for row in findings.rows if any(task in row.scores for _, task, _ in tasks)]
    columns = [_column([row.at(task, longest) for row in rows], max, share=True) for _, task, longest in tasks]
    heads = (f"{protocol.title}\nat {longest:,}" for protocol, _, longest in tasks)
    guess = Line([Cell(f"{100 * protocol.task.random:.1f} %", "") for protocol, _, _ in tasks], name="a guess")
    return Grid(("right answers", *heads), (*_lines(rows, columns), guess))


def costs(findings: Findings) -> Grid | None:
    """Return what each row costs: parameters, bytes a second, and memory."""
    rows = [row for row in findings.rows if row.costs]
    if not rows:
        return None
    names = [name for name in COSTS if any(name in row.costs for row in rows)]
    columns = [[Cell("" if row.variant else f"{row.parameters:,}") for row in rows]]
    columns += [[Cell(_size(row.costs[name], name) if name in row.costs else "") for row in rows] for name in names]
    return Grid(("scheme", "parameters", *(COSTS[name] for name in names)), _lines(rows, columns))


def _size(value: float, name: str) -> str:
    """Bytes a second by three figures, or memory in MiB."""
    return f"{value / 2**20:,.0f} MiB" if name == "memory" else f"{float(f'{value:.3g}'):,.0f}"


def tried(findings: Findings) -> Grid | None:
    """Return the rates and settings that were tried, scheme by scheme, with their bits on the validation text."""
    if not findings.tried:
        return None
    lengths = sorted({length for each in findings.tried for length in each.bits})
    lines: list[Line] = []
    for each in sorted(findings.tried, key=_by_scheme):
        of = f"{proper(each.name)}: {each.row}" if each.row else proper(each.name)
        values = [*(each.bits.get(length) for length in lengths), each.mean if len(each.bits) == len(lengths) else None]
        cells = [Cell("" if value is None else shown(value)) for value in values]
        lines.append(Line([Cell(each.setting, strong=each.chosen), *cells], name=of))
    return Grid(("scheme", "rate or setting", *(f"{length:,}" for length in lengths), "mean"), tuple(lines))


def _by_scheme(tried: Tried) -> tuple[Any, ...]:
    """Rates before rows, then by scheme, and rates in their order."""
    return bool(tried.row), tried.name, tried.row, tried.rate or 0.0, tried.times or 0.0
