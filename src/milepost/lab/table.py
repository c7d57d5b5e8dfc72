"""The table of a sweep as data: sorted by how far each row holds. The report, the terminal and --csv all show this one.

A row's effective length, which readers see as its **reach**, is the longest length up to which its score, over windows
that do not overlap, stays within a tolerance of its own score at the trained length, and is not beaten by more than
that by the trivial window on the same checkpoint, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from milepost.lab.findings import Findings, Measure, Row
from milepost.lab.naming import WINDOW

SAME = 5e-4
"""Scores closer than this are told as one: the third decimal is the last that is shown."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    row: Row
    effective_length: int | None
    """None where there is no score at the trained length, or the window beats it even there."""
    to_the_end: bool
    """Whether it holds as far as it was judged, and so perhaps farther."""
    bits: tuple[Measure | None, ...]
    """By length, over windows that do not overlap."""
    same: tuple[bool, ...]
    """By length, whether a training-free row scores just what its checkpoint scores as trained."""
    recall: Measure | None
    """At the longest distance."""
    against: float | None
    """Bits at the longest length, less those of the trivial window on the same checkpoint: below zero is better."""
    best: tuple[bool, ...] = ()
    """By length, whether no line is better. A line that only repeats its checkpoint is not counted."""
    best_recall: bool = False


@dataclass(frozen=True)
class Table:
    """Lines sorted by effective length, the longest first, then by bits at the longest length."""

    trained: int
    lengths: tuple[int, ...]
    distance: int | None
    """The longest distance of recall."""
    tolerance: float
    lines: tuple[Line, ...]

    def head(self) -> list[str]:
        """The titles of the columns."""
        recall = [] if self.distance is None else [f"recall at {self.distance:,}"]
        return ["scheme", "reach", *(f"{length:,}" for length in self.lengths), *recall, "against window"]

    def text(self) -> list[list[str]]:
        """Every line as words, under the titles of `head`; what is trivial is marked with *."""
        return [
            [
                f"{line.row.label}{' *' if line.row.trivial else ''}",
                length_in_words(line),
                *map(in_words, line.bits),
                *([] if self.distance is None else [in_words(line.recall)]),
                "" if line.against is None else signed(line.against),
            ]
            for line in self.lines
        ]


def table(findings: Findings) -> Table:
    """The table of all rows."""
    lengths, distances = findings.lengths("windows"), findings.lengths("recall")
    distance = distances[-1] if distances else None
    lines = [_line(findings, row, lengths, distance) for row in findings.rows]
    least = [_least(line.bits[n] for line in lines if not line.same[n]) for n in range(len(lengths))]
    recalled = _least(line.recall for line in lines)
    marked = [
        replace(
            line,
            best=tuple(
                _is(bits, top) and not same for bits, top, same in zip(line.bits, least, line.same, strict=True)
            ),
            best_recall=_is(line.recall, recalled),
        )
        for line in lines
    ]
    return Table(findings.ran.trained, lengths, distance, findings.tolerance, tuple(sorted(marked, key=_order)))


def _line(findings: Findings, row: Row, lengths: tuple[int, ...], distance: int | None) -> Line:
    length = effective_length(findings, row)
    return Line(
        row=row,
        effective_length=length,
        to_the_end=bool(lengths) and length == lengths[-1],
        bits=tuple(row.at("windows", length) for length in lengths),
        same=_same(findings, row, lengths),
        recall=None if distance is None else row.at("recall", distance),
        against=_against(findings, row, lengths),
    )


def effective_length(findings: Findings, row: Row) -> int | None:
    """How far a row holds."""
    own = row.at("windows", findings.ran.trained)
    if own is None or not math.isfinite(own.mean):
        return None
    window = findings.of(row.name, WINDOW) if row.variant != WINDOW else None
    furthest: int | None = None
    for length in (each for each in findings.lengths("windows") if each >= findings.ran.trained):
        here = row.at("windows", length)
        bar = None if window is None else window.at("windows", length)
        # Written so that what is not a number does not hold.
        if here is None or not here.mean <= own.mean + findings.tolerance:
            break
        if bar is not None and not here.mean <= bar.mean + findings.tolerance:
            break
        furthest = length
    return furthest


def in_words(measure: Measure | None) -> str:
    """A score as it is printed: `1.495 ±0.012`."""
    if measure is None:
        return ""
    return shown(measure.mean) + ("" if measure.half is None else f" ±{measure.half:.3f}")


def shown(value: float) -> str:
    """A mean with three decimals; what is no number is told as such."""
    if math.isnan(value):
        return "no number"
    return "∞" if math.isinf(value) else f"{value:.3f}"


def signed(value: float) -> str:
    """A difference, with its sign: `−0.021`."""
    return "0.000" if abs(value) < SAME else f"{value:+.3f}".replace("-", "−")


def length_in_words(line: Line) -> str:
    """The effective length as it is printed: `≥ 2,048`."""
    if line.effective_length is None:
        return "none"
    return f"{'≥ ' if line.to_the_end else ''}{line.effective_length:,}"


def _same(findings: Findings, row: Row, lengths: tuple[int, ...]) -> tuple[bool, ...]:
    plain = findings.of(row.name) if row.variant else None
    if plain is None:
        return (False,) * len(lengths)
    pairs = ((row.at("windows", length), plain.at("windows", length)) for length in lengths)
    return tuple(a is not None and b is not None and abs(a.mean - b.mean) < SAME for a, b in pairs)


def _is(measure: Measure | None, least: float) -> bool:
    return measure is not None and measure.mean == least


def _least(measures: Iterable[Measure | None]) -> float:
    return min((each.mean for each in measures if each is not None and math.isfinite(each.mean)), default=math.nan)


def _against(findings: Findings, row: Row, lengths: tuple[int, ...]) -> float | None:
    window = findings.of(row.name, WINDOW)
    if window is None or row is window or not lengths:
        return None
    here, bar = row.at("windows", lengths[-1]), window.at("windows", lengths[-1])
    return None if here is None or bar is None else here.mean - bar.mean


def _order(line: Line) -> tuple[float, float]:
    last = line.bits[-1] if line.bits else None
    at_end = math.inf if last is None or math.isnan(last.mean) else last.mean
    return -(line.effective_length or 0), at_end
