"""The templates of reports: whatever is put into them is escaped, unless it is a template's own."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

HERE = "milepost.lab.report"
LOW = re.compile(r"(?<=\w)_([A-Za-z0-9])(?![A-Za-z0-9_])")


def laid_out(template: str, package: str, **values: object) -> str:
    """A template filled in; it may extend and use those that lie here, from whatever package it is."""
    beside = files(HERE) / "templates"
    style, script = (Markup((beside / name).read_text(encoding="utf-8")) for name in ("report.css", "report.js"))
    return _environment(package).get_template(template).render(values, style=style, script=script)


@cache
def _environment(package: str) -> Environment:
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
    parts = enumerate(LOW.split(text))
    return Markup("").join(Markup("<sub>{}</sub>").format(each) if n % 2 else each for n, each in parts)
