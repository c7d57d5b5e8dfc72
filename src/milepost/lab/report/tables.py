"""The tables of a report."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from milepost.lab.report.look import looks, swatch
from milepost.lab.report.words import MEANS
from milepost.lab.schemes.naming import proper
from milepost.lab.statistics.findings import Equation, Findings, Measure, Row, Tried
from milepost.lab.statistics.measures import Difference
from milepost.lab.statistics.table import (
    Line,
    Table,
    extreme,
    interval_in_words,
    length_in_words,
    not_apart,
    shown,
    signed,
)  # fmt: skip
from milepost.lab.tasks import PROTOCOLS

KINDS = {"recall": "random", "passages": "text"}
"""What is recalled, by protocol."""


def by_length(findings: Findings, table: Table) -> str:
    """The sorted table."""
    styles = looks(findings)
    over = len(table.lengths)
    lengths = "".join(f'<th scope="col">{length:,}</th>' for length in table.lengths)
    kinds = "".join(f'<th scope="col">{KINDS[each]}</th>' for each in table.recalls)
    far = "" if table.distance is None else f"bits saved at {table.distance:,}"
    saved = f'<th scope="colgroup" colspan="{len(table.recalls)}" class="over">{far}</th>'
    windows = any(line.against is not None for line in table.lines)
    against = '<th scope="col" rowspan="2">against<br>window</th>' if windows else ""
    body = "".join(_line(line, table, swatch(styles[line.row.name, line.row.variant]), windows) for line in table.lines)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Table sorted by reach"><table class="reach"><thead>'
        f'<tr><th scope="col" rowspan="2">scheme</th><th scope="col" rowspan="2">reach</th>{against}'
        f"{saved if table.recalls else ''}"
        f'<th scope="colgroup" colspan="{over}" class="over">bits per byte at length</th></tr>'
        f"<tr>{kinds}{lengths}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _line(line: Line, table: Table, piece: str, windows: bool) -> str:
    # What a narrow screen shows without scrolling comes first.
    cells: list[str] = []
    if windows:
        cells.append(f'<td class="sign">{"" if line.against is None else _difference(line.against)}</td>')
    cells += [cell(each, best=best) for each, best in zip(line.recall, line.best_recall, strict=True)]
    for length, measure, same, best in zip(table.lengths, line.bits, line.same, line.best, strict=True):
        past = measure is not None and line.reach is not None and length > (line.reach.length or 0)
        cells.append(cell(measure, best=best, classes=("same" if same else "", "past" if past else "")))
    times = "" if line.effective_length is None else f"<i>{line.effective_length / table.trained:g}×</i>"
    between = "" if line.reach is None else interval_in_words(line.reach)
    between = f'<small title="95 % interval of the reach">{between}</small>' if between else ""
    kind = ' class="trivial"' if line.row.trivial else ""
    return (
        f'<tr{kind}><th scope="row">{piece}<span>{_name(line.row)}</span></th>'
        f'<td class="holds">{length_in_words(line)} {times}{between}</td>{"".join(cells)}</tr>'
    )


def _difference(difference: Difference) -> str:
    """A difference and the wider of its intervals; strong where it is clear of zero."""
    half = "" if difference.half is None else f"±{difference.half:.3f}".replace("±0", "±")
    mean = signed(difference.mean)
    return f"{f'<strong>{mean}</strong>' if difference.sign else mean}<i>{half}</i>"


def differences(findings: Findings, table: Table) -> str:
    """Every row less the window on its checkpoint, and less the best row, each with both intervals."""
    lines = [line for line in table.lines if line.against is not None or line.behind is not None]
    if not lines:
        return ""
    styles = looks(findings)
    several = len(findings.ran.seeds) > 1
    each = ("bits", "over windows", "over seeds") if several else ("bits", "over windows")
    under = "".join(f'<th scope="col">{title}</th>' for title in each * 2)
    body = ""
    for line in lines:
        cells = "".join(_pair(found, several) for found in (line.against, line.behind))
        piece = swatch(styles[line.row.name, line.row.variant])
        body += f'<tr><th scope="row">{piece}<span>{_name(line.row)}</span></th>{cells}</tr>'
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Paired differences"><table class="pairs"><thead>'
        f'<tr><th scope="col" rowspan="2">at {table.lengths[-1]:,} bytes</th>'
        f'<th scope="colgroup" colspan="{len(each)}" class="over">less the window</th>'
        f'<th scope="colgroup" colspan="{len(each)}" class="over">less the best</th></tr>'
        f"<tr>{under}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _pair(found: Difference | None, several: bool) -> str:
    if found is None:
        return "<td></td>" * (3 if several else 2)
    halves = (found.windows, found.seeds)[: 2 if several else 1]
    mean = f"<strong>{signed(found.mean)}</strong>" if found.sign else signed(found.mean)
    return f"<td>{mean}</td>" + "".join(f"<td>{'' if each is None else f'±{each:.3f}'}</td>" for each in halves)


def _name(row: Row) -> str:
    word = "trivial" if row.trivial else "" if row.whole else "forgets"
    tag = f' <em class="tag">{word}</em>' if word else ""
    on = f" <small>on {escape(row.base)}</small>" if row.variant else ""
    return f"{escape(row.short)}{on}{tag}"


def cell(measure: Measure | None, best: bool = False, classes: Iterable[str] = (), share: bool = False) -> str:
    """A mean with its interval, small; strong is the best of its column, and what is not told apart from it."""
    if measure is None:
        return "<td></td>"
    mean = f"{100 * measure.mean:.1f} %" if share else shown(measure.mean)
    within = measure.interval
    half = "" if within is None else f"{100 * within:.1f}" if share else f"{within:.3f}"
    half = f"<i>±{half.removeprefix('0')}</i>" if half else "<i></i>"
    names = " ".join(each for each in (*classes, "best" if best else "") if each)
    value = f'<strong title="not told apart from the best in its column">{mean}</strong>' if best else mean
    return f'<td class="{names}">{value}{half}</td>' if names else f"<td>{value}{half}</td>"


def by_protocol(findings: Findings) -> str:
    """The trained rows at the trained length under every protocol of bits."""
    length = findings.ran.trained
    names = [name for name in ("windows", "sliding", "alone", "ends") if length in findings.lengths(name)]
    rows = [row for row in findings.rows if not row.variant]
    if len(names) < 2:
        return ""
    styles = looks(findings)
    head = "".join(f'<th scope="col">{MEANS[name][0].lower().replace(" at ", "<br>at ")}</th>' for name in names)
    least = {name: extreme((row.at(name, length) for row in rows), min) for name in names}
    body = ""
    for row in rows:
        found = [(row.at(name, length), least[name]) for name in names]
        cells = "".join(cell(each, best=not_apart(each, top)) for each, top in found)
        body += f'<tr><th scope="row">{swatch(styles[row.name, ""])}<span>{escape(row.base)}</span></th>{cells}</tr>'
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="Protocols at the trained length"><table><thead><tr>'
        f'<th scope="col">at {length:,} bytes</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def by_task(findings: Findings) -> str:
    """The share of right answers at each task's longest length."""
    tasks = findings.tasks()
    styles = looks(findings)
    ends = {task: findings.lengths(task)[-1] for task in tasks}
    rows = [row for row in findings.rows if any(task in row.scores for task in tasks)]
    found = {task: [row.at(task, ends[task]) for row in rows] for task in tasks}
    most = {task: extreme(each, max) for task, each in found.items()}
    # Where none is told apart from the best, none is marked.
    some = {task: not all(each is None or not_apart(each, most[task]) for each in found[task]) for task in tasks}
    head = "".join(f'<th scope="col">{escape(PROTOCOLS[task].title)}<br>at {ends[task]:,}</th>' for task in tasks)
    body = ""
    for row in rows:
        cells = "".join(
            cell(each, best=some[task] and not_apart(each, most[task]), share=True)
            for task in tasks
            for each in (row.at(task, ends[task]),)
        )
        piece = swatch(styles[row.name, row.variant])
        body += f'<tr><th scope="row">{piece}<span>{_name(row)}</span></th>{cells}</tr>'
    guesses = "".join(f"<td>{100 * PROTOCOLS[task].task.random:.1f} %<i></i></td>" for task in tasks)
    body += f'<tr><th scope="row"><span>a guess</span></th>{guesses}</tr>'
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Right answers by task"><table><thead><tr>'
        f'<th scope="col">right answers</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


