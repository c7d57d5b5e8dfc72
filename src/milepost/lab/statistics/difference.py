"""Two stores side by side: what was asked differently, and what each row has more in one than in the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from milepost.lab.statistics.findings import Findings, Measure, Row
from milepost.lab.statistics.measures import Difference, paired
from milepost.lab.statistics.table import difference_in_words, in_words


@dataclass(frozen=True)
class Beside:
    """One row of both stores at one length."""

    row: Row
    protocol: str
    length: int
    one: Measure
    other: Measure
    difference: Difference | None
    """The second less the first, paired over the same windows; None where the windows are not the same."""


def differ(one: Findings, other: Findings) -> list[tuple[str, str, str]]:
    """What was asked differently: its name, and how it was asked in each."""
    found: list[tuple[str, str, str]] = []
    for name in ("shape", "recipe", "seeds", "judging", "digest", "corpus", "train_bytes", "versions"):
        found += _differ(name, getattr(one.ran, name), getattr(other.ran, name))
    found += _differ("chosen", _chosen(one), _chosen(other))
    first, second = ({row.label: row.text for row in each.rows if row.own} for each in (one, other))
    return found + [
        (label, first[label], second[label]) for label in first if first[label] != second.get(label, first[label])
    ]


def _chosen(findings: Findings) -> dict[str, str]:
    """The rates and settings that were chosen, by scheme and row."""
    return {": ".join(filter(None, (each.name, each.row))): each.setting for each in findings.tried if each.chosen}


def _differ(name: str, one: object, other: object) -> list[tuple[str, str, str]]:
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = cast("dict[str, object]", one), cast("dict[str, object]", other)
        keys = dict.fromkeys([*first, *second])
        return [each for key in keys for each in _differ(f"{name}: {key}", first.get(key), second.get(key))]
    return [] if one == other else [(name, f"{one}", f"{other}")]


def beside(one: Findings, other: Findings) -> Iterator[Beside]:
    """Every row that both have, by protocol and length."""
    same_text = one.ran.digest == other.ran.digest
    for row in one.rows:
        found = _same(row, other)
        for protocol, scores in row.scores.items() if found else ():
            for length, measure in scores.items():
                again = found.at(protocol, length) if found else None
                if again is not None:
                    yield Beside(row, protocol, length, measure, again, paired(again, measure) if same_text else None)


def _same(row: Row, other: Findings) -> Row | None:
    """The row of another store that is this one: a row of the user's own by its expression, whatever it is called."""
    if not row.own:
        found = other.of(row.name, row.variant)
        return None if found is None or found.own else found
    return next((each for each in other.rows if each.own and (each.name, each.text) == (row.name, row.text)), None)


def shown(one: Findings, other: Findings, names: tuple[str, str], protocol: str = "windows") -> Group:
    """What differs, as a terminal shows it."""
    asked = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("asked differently", *names):
        asked.add_column(title)
    for each in differ(one, other):
        asked.add_row(*map(Text, each))
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("scheme")
    for title in ("length", *names, "difference"):
        drawn.add_column(title, justify="right", no_wrap=True)
    for each in beside(one, other):
        if each.protocol == protocol:
            difference = "" if each.difference is None else difference_in_words(each.difference)
            style = "bold" if each.difference is not None and each.difference.sign else ""
            values = (f"{each.length:,}", in_words(each.one), in_words(each.other), difference)
            drawn.add_row(Text(each.row.label), *(Text(value) for value in values), style=style)
    parts: list[Table | Text] = [asked] if asked.row_count else [Text("both were asked for the same")]
    for findings, there, name in ((one, other, names[0]), (other, one, names[1])):
        alone = [row.label for row in findings.rows if _same(row, there) is None]
        if alone:
            parts.append(Text("\n  ".join((f"only in {name}:", *alone))))
    if drawn.row_count:
        note = (
            f"bits per byte over windows that do not overlap; the difference is {names[1]} less {names[0]}, paired "
            f"over the same windows, with the wider of its 95 % intervals; bold where that is clear of zero."
        )
        if one.ran.seeds != other.ran.seeds:
            note += " It is over the seeds that both have; the columns before it are over all of each."
        if one.ran.digest != other.ran.digest:
            note = "bits per byte over windows of two different texts, so that no differences can be paired."
        parts += [drawn, Text(note, style="dim")]
    return Group(*parts)
