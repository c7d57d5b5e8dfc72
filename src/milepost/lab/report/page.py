"""The report as one HTML file that needs nothing else: no network, no framework, and no script to be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from milepost.lab.judging.judge import LAST
from milepost.lab.report import tables, views
from milepost.lab.report.figure import Panel
from milepost.lab.report.headlines import at_an_edge, lede, unfinished
from milepost.lab.report.layout import laid_out, write_whole
from milepost.lab.report.look import looks
from milepost.lab.report.tables import MEANS
from milepost.lab.statistics.findings import Findings, Ran
from milepost.lab.statistics.table import RECALLS, table

VIEWS = ("windows", "less", "ends", "recall", "passages")
"""The pictures, in the order of their tabs."""


@dataclass(frozen=True)
class View:
    """The pictures under one protocol, and what it means."""

    name: str
    title: str
    panels: list[Panel]
    means: str


def write(findings: Findings, path: str | Path) -> None:
    """Write the report; the file is there wholly or not at all."""
    write_whole(page(findings), Path(path))


def page(findings: Findings) -> str:
    """Return the report as HTML."""
    ran, sorted_ = findings.ran, table(findings)
    longest = max(ran.lengths, default=ran.trained)
    return laid_out(
        "compare.html",
        "milepost.lab.report",
        command="compare",
        title=f"Trained at {ran.trained:,}, judged to {longest:,}",
        asked=_asked(ran, longest),
        lede=lede(findings, sorted_),
        unfinished=unfinished(findings),
        made=f"milepost {ran.versions.get('milepost', '')}, {ran.made}",
        ran=ran,
        several=len(ran.seeds) > 1,
        longest=longest,
        table=sorted_,
        rows=findings.rows,
        looks=looks(findings),
        views=_views(findings),
        by_length=tables.by_length(sorted_),
        differences=tables.differences(findings, sorted_),
        by_position=views.by_position(findings, sorted_.lengths[-1] if sorted_.lengths else 0),
        by_quarter=tables.by_quarter(findings, sorted_),
        edges=at_an_edge(findings),
        pictures_by_task=views.by_task(findings),
        by_task=tables.by_task(findings),
        by_step=views.by_step(findings),
        by_protocol=tables.by_protocol(findings),
        # Of the protocols that have no picture.
        meanings=[MEANS[name] for name in ("sliding", "alone") if findings.lengths(name)],
        costs=tables.costs(findings),
        tried=tables.tried(findings),
        facts=_facts(ran),
    )


def _asked(ran: Ran, longest: int) -> str:
    """Return what the sweep is, in one line."""
    seeds = f"{len(ran.seeds)} seeds" if len(ran.seeds) > 1 else "one seed"
    count = len(ran.schemes)
    models = f"{count} position encodings, one small byte model each" if count > 1 else "One small byte model"
    return (
        f"{models}, trained on {ran.corpus}, at {ran.trained:,} bytes, and judged to {longest:,}, "
        f"{longest / ran.trained:g} times as far; {seeds}."
    )


def _views(findings: Findings) -> list[View]:
    """Return the curves under each protocol that has some."""
    over = "seeds" if len(findings.ran.seeds) > 1 else "windows"
    last = findings.ran.trained // 2
    found: list[View] = []
    for name in VIEWS:
        if name == "less":
            panels = views.less_window(findings)
        else:
            panels = views.by_distance(findings, name) if name in RECALLS else views.by_length(findings, name)
        if panels:
            title, means = MEANS[name]
            short = f" (Here the last {last}, half of what was trained at.)" if name == "ends" and last < LAST else ""
            note = f"{means}{short} Bars are 95 % intervals over {over}; what is grey forgets."
            found.append(View(name, title, panels, note))
    return found


def _facts(ran: Ran) -> dict[str, str]:
    minutes = f"{ran.seconds:,.0f} s" if ran.seconds < 600 else f"{ran.seconds / 60:,.0f} min"
    return {
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


def _text(ran: Ran) -> str:
    """Return what was read, how it was split, and how much of what was judged had been read in training."""
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