COSTS = {"trained": "trained at", "read": "reads", "written": "writes", "memory": "memory"}


def costs(findings: Findings) -> str:
    """What each row costs: parameters, bytes a second, and memory."""
    names = [name for name in COSTS if any(name in row.costs for row in findings.rows)]
    rows = [row for row in findings.rows if row.costs]
    if not rows:
        return ""
    styles = looks(findings)
    units = {name: "" if name == "memory" else "<br>bytes/s" for name in names}
    head = "".join(f'<th scope="col">{COSTS[name]}{units[name]}</th>' for name in names)
    body = ""
    for row in rows:
        values = [row.costs.get(name) for name in names]
        shown_ = ["" if each is None else _size(each, name) for each, name in zip(values, names, strict=True)]
        cells = "".join(f"<td>{each}</td>" for each in (f"{row.parameters:,}" if not row.variant else "", *shown_))
        piece = swatch(styles[row.name, row.variant])
        body += f'<tr><th scope="row">{piece}<span>{_name(row)}</span></th>{cells}</tr>'
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Costs"><table class="costs"><thead><tr>'
        f'<th scope="col">scheme</th><th scope="col">parameters</th>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _size(value: float, name: str) -> str:
    """Bytes a second by three figures, or memory in MiB."""
    return f"{value / 2**20:,.0f} MiB" if name == "memory" else f"{float(f'{value:.3g}'):,.0f}"


