"""What a report says first: a few sentences, none of which says more than its interval does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from milepost.lab.schemes.naming import WINDOW, proper
from milepost.lab.statistics.findings import Findings, Measure, Row
from milepost.lab.statistics.measures import FEWEST
from milepost.lab.statistics.reach import Reach
from milepost.lab.statistics.table import (
    Line,
    Table,
    difference_in_words,
    in_words,
    not_apart,
    p_in_words,
    saves,
    shown,
)

STILL = 0.02
"""A model whose loss fell by more bits than this in the last fifth of its training was still learning."""
NAMED = 4
"""So many names are listed; of more, the number is given."""


def lede(findings: Findings, table: Table) -> list[str]:
    """Return the findings in a few sentences."""
    if not table.lengths:
        return []
    trained = [line for line in table.lines if not line.row.variant]
    sentences = _unlearned(trained, findings.ran.pairs)
    if 1 < len(findings.ran.seeds) < FEWEST:
        return [*sentences, f"{len(findings.ran.seeds)} seeds: too few for a verdict; --seeds {FEWEST} gives one."]
    sentences += _hold(trained, table) + _best(trained, table.lengths[-1])
    for name in dict.fromkeys(line.row.name for line in table.lines if line.row.variant):
        sentences += _changed([line for line in table.lines if line.row.name == name], proper(name), table)
    sentences += [each for n, protocol in enumerate(table.recalls) for each in _recall(table, protocol, n)]
    return sentences + at_an_edge(findings) + _still_learning(trained) + _one_seed(findings)


def unfinished(findings: Findings) -> list[str]:
    """That not everything is judged yet, where that is so."""
    ran = findings.ran
    if ran.done == ran.cells:
        return []
    return [f"Not finished: {ran.done} of {ran.cells} models are fully judged. Rerun the command to resume."]


def _unlearned(lines: Sequence[Line], pairs: float) -> list[str]:
    found = [(line.row.label, line.bits[0].mean) for line in lines if not line.learned and line.bits and line.bits[0]]
    said: list[str] = []
    if diverged := [name for name, mean in found if math.isnan(mean)]:
        said.append(f"{listed(diverged)} diverged: lower the learning rate (--set rate=…), or let --search choose one.")
    names = [name for name, mean in found if not math.isnan(mean)]
    if not names:
        return said
    has = "has" if len(names) == 1 else "have"
    return [
        *said,
        f"{listed(names)} {has} not learned to read: a table of byte pairs, which knows one byte back, needs "
        f"{pairs:.2f} bits per byte, and it is not shown that a longer look back helps. No reach is given; train with "
        f"more steps (--set steps=…).",
    ]


def _hold(lines: Sequence[Line], table: Table) -> list[str]:
    """Return which of the trained schemes hold to the longest length, which do not, and of which it cannot be said."""
    known = [(line.row.label, line.reach) for line in lines if line.reach is not None]
    if not known:
        return []
    longest = known[0][1].longest
    holding = [name for name, reach in known if reach.surely]
    breaking = [name for name, reach in known if reach.breaks]
    unsure = [name for name, reach in known if not reach.surely and not reach.breaks]
    if len(known) == 1:
        name, reach = known[0]
        begun = f"{name}, trained at {table.trained:,} bytes"
        if holding:
            return [f"{begun}, holds to {longest:,}."]
        if unsure:
            return [f"{begun}, may hold to {longest:,} or not: its interval is too wide to say."]
        return [f"{begun}, does not hold to {longest:,}: {_broken(reach, table.tolerance)}."]
    counts = {1: "one", 2: "two", 3: "three"}
    parts = [
        f"{counts.get(len(names), len(names))} {one if len(names) == 1 else more}: {listed(names)}"
        for names, one, more in (
            (holding, f"holds to {longest:,}", f"hold to {longest:,}"),
            (breaking, "breaks before", "break before"),
            (unsure, "cannot be placed", "cannot be placed"),
        )
        if names
    ]
    return [f"Of {len(known)} schemes trained at {table.trained:,} bytes, {'; '.join(parts)}."]


def _broken(reach: Reach, tolerance: float) -> str:
    """Where a row breaks, as narrowly as its interval says."""
    if reach.most is None:
        return f"it loses more than {tolerance:g} bits even at the trained length"
    return f"past {reach.most:,} it surely loses more than {tolerance:g} bits on the same bytes"


def _best(lines: Sequence[Line], longest: int) -> list[str]:
    """Return which trained scheme reads best at the longest length, if one does."""
    scored = [(line.row.label, line.bits[-1]) for line in lines if line.learned]
    found = [(name, each) for name, each in scored if each is not None and each.mean == each.mean]
    if len(found) < 2:
        return []
    best, top = min(found, key=lambda each: each[1].mean)
    level = [name for name, each in found if name != best and not_apart(each, top)]
    if len(level) == len(found) - 1:
        return [
            f"At {longest:,} no scheme differs significantly from the best, {best}, at {shown(top.mean)} bits per byte."
        ]
    beside = f"; {listed(level)} {'is' if len(level) == 1 else 'are'} not significantly worse" if level else ""
    return [f"At {longest:,} {best} reads best, at {shown(top.mean)} bits per byte{beside}."]


def _changed(lines: Sequence[Line], base: str, table: Table) -> list[str]:
    """Return what the training-free rows do for a checkpoint that surely does not hold by itself."""
    plain = next((line for line in lines if not line.row.variant), None)
    # What forgets is a window by another name, and is not asked how far it carries.
    changed = [(line, line.reach) for line in lines if line.row.variant and line.row.whole and line.reach is not None]
    if plain is None or plain.reach is None or not plain.reach.breaks or not changed:
        return []
    best, reach = max(changed, key=lambda each: each[1].least or 0)
    broken = f"{base} breaks past {plain.reach.most:,}" if plain.reach.most else f"{base} breaks at once"
    if (reach.least or 0) <= (plain.reach.most or 0):
        return [f"{broken}, and nothing tried without training surely helps."]
    sentence = (
        f"{broken}; without training and with every earlier byte in sight, {called(best.row)} carries it to "
        f"{reach.least:,}"
    )
    if best.against is None:
        return [f"{sentence}."]
    by, p = difference_in_words(best.against), p_in_words(best.against)
    p = p and f", {p}"
    at = f", and at {table.lengths[-1]:,} is"
    if best.against.sign == 0:
        return [f"{sentence}{at} not significantly different from the trivial window ({by} bits{p})."]
    side = "better" if best.against.sign < 0 else "worse"
    return [f"{sentence}{at} significantly {side} than the trivial window, by {by.lstrip('+−')} bits{p}."]


def _recall(table: Table, protocol: str, n: int) -> list[str]:
    """Who saves most bits on what came before, and what the window saves on the same checkpoint."""
    what = {"recall": "Random bytes", "passages": "A passage of the text"}[protocol]
    verb = "are" if protocol == "recall" else "is"
    far = f"{what} that came {table.distance:,} bytes before {verb} recalled"
    found: list[tuple[Line, Measure]] = [(line, each) for line in table.lines if (each := line.recall[n]) is not None]
    saving = [(line, each) for line, each in found if saves(each)]
    if not saving:
        return [f"{far} by none: nowhere is anything surely saved against fresh bytes."] if found else []
    best, top = max(saving, key=lambda each: each[1].mean)
    level = [called(line.row, on=True) for line, _ in saving if line is not best and line.best_recall[n]]
    beside = f", not significantly more than {listed(level)}" if level else ""
    window = next((line for line in table.lines if (line.row.name, line.row.variant) == (best.row.name, WINDOW)), None)
    bar = None if window is None or window is best else window.recall[n]
    less = "" if bar is None else f"; the window on the same checkpoint saves {in_words(bar)}"
    said = f"{called(best.row, on=True)}, which saves {in_words(top)} bits per byte{beside}{less}."
    # By its mean another may save more, where seeds differ so much that it might save nothing.
    unsure = max(found, key=lambda each: each[1].mean if each[1].mean > top.mean else -math.inf)
    if not unsure[1].mean > top.mean:
        return [f"{far} best by {said}"]
    name = called(unsure[0].row, on=True)
    return [f"{far} by {said} {name} saves more on average ({in_words(unsure[1])}), but not surely anything."]


def _still_learning(lines: Sequence[Line]) -> list[str]:
    gains = [(line.row.label, line.row.gained) for line in lines]
    still = [(name, each) for name, each in gains if each is not None and saves(each) and each.mean > STILL]
    if not still:
        return []
    most, gain = max(still, key=lambda each: each[1].mean)
    names = listed([name for name, _ in still])
    were = "was" if len(still) == 1 else "were"
    of = "" if len(still) == 1 else f", {most} the most"
    return [
        f"{names} {were} still learning when training ended{of} ({in_words(gain)} bits in its last fifth of steps): "
        f"undertrained, and with more steps (--set steps=…) the order may change."
    ]


def at_an_edge(findings: Findings) -> list[str]:
    """Return a sentence for each choice on validation text that fell on the edge of what was tried."""
    edges = [each for each in findings.tried if each.chosen and each.edge]
    return [
        f"{proper(each.name)}{f': {each.row}' if each.row else ''}: the choice, {each.setting}, is at the edge of "
        f"those tried ({each.edge}); the best may lie beyond it."
        for each in edges
    ]


def _one_seed(findings: Findings) -> list[str]:
    if len(findings.ran.seeds) > 1 or not findings.rows:
        return []
    return ["One seed: it ranks no method, since these are results of single checkpoints; --seeds 3 would."]


def called(row: Row, on: bool = False) -> str:
    """Return a row within a sentence, since names of training-free rows have commas of their own."""
    return f"“{row.variant}”{f' on {row.base}' if on else ''}" if row.variant else row.base


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence, or how many there are where they are many."""
    if len(names) > NAMED:
        return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
