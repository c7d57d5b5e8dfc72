"""What the demo is there to show, asked of its store: each claim with its figures, and whether its interval carries it.

    milepost report out/demo --claims

A claim holds only where the whole 95 % interval is on its side; a mean alone carries nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from milepost.lab.schemes.naming import WINDOW
from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.measures import Difference, Measure, paired
from milepost.lab.statistics.reach import loss
from milepost.lab.statistics.table import Line, difference_in_words, in_words, saves, table

MUCH = 0.5
"""By so many bits, at least, plain RoPE must be worse far out for the demo to say that it breaks."""
NOTHING = 0.02
"""Who surely saves less than so many bits has forgotten."""
FIXED, LEARNED = ("alibi", "alibi-steep"), ("t5", "kerple")


@dataclass(frozen=True)
class Claim:
    """One thing that the demo shows, or fails to show."""

    says: str
    holds: bool
    figures: str


def claims(findings: Findings) -> list[Claim]:
    """Every claim, in the order in which the field argues about them; those whose rows were not judged do not hold."""
    lines = {(line.row.name, line.row.variant): line for line in table(findings).lines}
    return [
        _breaks(findings),
        _one_holds("a fixed bias holds", [_holds(findings, lines, name) for name in FIXED]),
        _one_holds("a learned bias holds", [_holds(findings, lines, name) for name in LEARNED]),
        _one_holds("the window holds", [_holds(findings, lines, "rope", WINDOW)]),
        _forgets(findings),
        *_repaired(findings, list(lines.values())),
    ]


def _breaks(findings: Findings) -> Claim:
    """Return the last bytes cost plain RoPE much more far out than where the text is cut off at its own length."""
    says = f"plain RoPE breaks: it loses more than {MUCH:g} bits far past its length"
    row, longest = findings.of("rope"), max(findings.ran.lengths, default=0)
    lost = None if row is None else loss(findings, row, longest)
    if lost is None:
        return Claim(says, False, "not judged")
    return Claim(says, _above(lost, MUCH), f"loses {difference_in_words(lost)} at {longest:,}")


def _holds(findings: Findings, lines: dict[tuple[str, str], Line], name: str, variant: str = "") -> tuple[bool, str]:
    """True if a row surely holds to the longest length, and what it loses there."""
    line, longest = lines.get((name, variant)), max(findings.ran.lengths, default=0)
    lost = None if line is None else loss(findings, line.row, longest)
    if line is None or lost is None:
        return False, f"{name} was not judged"
    surely = line.reach is not None and line.reach.surely
    return surely, f"{line.row.label} loses {difference_in_words(lost)} at {longest:,}"


def _one_holds(says: str, found: list[tuple[bool, str]]) -> Claim:
    """Holds where one row does; the others are shown beside it."""
    return Claim(says, any(each for each, _ in found), "; ".join(figures for _, figures in found))


def _forgets(findings: Findings) -> Claim:
    """Return what the window saves on bytes that it read long ago: nothing, by both kinds of recall."""
    row, says = findings.of("rope", WINDOW), "the window forgets: what left it saves nothing when it comes again"
    far = [] if row is None else list(_far(findings, row))
    none = all(each.mean + (each.half or 0.0) < NOTHING for _, each in far)
    return Claim(says, bool(far) and none, "; ".join(f"{what} {in_words(each)}" for what, each in far) or "not judged")


def _repaired(findings: Findings, lines: list[Line]) -> Iterator[Claim]:
    """Of the rows that see every byte and surely hold, the one that saves most on what came long ago."""
    window = findings.of("rope", WINDOW)
    whole = [line for line in lines if line.row.name == "rope" and line.row.variant and line.row.whole]
    holding = [line for line in whole if line.reach is not None and line.reach.surely]
    names = ", ".join(line.row.variant for line in holding) or "none"
    yield Claim("a repaired RoPE holds, with every byte in sight", bool(holding), names)
    found = [(line.row, dict(_far(findings, line.row))) for line in holding]
    recalling = [(row, far) for row, far in found if far]
    if not recalling or window is None:
        yield Claim("and recalls what came long before its trained length", False, "not judged, or none holds")
        return
    row, far = max(recalling, key=lambda each: sum(saved.mean for saved in each[1].values()))
    bars = dict(_far(findings, window))
    for what, saved in far.items():
        more = paired(saved, bars.get(what))
        apart = more is not None and _above(more, 0.0)
        figures = f"{row.variant} saves {in_words(saved)}"
        figures += "" if more is None else f", {difference_in_words(more)} more than the window"
        yield Claim(
            f"and recalls {what} far past its trained length, where the window cannot", saves(saved) and apart, figures
        )


def _far(findings: Findings, row: Row) -> Iterator[tuple[str, Measure]]:
    """Yield what a row saves at the longest distance, by kind of recall."""
    for protocol, what in (("recall", "random bytes"), ("passages", "passages of text")):
        found = row.at(protocol, max(findings.lengths(protocol), default=0))
        if found is not None:
            yield what, found


def _above(difference: Difference, bar: float) -> bool:
    return difference.half is not None and difference.mean - difference.half > bar
