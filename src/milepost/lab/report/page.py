"""The report as one HTML file that needs nothing else: no network, no framework, and no script to be read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

from milepost.lab.judging.judge import LAST
from milepost.lab.report import tables, views
from milepost.lab.report.document import document, write_whole
from milepost.lab.report.headlines import lede
from milepost.lab.report.less_window import less_window
from milepost.lab.report.words import (
    ABOUT_CHOSEN,
    ABOUT_TASKS,
    ABOUT_TRAINING,
    MEANS,
    about_costs,
    about_pairs,
    about_positions,
    about_table,
)
from milepost.lab.statistics.findings import Findings, Ran
from milepost.lab.statistics.table import RECALLS, Table, table

VIEWS = ("windows", "less", "ends", "recall", "passages")
"""The pictures, in the order of their tabs."""


def write(findings: Findings, path: str | Path) -> None:
    """Write the report; the file is there wholly or not at all."""
    write_whole(page(findings), Path(path))


def page(findings: Findings) -> str:
    """The report as HTML."""
    sorted_ = table(findings)
    ran = findings.ran
    return document(
        "compare",
        f"Trained at {ran.trained:,}, judged to {max(ran.lengths, default=ran.trained):,}",
        _asked(ran),
        lede(findings, sorted_),
        _sections(findings, sorted_),
        f"milepost {ran.versions.get('milepost', '')}, {ran.made}",
        _unfinished(ran),
    )


def _asked(ran: Ran) -> str:
    """What the sweep is, in one line."""
    longest = max(ran.lengths, default=ran.trained)
    seeds = f"{len(ran.seeds)} seeds" if len(ran.seeds) > 1 else "one seed"
    count = len(ran.schemes)
    models = f"{count} position encodings, one small byte model each" if count > 1 else "One small byte model"
    return escape(
        f"{models}, trained on {ran.corpus}, at {ran.trained:,} bytes, and judged to {longest:,}, "
        f"{longest / ran.trained:g} times as far; {seeds}."
    )


def _unfinished(ran: Ran) -> str:
    if ran.done == ran.cells:
        return ""
    return (
        f'<p class="unfinished">Not finished: {ran.done} of {ran.cells} models are fully judged. The same command goes '
        f"on where it stopped.</p>"
    )


def _sections(findings: Findings, sorted_: Table) -> list[str]:
    longest = sorted_.lengths[-1] if sorted_.lengths else 0
    return [
        _views(findings),
        _section("table", "Sorted by reach", about_table(findings), tables.by_length(findings, sorted_))
        if sorted_.lengths
        else "",
        _section(
            "pairs", "Differences on the same windows", about_pairs(findings), tables.differences(findings, sorted_)
        ),
        _section(
            "positions",
            "Where in the window the bits are lost",
            "",
            _panels(views.by_position(findings, longest), _means(about_positions(longest))),
        ),
        _section(
            "tasks",
            "Tasks",
            ABOUT_TASKS,
            _panels(views.by_task(findings)) + tables.by_task(findings) if findings.tasks() else "",
        ),
        _section(
            "training",
            "Training",
            ABOUT_TRAINING,
            _pair(views.by_step(findings), tables.by_protocol(findings) + _meanings(findings)),
        ),
        _section("costs", "What it costs", about_costs(findings), tables.costs(findings)),
        _section("chosen", "Chosen on validation text", ABOUT_CHOSEN, tables.tried(findings)),
        _section(
            "equations",
            "The schemes as equations",
            "What each row computes, seam by seam; p and r are the positions of a query i and a key j, and a positive "
            "distance p − r is behind.",
            f'<div class="equations">{tables.equations(findings)}</div>' if findings.rows else "",
        ),
        _section("ran", "What was run, and how to run it again", "", _ran(findings.ran)),
    ]


def _section(name: str, title: str, about: str, body: str) -> str:
    if not body:
        return ""
    paragraph = f'<p class="about">{about}</p>' if about else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{paragraph}{body}</section>'


def _panels(figures: Sequence[str], note: str = "") -> str:
    odd = " odd" if len(figures) % 2 else ""
    return f'<div class="panels{odd}">{"".join(figures)}{note}</div>' if figures else ""


def _pair(left: Sequence[str], right: str) -> str:
    return f'<div class="panels">{"".join(left)}<div>{right}</div></div>' if left or right else ""


def _views(findings: Findings) -> str:
    """The curves under each protocol, one after the other; a script puts them behind one another."""
    found: list[str] = []
    for name in VIEWS:
        if name == "less":
            panels = less_window(findings)
        else:
            panels = views.by_distance(findings, name) if name in RECALLS else views.by_length(findings, name)
        if panels:
            title, means = MEANS[name]
            last = findings.ran.trained // 2
            short = f" (Here the last {last}, half of what was trained at.)" if name == "ends" and last < LAST else ""
            over = "seeds" if len(findings.ran.seeds) > 1 else "windows"
            note = _means(f"{means}{short} Bars are 95 % intervals over {over}; what is grey forgets.")
            found.append(f'<div class="view" id="view-{name}"><h3>{escape(title)}</h3>{_panels(panels, note)}</div>')
    return f'<section id="curves"><h2>How far each holds</h2>{"".join(found)}</section>' if found else ""


def _means(text: str) -> str:
    return f'<p class="means">{escape(text)}</p>'


def _meanings(findings: Findings) -> str:
    """What those protocols mean that have no picture."""
    meanings = [MEANS[name] for name in ("sliding", "alone") if findings.lengths(name)]
    items = "".join(f"<dt>{escape(title)}</dt><dd>{escape(means)}</dd>" for title, means in meanings)
    return f'<dl class="meanings">{items}</dl>' if items else ""


def _ran(ran: Ran) -> str:
    minutes = f"{ran.seconds:,.0f} s" if ran.seconds < 600 else f"{ran.seconds / 60:,.0f} min"
    facts = {
        "schemes": ", ".join(ran.schemes),
        "seeds": ", ".join(map(str, ran.seeds)),
        "text": _text(ran),
        "lengths": f"trained at {ran.trained:,}, judged at {', '.join(f'{length:,}' for length in ran.lengths)}",
        "model": _in_a_line(ran.shape),
        "recipe": _in_a_line(ran.recipe),
        "judging": _in_a_line(ran.judging),
        "versions": ", ".join(f"{name} {version}" for name, version in ran.versions.items()),
        "training": f"{minutes} for {ran.cells} models",
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return f'<pre class="again" tabindex="0"><code>{escape(ran.again)}</code></pre><dl class="facts">{items}</dl>'


def _text(ran: Ran) -> str:
    """What was read, how it was split, and how much of what was judged had been read in training."""
    shared = ""
    if ran.shared is not None and ran.shared == ran.shared:
        share = f"{100 * ran.shared:.1f} %" if ran.shared else "none"
        shared = f"; of the judged stretches of 32 bytes {share} stand in the training text"
    return f"{ran.corpus}: {ran.train_bytes:,} bytes to train on, {ran.test_bytes:,} to judge on{shared}; {ran.digest}"


def _in_a_line(settings: dict[str, Any]) -> str:
    """Settings in a line, those left to themselves left out."""
    return ", ".join(f"{name} {_value(value)}" for name, value in settings.items() if value not in (None, False, ()))


def _value(value: Any) -> str:
    return " ".join(map(str, cast("list[Any]", value))) if isinstance(value, (list, tuple)) else str(value)