def tried(findings: Findings) -> str:
    """The rates and settings that were tried, scheme by scheme, with their bits on the validation text."""
    if not findings.tried:
        return ""
    lengths = sorted({length for each in findings.tried for length in each.bits})
    head = "".join(f'<th scope="col">{length:,}</th>' for length in lengths)
    body = ""
    for each in sorted(findings.tried, key=_by_scheme):
        of = f"{proper(each.name)}: {each.row}" if each.row else proper(each.name)
        values = [*(each.bits.get(length) for length in lengths), each.mean if len(each.bits) == len(lengths) else None]
        cells = "".join(f"<td>{'' if value is None else shown(value)}</td>" for value in values)
        setting = f"<strong>{escape(each.setting)}</strong>" if each.chosen else escape(each.setting)
        body += f'<tr><th scope="row"><span>{escape(of)}</span></th><td>{setting}</td>{cells}</tr>'
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Settings tried"><table class="tried"><thead><tr>'
        f'<th scope="col">scheme</th><th scope="col">rate or setting</th>{head}<th scope="col">mean</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _by_scheme(tried: Tried) -> tuple[Any, ...]:
    """Rates before rows, then by scheme, and rates in their order."""
    return bool(tried.row), tried.name, tried.row, tried.rate or 0.0, tried.times or 0.0


def equations(findings: Findings) -> str:
    """Every row's equation, seam by seam."""
    styles = looks(findings)
    parts: list[str] = []
    for row in findings.rows:
        each = row.seconds / max(1, len(row.seeds))
        size = f"{row.parameters:,} parameters, trained in {each:,.0f} s a seed" if not row.variant else ""
        note = " · ".join(text for text in (f"<code>{escape(row.text)}</code>", size) if text)
        parts.append(
            f'<article><h3>{swatch(styles[row.name, row.variant])}{_name(row)}</h3><p class="note">{note}</p>'
            f'<div class="equation">{"".join(map(_equation, row.equations))}</div></article>'
        )
    return "".join(parts)


def _equation(equation: Equation) -> str:
    """The sum, then a line for each part: the verb, the part, what it does."""
    some = f"{equation.layers} of {equation.of} layers: " if equation.layers < equation.of else ""
    lines = [f'<p class="sum">{some}{_subscripts(equation.sum)}</p>']
    for term in equation.terms:
        lines.append(
            f'<p class="part"><b>{term.verb}</b><code>{escape(term.part)}</code>'
            f'<span class="does">{_subscripts(term.formula)}</span></p>'
        )
    return "".join(lines)


def _subscripts(text: str) -> str:
    """Letters after a low line are set low: q_i. Words joined by one, such as bend_rows, are left alone."""
    return re.sub(r"(?<=\w)_([A-Za-z0-9])(?![A-Za-z0-9_])", r"<sub>\1</sub>", escape(text))
