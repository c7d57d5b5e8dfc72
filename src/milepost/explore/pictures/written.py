"""A drawing from its template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from milepost.lab.report.layout import laid_out

if TYPE_CHECKING:
    from markupsafe import Markup


def markup(template: str, **values: object) -> Markup:
    """Return a template of this folder filled in, as what needs no escaping in another."""
    return own(laid_out(template, "milepost.explore.pictures", **values))


def own(text: str) -> Markup:
    """Return text of the package's own, such as a style sheet, as what needs no escaping."""
    from markupsafe import Markup

    return Markup(text)
