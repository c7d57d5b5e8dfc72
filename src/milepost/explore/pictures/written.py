"""A drawing from its template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from milepost.lab.report.layout import laid_out

if TYPE_CHECKING:
    from markupsafe import Markup


def markup(template: str, **values: object) -> Markup:
    """Return a template of this folder filled in, as what needs no escaping in another."""
    from markupsafe import Markup

    return Markup(laid_out(template, "milepost.explore.pictures", **values))
