"""The tables of a report."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from milepost.lab.findings import Equation, Findings, Measure, Row
from milepost.lab.report.look import looks, swatch
from milepost.lab.report.words import MEANS
from milepost.lab.table import Line, Table, length_in_words, shown, signed
from milepost.lab.tasks import PROTOCOLS


def by_length(findings: Findings, table: Table) -> str:
    """The sorted table."""
    styles = looks(findings)
    over = len(table.lengths)
    lengths = "".join(f'<th scope="col">{length:,}</th>' for length in table.lengths)
    recall = "" if table.distance is None else f'<th scope="col" rowspan="2">recall<br>at {table.distance:,}</th>'
    windows = any(line.against is not None for line in table.lines)
    against = '<th scope="col" rowspan="2">against<br>window</th>' if windows else ""
    body = "".join(_line(line, table, swatch(styles[line.row.name, line.row.variant]), windows) for line in table.lines)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Table sorted by reach"><table class="reach"><thead>'
        f'<tr><th scope="col" rowspan="2">scheme</th><th scope="col" rowspan="2">reach</th>'
        f'<th scope="colgroup" colspan="{over}" class="over">bits per byte at length</th>{recall}{against}</tr>'
        f"<tr>{lengths}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _line(line: Line, table: Table, piece: str, windows: bool) -> str:
    cells: list[str] = []
    for length, measure, same, best in zip(table.lengths, line.bits, line.same, line.best, strict=True):
        past = measure is not None and length > (line.effective_length or 0)
        cells.append(cell(measure, best=best, classes=("same" if same else "", "past" if past else "")))
    if table.distance is not None:
        cells.append(cell(line.recall, best=line.best_recall))
    if windows:
        cells.append(f'<td class="sign">{"" if line.against is None else signed(line.against)}</td>')
    times = "" if line.effective_length is None else f"<i>{line.effective_length / table.trained:g}×</i>"
    kind = ' class="trivial"' if line.row.trivial else ""
    return (
        f'<tr{kind}><th scope="row">{piece}<span>{_name(line.row)}</span></th>'
        f'<td class="holds">{length_in_words(line)} {times}</td>{"".join(cells)}</tr>'
    )


def _name(row: Row) -> str:
    word = "trivial" if row.trivial else "" if row.whole else "forgets"
    tag = f' <em class="tag">{word}</em>' if word else ""
    on = f" <small>on {escape(row.base)}</small>" if row.variant else ""
    return f"{escape(row.short)}{on}{tag}"


def cell(measure: Measure | None, best: bool = False, classes: Iterable[str] = (), share: bool = False) -> str:
    """A mean with its interval, small; the best of its column is strong."""
    if measure is None:
        return "<td></td>"
    mean = f"{100 * measure.mean:.1f} %" if share else shown(measure.mean)
    half = "" if measure.half is None else f"{100 * measure.half:.1f}" if share else f"{measure.half:.3f}"
    half = f"<i>±{half.removeprefix('0')}</i>" if half else "<i></i>"
    names = " ".join(each for each in (*classes, "best" if best else "") if each)
    value = f'<strong title="best in its column">{mean}</strong>' if best else mean
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
    least = {name: min(found.mean for row in rows if (found := row.at(name, length)) is not None) for name in names}
    body = ""
    for row in rows:
        found = [(row.at(name, length), least[name]) for name in names]
        cells = "".join(cell(each, best=each is not None and each.mean == top) for each, top in found)
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
    means = {task: [found.mean for row in rows if (found := row.at(task, ends[task])) is not None] for task in tasks}
    # Where all are alike, none is best.
    most = {task: (min(found, default=0.0), max(found, default=0.0)) for task, found in means.items()}
    head = "".join(f'<th scope="col">{escape(PROTOCOLS[task].title)}<br>at {ends[task]:,}</th>' for task in tasks)
    body = ""
    for row in rows:
        found = [(row.at(task, ends[task]), most[task]) for task in tasks]
        cells = "".join(
            cell(each, best=each is not None and low < each.mean == top, share=True) for each, (low, top) in found
        )
        piece = swatch(styles[row.name, row.variant])
        body += f'<tr><th scope="row">{piece}<span>{_name(row)}</span></th>{cells}</tr>'
    guesses = "".join(f"<td>{100 * PROTOCOLS[task].task.random:.1f} %<i></i></td>" for task in tasks)
    body += f'<tr><th scope="row"><span>a guess</span></th>{guesses}</tr>'
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Right answers by task"><table><thead><tr>'
        f'<th scope="col">right answers</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


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
