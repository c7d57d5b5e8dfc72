"""What was measured, as tables and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from milepost.hf.measuring.attention_mass import Mass
from milepost.lab.statistics.intervals import over_seeds, over_windows


@dataclass(frozen=True)
class Score:
    """A mean, half of its 95 % interval, and the values it is the mean of, one for each window.

    drawn: whether the windows were drawn at random, and so are independent; others stand in the order of the text.
    """

    mean: float
    half: float
    values: tuple[float, ...] = ()
    drawn: bool = False

    @property
    def perplexity(self) -> float:
        """e to the mean, where it is of nats."""
        return math.exp(min(self.mean, 700.0))


def score(values: Tensor, drawn: bool = False) -> Score:
    """The mean of values [n]; the interval is nan where there is only one.

    Windows of a text are correlated: neighbours come from one chapter, and may overlap. `over_windows` widens for that;
    values that were drawn have Student's interval.
    """
    numbers = tuple(float(each) for each in values.double().flatten())
    mean = sum(numbers) / len(numbers) if numbers else math.nan
    half = float((over_seeds if drawn else over_windows)(numbers))
    return Score(mean, half, numbers, drawn)


def paired(one: Score, two: Score) -> Score:
    """How much more one has than two, window by window: what the windows share falls out."""
    if len(one.values) != len(two.values):
        raise ValueError(f"paired: {len(one.values)} windows and {len(two.values)}; both must be judged on the same")
    differences = [a - b for a, b in zip(one.values, two.values, strict=True)]
    return score(torch.tensor(differences, dtype=torch.float64), one.drawn)


def with_interval(mean: float, half: float, form: str = ".3f", signed: bool = False) -> str:
    """Write a mean with its interval: a range where that is wider than the mean, nothing where there is none."""
    sign = "+" if signed else ""
    if not math.isfinite(half):
        return f"{mean:{sign}{form}}"
    if half > abs(mean) and not signed:
        return f"{mean:{form}} ({mean - half:{form}} to {mean + half:{form}})"
    return f"{mean:{sign}{form}} ±{half:{form}}"


def perplexity_range(score: Score) -> str:
    """Write a perplexity with the range that its nats have; an interval of nats is not symmetric any more there."""
    if not math.isfinite(score.half):
        return f"{score.perplexity:.4g}"
    low, high = (math.exp(min(score.mean + side * score.half, 700.0)) for side in (-1, 1))
    return f"{score.perplexity:.4g} ({low:.4g} to {high:.4g})"


NONE = "–"
"""In the place of a score that there is none of."""


@dataclass(frozen=True)
class Recall:
    """Nats a token on the second copy of a passage, and on the first."""

    second: Score
    first: Score


@dataclass
class Scores:
    """What every row scored; `print` shows it, `to_json()` keeps it.

    nats and entropy are by row and length, of the same last tokens at every length; recall by row and distance; needle
    by row, length and depth: the share of right answers. mass is where attention goes, or why that cannot be seen. ends
    has the rows that were left out of longer texts, and how many tokens their models can read.
    """

    rows: tuple[str, ...]
    trivial: tuple[str, ...]
    trained: int
    last: int
    windows: int
    nats: dict[str, dict[int, Score]] = field(default_factory=dict[str, dict[int, Score]])
    entropy: dict[str, dict[int, Score]] = field(default_factory=dict[str, dict[int, Score]])
    recall: dict[str, dict[int, Recall]] = field(default_factory=dict[str, dict[int, Recall]])
    needle: dict[str, dict[int, dict[float, float]]] = field(default_factory=dict[str, dict[int, dict[float, float]]])
    mass: dict[str, Mass | str] = field(default_factory=dict[str, "Mass | str"])
    ends: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def lengths(self) -> list[int]:
        """The lengths that were judged."""
        return sorted({length for row in self.nats.values() for length in row})

    def depths(self, row: str) -> list[float]:
        """Return the depths at which a row was asked for the needle."""
        return sorted({depth for each in self.needle[row].values() for depth in each})

    def against(self, row: str, other: str, length: int) -> Score:
        """How many nats a token a row has more than another at a length, paired over the same tokens."""
        one, two = self.nats[row][length], self.nats[other][length]
        # A row that was given up early has read the first of the texts alone.
        n = min(len(one.values), len(two.values))
        return paired(*(replace(each, values=each.values[:n]) for each in (one, two)))

    def grown(self, row: str, length: int, since: int | None = None) -> tuple[float, float, float]:
        """The perplexity at a length over that at another (the trained one): the ratio and its 95 % interval."""
        change = paired(self.nats[row][length], self.nats[row][self.trained if since is None else since])
        return math.exp(change.mean), math.exp(change.mean - change.half), math.exp(change.mean + change.half)

    def to_json(self) -> str:
        """Everything, with the values of single windows, so that others can pair theirs."""
        return json.dumps(_plain(self.__dict__), ensure_ascii=False, indent=2, allow_nan=False)

    def __str__(self) -> str:
        parts = [
            self._by_length(f"nats a token on the last {self.last} tokens, {self.windows} windows", self._nats),
            self._by_length("the same as perplexity, with its range", self._perplexity),
            self._by_length(f"nats a token more than {self.beside}, paired", self.more) if self.beside else "",
            self._by_length("entropy of the guess, in nats", self._entropy),
            self._recalled(),
            self._needles(),
            self._masses(),
            "\n".join(self.left_out()),
        ]
        return "\n\n".join(part for part in parts if part)

    @property
    def beside(self) -> str:
        """The row that others are compared with: the first trivial one."""
        return next(iter(self.trivial), "")

    def left_out(self) -> list[str]:
        """Say which rows were left out of texts that their model cannot read."""
        return [
            f"{row}: left out past {longest:,} tokens, for which this model has positions and for no more"
            for row, longest in self.ends.items()
        ]

    def _nats(self, row: str, length: int) -> str:
        found = self.nats[row].get(length)
        return NONE if found is None else with_interval(found.mean, found.half)

    def _perplexity(self, row: str, length: int) -> str:
        return perplexity_range(self.nats[row][length]) if length in self.nats[row] else NONE

    def more(self, row: str, length: int) -> str:
        """Write the nats a token more than the row that others are compared with; nothing for that row itself."""
        if row == self.beside or not self.beside or any(length not in self.nats[each] for each in (row, self.beside)):
            return ""
        found = self.against(row, self.beside, length)
        return with_interval(found.mean, found.half, signed=True)

    def _entropy(self, row: str, length: int) -> str:
        return f"{self.entropy[row][length].mean:.2f}" if length in self.entropy[row] else NONE

    def _by_length(self, title: str, cell: Callable[[str, int], str]) -> str:
        cells = [[cell(row, length) for length in self.lengths] for row in self.rows]
        return table(title, [f"{length:,}" for length in self.lengths], self.rows, cells)

    def _recalled(self) -> str:
        distances = sorted({each for row in self.recall.values() for each in row})
        if not distances:
            return ""
        found = [self.recall.get(row, {}) for row in self.rows]
        cells = [[_copied(row[each]) if each in row else NONE for each in distances] for row in found]
        title = "nats a token on the second copy of a passage (on the first), by distance"
        return table(title, [f"{each:,}" for each in distances], self.rows, cells)

    def _needles(self) -> str:
        parts: list[str] = []
        for row, by_length in self.needle.items():
            depths = self.depths(row)
            cells = [[f"{100 * by_length[length][depth]:.0f} %" for length in by_length] for depth in depths]
            heads = [f"{length:,}" for length in by_length]
            parts.append(table(f"needle found, {row}: by depth and length", heads, [f"{d:.0%}" for d in depths], cells))
        return "\n\n".join(parts)

    def masses(self) -> tuple[dict[str, Mass], dict[str, list[str]]]:
        """Return where the attention of rows goes, and why others have no weights: the rows by reason."""
        unseen: dict[str, list[str]] = {}
        for row, found in self.mass.items():
            if isinstance(found, str):
                unseen.setdefault(found, []).append(row)
        return {row: found for row, found in self.mass.items() if isinstance(found, Mass)}, unseen

    def _masses(self) -> str:
        lines = ["attention on the first tokens, and its entropy in nats"] if self.mass else []
        seen, unseen = self.masses()
        for row, found in seen.items():
            share, nats = (sum(each) / len(each) for each in (found.mass, found.entropy))
            layers = " ".join(f"{each:.0%}" for each in found.mass)
            lines.append(
                f"  {row}: {share:.1%} on the first {found.sinks} of {found.length:,} tokens ({layers} by layer), "
                f"{nats:.2f} nats"
            )
        for why, rows in unseen.items():
            whose = "all rows" if len(rows) == len(self.mass) > 1 else ", ".join(rows)
            lines.append(f"  no weights of {whose}: {why}")
        return "\n".join(lines)


def _copied(found: Recall) -> str:
    return f"{with_interval(found.second.mean, found.second.half, '.2f')} ({found.first.mean:.2f})"


def table(title: str, heads: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Cells in columns, names before them."""
    first = max([len(name) for name in names], default=0)
    widths = [max(len(head), *(len(row[n]) for row in cells)) for n, head in enumerate(heads)]
    lines = [title, "  " + " " * first + "".join(f"  {head:>{w}}" for head, w in zip(heads, widths, strict=True))]
    for name, row in zip(names, cells, strict=True):
        lines.append(f"  {name:<{first}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(row, widths, strict=True)))
    return "\n".join(line.rstrip() for line in lines)


def _plain(value: Any) -> Any:
    """What JSON can hold; a number that is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (Score, Recall, Mass)):
        return _plain(dict(value.__dict__))
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}  # pyright: ignore
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]  # pyright: ignore
    return value
