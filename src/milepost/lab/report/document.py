"""A report as one HTML file that needs nothing else: its frame, and how it comes onto the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from milepost.lab.report.look import definitions


def document(
    command: str, title: str, asked: str, lede: Iterable[str], sections: Iterable[str], made: str, unfinished: str = ""
) -> str:
    """The whole page: `asked`, `unfinished` and the sections are HTML already, the rest is escaped."""
    return Template(_beside("report.html")).substitute(
        style=_beside("report.css"),
        script=_beside("report.js"),
        command=escape(command),
        title=escape(title),
        asked=asked,
        lede="".join(f"<p>{escape(each)}</p>" for each in lede),
        unfinished=unfinished,
        definitions=definitions(),
        sections="".join(sections),
        made=escape(made),
    )


def write_whole(text: str, path: Path) -> None:
    """Write a file that is there wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _beside(name: str) -> str:
    return (files("milepost.lab.report") / name).read_text(encoding="utf-8")
