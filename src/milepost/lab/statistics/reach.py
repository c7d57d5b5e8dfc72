"""Reach: the longest text that a row can be given without losing bits on the last bytes of it.

The same bytes are judged at every length, those before fixed ends, and one rule serves all rows. What they cost, less
what they cost the checkpoint as trained when it is given no more than the trained length, end by end, may not exceed a
tolerance. To cut the text off is what anybody can do, and costs nothing: a row that reads on and pays for it has
reached its end. The difference is paired, and has an interval; so the reach has one too, from the length up to which
the loss is surely within the tolerance to the one up to which it may be.

A model that has not learned to read has no reach: it loses nothing, whatever it is given. One has learned if its bits
over windows of the trained length, with their interval, are fewer than those of a table of byte pairs, which knows
one byte back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.measures import Difference, paired


@dataclass(frozen=True)
class Reach:
    """How far a row holds. None stands for not even the trained length."""

    length: int | None
    """By its means."""
    least: int | None
    """As far as it surely holds, by the 95 % intervals of every length up to there."""
    most: int | None
    """As far as it may hold."""
    longest: int
    """As far as it was judged."""

    @property
    def to_the_end(self) -> bool:
        """True if it holds as far as it was judged, and so perhaps farther."""
        return self.length == self.longest

    @property
    def surely(self) -> bool:
        """True if its interval, too, says so."""
        return self.least == self.longest

    @property
    def breaks(self) -> bool:
        """True if its interval says that it does not."""
        return self.most != self.longest


def reach(findings: Findings, row: Row) -> Reach | None:
    """Return the reach of a row; None where it was not judged, or its model has not learned to read."""
    lengths = [length for length in findings.lengths("ends") if length >= findings.ran.trained]
    if not lengths or not has_learned(findings, row.name):
        return None
    lost = [loss(findings, row, length) for length in lengths]
    if lost[0] is None:
        return None
    by_mean, surely, perhaps = (_furthest(lengths, lost, findings.tolerance, side) for side in (0, 1, -1))
    return Reach(by_mean, surely, perhaps, lengths[-1])


def _furthest(lengths: Sequence[int], lost: Sequence[Difference | None], tolerance: float, side: int) -> int | None:
    """The last length before the loss first exceeds the tolerance: by its mean, or by the upper or lower end of it."""
    furthest: int | None = None
    for length, each in zip(lengths, lost, strict=True):
        if each is None:
            break
        half = math.inf if each.half is None else each.half
        # Written so that what is not a number does not hold.
        if not (each.mean + side * half if side else each.mean) <= tolerance:
            break
        furthest = length
    return furthest


def loss(findings: Findings, row: Row, length: int) -> Difference | None:
    """What the last bytes cost more when a row is given `length` than when the text is cut off at the trained one."""
    plain = findings.of(row.name)
    here, bar = row.at("ends", length), None if plain is None else plain.at("ends", findings.ran.trained)
    if here is not None and here is bar and math.isfinite(here.mean):
        return Difference(0.0, 0.0, 0.0)
    return paired(here, bar)


def has_learned(findings: Findings, name: str) -> bool:
    """True if a trained scheme reads better than a table of byte pairs, by its interval over windows."""
    plain = findings.of(name)
    own = None if plain is None else plain.at("windows", findings.ran.trained)
    if own is None or not math.isfinite(own.mean):
        return False
    half = math.inf if own.half is None else own.half
    return math.isinf(findings.ran.pairs) or own.mean + half < findings.ran.pairs
