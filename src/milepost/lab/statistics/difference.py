"""Two stores side by side: what was asked differently, and what each row has more in one than in the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from milepost.lab.statistics.findings import Findings, Measure, Row
from milepost.lab.statistics.measures import Difference, paired


@dataclass(frozen=True)
class Compared:
    """One row of both stores at one length."""

    row: Row
    length: int
    one: Measure
    other: Measure
    difference: Difference | None
    """The second less the first, paired over the same windows; None where the windows are not the same."""


def differ(one: Findings, other: Findings) -> list[tuple[str, str, str]]:
    """Return what was asked differently: its name, and how it was asked in each."""
    found: list[tuple[str, str, str]] = []
    for name in ("shape", "recipe", "seeds", "judging", "digest", "corpus", "train_bytes", "versions"):
        found += _differ(name, getattr(one.ran, name), getattr(other.ran, name))
    found += _differ("chosen", _chosen(one), _chosen(other))
    first, second = ({row.label: row.text for row in each.rows if row.own} for each in (one, other))
    return found + [
        (label, first[label], second[label]) for label in first if first[label] != second.get(label, first[label])
    ]


def _chosen(findings: Findings) -> dict[str, str]:
    """Return the rates and settings that were chosen, by scheme and row."""
    return {": ".join(filter(None, (each.name, each.row))): each.setting for each in findings.tried if each.chosen}


def _differ(name: str, one: object, other: object) -> list[tuple[str, str, str]]:
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = cast("dict[str, object]", one), cast("dict[str, object]", other)
        keys = dict.fromkeys([*first, *second])
        return [each for key in keys for each in _differ(f"{name}: {key}", first.get(key), second.get(key))]
    return [] if one == other else [(name, f"{one}", f"{other}")]


def compared(one: Findings, other: Findings) -> Iterator[Compared]:
    """Yield every row that both have, by length, over windows that do not overlap."""
    same_text = one.ran.digest == other.ran.digest
    for row in one.rows:
        found = same(row, other)
        for length, measure in row.scores.get("windows", {}).items():
            again = None if found is None else found.at("windows", length)
            if again is not None:
                yield Compared(row, length, measure, again, paired(again, measure) if same_text else None)


def same(row: Row, other: Findings) -> Row | None:
    """The row of another store that is this one: a row of the user's own by its expression, whatever it is called."""
    if not row.own:
        found = other.of(row.name, row.variant)
        return None if found is None or found.own else found
    return next((each for each in other.rows if each.own and (each.name, each.text) == (row.name, row.text)), None)
