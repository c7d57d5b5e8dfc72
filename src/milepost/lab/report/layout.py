"""How a report is laid out and written: whatever is put into a template is escaped, unless it is the template's own.

Templates have a library of their own, which is not loaded for anything else.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = "milepost.lab.report"
RE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
LOW = re.compile(r"(?<=\w)_([A-Za-z0-9])(?![A-Za-z0-9_])")


def laid_out(template: str, package: str, **values: object) -> str:
    """Return a template filled in; it may extend and use those that lie here, from whatever package it is."""
    from markupsafe import Markup

    style = Markup(drawing_style() + beside("report.css"))
    return _environment(package).get_template(template).render(values, style=style, script=Markup(beside("report.js")))


def beside(name: str) -> str:
    """Return a file that lies with the templates."""
    return (files(HERE) / "templates" / name).read_text(encoding="utf-8")


def drawing_style(within: str = "") -> str:
    """Return the style of drawings, light and dark; within: a class that it is kept to, for pages of others."""
    style = beside("drawing.css")
    if not within:
        return style
    # Rules that hold no others; a sheet for drawings has no strings, and commas in selectors alone.
    return re.sub(r"([^{}]+)(\{[^{}]*\})", lambda rule: _kept_to(within, rule[1]) + rule[2], RE_COMMENT.sub("", style))


def _kept_to(within: str, selectors: str) -> str:
    """Return selectors for what lies in elements of a class alone."""
    names = (each.strip().removeprefix("svg ") for each in selectors.split(","))
    return ", ".join(f".{within}" if name == ":root" else f".{within} {name}" for name in names) + " "


@cache
def _environment(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = dict.fromkeys((package, HERE))
    made = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"pixel": "{:.1f}".format, "commas": "{:,.0f}".format, "subscripts": _subscripts}
    return made


def _subscripts(text: str) -> Markup:
    """Letters after a low line are set low: q_i. Words joined by one, such as bend_rows, are left alone."""
    from markupsafe import Markup

    parts = enumerate(LOW.split(text))
    return Markup("").join(Markup("<sub>{}</sub>").format(each) if n % 2 else each for n, each in parts)


def write_whole(text: str, path: Path) -> None:
    """Write a file that is there wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
