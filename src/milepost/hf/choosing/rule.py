"""The rule of choice: of the rows that read no worse than a window with sinks, the one that recalls best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from milepost.hf.choosing.trial import Result
from milepost.lab.statistics.intervals import freedom_over_windows, one_sided, over_windows

MARGIN = 0.02
"""Nats a token by which a row may read worse than the window with sinks."""
Verdict = Literal["within", "undecided", "above"]

RULE = (
    f"of the rows that see every token and whose loss is at most {MARGIN} nats above that of a window with sinks (by "
    f"the upper end of a one-sided 95 % interval), the one that recalls best"
)
"""The rule in words."""


@dataclass(frozen=True)
class Difference:
    """A mean, and its one-sided 95 % bounds: it is above `low`, and it is below `high`."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:+.3f}" + (f" ({self.low:+.3f} to {self.high:+.3f})" if math.isfinite(self.low) else "")


@dataclass(frozen=True)
class Standing:
    """What a row came to, beside the window with sinks on the same texts.

    more: nats a token more than the window. recall: nats a token saved, against the window, on passages further back
    than it sees, by depth. found: pass keys found, of how many.
    """

    row: str
    texts: int
    nats: float
    more: Difference
    recall: tuple[Difference, ...]
    found: tuple[int, int]

    @property
    def verdict(self) -> Verdict:
        """Whether the row reads as well as the window with sinks, within the margin."""
        if self.more.high <= MARGIN:
            return "within"
        # A single text of one block has no interval, and decides nothing.
        return "above" if self.more.low > MARGIN else "undecided"

    @property
    def recalled(self) -> float:
        """Return nats saved, the mean over depths; 0 where nothing is repeated."""
        return sum(each.mean for each in self.recall) / len(self.recall) if self.recall else 0.0


def difference(values: Sequence[float], drawn: bool = False) -> Difference:
    """Return the mean of differences in the order of the text, with bounds that allow for neighbours being alike."""
    n = len(values)
    mean = sum(values) / n if n else math.nan
    freedom = freedom_over_windows(n, drawn)
    half = one_sided(float(over_windows(np.asarray(values))), freedom) if n > 1 else math.nan
    return Difference(mean, mean - half, mean + half, n)


def standing(row: str, results: Mapping[int, Result], window: Mapping[int, Result]) -> Standing:
    """Return how a row stands beside the window, on the texts that both have read."""
    texts = sorted(set(results) & set(window))
    more = [a - b for n in texts for a, b in zip(results[n].blocks, window[n].blocks, strict=True)]
    depths = len(results[texts[0]].copies) if texts else 0
    saved = tuple(difference([window[n].copies[d] - results[n].copies[d] for n in texts]) for d in range(depths))
    keys = [results[n].found for n in texts if results[n].found is not None]
    own = [each for n in texts for each in results[n].blocks]
    nats = sum(own) / len(own) if own else math.nan
    return Standing(row, len(texts), nats, difference(more), saved, (sum(map(bool, keys)), len(keys)))


def ranked(standings: Sequence[Standing]) -> list[Standing]:
    """Return rows as the halving goes by them: those that seem to read as well by recall, then the others by loss.

    By means alone: by intervals a row that varies would go on in place of one that is surely a little too dear.
    """
    return sorted(
        standings,
        key=lambda each: (True, each.more.mean) if each.more.mean > MARGIN else (False, -each.recalled, each.more.mean),
    )


def chosen(standings: Sequence[Standing]) -> Standing | None:
    """Return the row that the rule chooses, or None where none reads as well as the window."""
    within = [each for each in standings if each.verdict == "within"]
    return min(within, key=lambda each: (-each.recalled, each.more.mean)) if within else None
