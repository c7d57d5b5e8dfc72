"""The table of a sweep as data: sorted by how far each row holds. The report, the terminal and --csv all show this one.

The best of a column is marked, and so is every row whose difference from it, on the same windows, is not significant:
the interval contains zero. With two seeds nothing is marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from milepost.lab.schemes.naming import WINDOW
from milepost.lab.statistics.findings import Findings, Measure, Row
from milepost.lab.statistics.measures import FEWEST, Difference, paired
from milepost.lab.statistics.reach import Reach, has_learned, reach

SAME = 5e-4
"""Scores closer than this are shown as one: the third decimal is the last that is shown."""
RECALLS = ("recall", "passages")
"""The protocols of recall: random bytes, and passages of the text."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    row: Row
    reach: Reach | None
    """None where it was not judged, or the model has not learned."""
    learned: bool
    """Whether its model reads better than a table of byte pairs."""
    bits: tuple[Measure | None, ...]
    """By length, over windows that do not overlap."""
    same: tuple[bool, ...]
    """By length, whether a training-free row scores just what its checkpoint scores as trained."""
    recall: tuple[Measure | None, ...]
    """Bits saved at the longest distance, by protocol."""
    against: Difference | None
    """Bits at the longest length, less those of the trivial window on the same checkpoint: below zero is better."""
    behind: Difference | None = None
    """Bits at the longest length, less those of the best line there; None for the best itself."""
    best: tuple[bool, ...] = ()
    """By length: the best, or not significantly different from it; what only repeats its checkpoint is not counted."""
    best_recall: tuple[bool, ...] = ()
    """By protocol, the same; what surely saves nothing is not counted."""

    @property
    def effective_length(self) -> int | None:
        """Return the reach by its means."""
        return None if self.reach is None else self.reach.length


@dataclass(frozen=True)
class Table:
    """Lines sorted by reach, the longest first, then by bits at the longest length."""

    trained: int
    lengths: tuple[int, ...]
    distance: int | None
    """The longest distance of recall."""
    recalls: tuple[str, ...]
    """The protocols of recall that were judged."""
    tolerance: float
    lines: tuple[Line, ...]


def table(findings: Findings) -> Table:
    """Return the table of all rows."""
    lengths = findings.lengths("windows")
    recalls = tuple(each for each in RECALLS if findings.lengths(each))
    distance = max((findings.lengths(each)[-1] for each in recalls), default=None)
    lines = [
        Line(
            row=row,
            reach=reach(findings, row),
            learned=has_learned(findings, row.name),
            bits=tuple(row.at("windows", length) for length in lengths),
            same=_same(findings, row, lengths),
            recall=tuple(None if distance is None else row.at(each, distance) for each in recalls),
            against=_against(findings, row, lengths),
        )
        for row in findings.rows
    ]
    best = [extreme((line.bits[n] for line in lines if not line.same[n]), min) for n in range(len(lengths))]
    recalled = [extreme((line.recall[n] for line in lines), max) for n in range(len(recalls))]
    marked = [
        replace(
            line,
            best=tuple(
                not same and not_apart(bits, top) for bits, top, same in zip(line.bits, best, line.same, strict=True)
            ),
            best_recall=tuple(
                saves(each) and not_apart(each, top) for each, top in zip(line.recall, recalled, strict=True)
            ),
            behind=paired(line.bits[-1], best[-1]) if lengths and line.bits[-1] is not best[-1] else None,
        )
        for line in lines
    ]
    sorted_ = tuple(sorted(marked, key=_order))
    return Table(findings.ran.trained, lengths, distance, recalls, findings.tolerance, sorted_)


def not_apart(measure: Measure | None, best: Measure | None) -> bool:
    """True if a score is the best, or its paired difference from the best has an interval that holds zero."""
    if measure is None or best is None or not math.isfinite(measure.mean):
        return False
    if 1 < measure.seeds < FEWEST:
        return False
    if measure is best or measure.mean == best.mean:
        return True
    found = paired(measure, best)
    # Where the windows were not kept, nothing says that the two are alike.
    return found is not None and found.half is not None and found.sign == 0


def saves(measure: Measure | None) -> bool:
    """True if a saving is surely above zero, by every interval there is."""
    if measure is None or 1 < measure.seeds < FEWEST or measure.half is None or not measure.mean > measure.half:
        return False
    return measure.seeds == 1 or (measure.between is not None and measure.mean > measure.between)


def in_words(measure: Measure | None) -> str:
    """Return a score as it is printed: `1.495 ±0.012`."""
    if measure is None:
        return ""
    return shown(measure.mean) + ("" if measure.interval is None else f" ±{measure.interval:.3f}")


def difference_in_words(difference: Difference) -> str:
    """Return a difference as it is printed: `−0.021 ±0.004`, by the wider of its intervals."""
    half = difference.half
    return signed(difference.mean) + ("" if half is None else f" ±{half:.3f}")


def p_in_words(difference: Difference) -> str:
    """Return a p as it is printed: `p = .002`, or nothing where there is none."""
    if difference.p is None or 1 < difference.count < FEWEST:
        return ""
    return "p < .001" if difference.p < 0.001 else f"p = {difference.p:.3f}".replace("0.", ".", 1)


def shown(value: float) -> str:
    """Return a mean with three decimals; what is no number is called so."""
    if math.isnan(value):
        return "no number"
    # What rounds to zero has no sign.
    return "∞" if math.isinf(value) else f"{round(value, 3) + 0.0:.3f}"


def signed(value: float) -> str:
    """Return a difference, with its sign: `−0.021`."""
    if not math.isfinite(value):
        return shown(value)
    return "0.000" if abs(value) < SAME else f"{value:+.3f}".replace("-", "−")


def length_in_words(line: Line) -> str:
    """Return the reach as it is printed: `≥ 2,048`, or `not learned` where the model has not learned to read."""
    if line.reach is None:
        return "" if line.learned else "not learned"
    if line.reach.length is None:
        return "none"
    return f"{'≥ ' if line.reach.to_the_end else ''}{line.reach.length:,}"


def interval_in_words(found: Reach) -> str:
    """Return the interval of a reach: `512 … ≥ 2,048`; empty where it is that of its mean alone."""
    if found.least == found.most == found.length:
        return ""
    least, most = ("none" if each is None else f"{each:,}" for each in (found.least, found.most))
    return f"{least} … {'≥ ' if found.most == found.longest else ''}{most}"


def _same(findings: Findings, row: Row, lengths: tuple[int, ...]) -> tuple[bool, ...]:
    plain = findings.of(row.name) if row.variant else None
    if plain is None:
        return (False,) * len(lengths)
    pairs = ((row.at("windows", length), plain.at("windows", length)) for length in lengths)
    return tuple(a is not None and b is not None and abs(a.mean - b.mean) < SAME for a, b in pairs)


def extreme(measures: Iterable[Measure | None], of: Callable[..., Measure | None]) -> Measure | None:
    """Return the least or the greatest score that is a number, `of` being min or max."""
    known = [each for each in measures if each is not None and math.isfinite(each.mean)]
    return of(known, key=attrgetter("mean"), default=None)


def _against(findings: Findings, row: Row, lengths: tuple[int, ...]) -> Difference | None:
    window = findings.of(row.name, WINDOW)
    if window is None or row is window or not lengths:
        return None
    return paired(row.at("windows", lengths[-1]), window.at("windows", lengths[-1]))


def _order(line: Line) -> tuple[float, float]:
    last = line.bits[-1] if line.bits else None
    at_end = math.inf if last is None or math.isnan(last.mean) else last.mean
    return -(line.effective_length or 0), at_end
