"""A picture, and several of them as one SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from milepost.explore.pictures.written import markup
from milepost.lab.report.layout import drawing_style

if TYPE_CHECKING:
    from markupsafe import Markup

SCOPE = "milepost"
GAP = 24


class Picture(Protocol):
    """What can be drawn: as a part of an SVG, and on axes of matplotlib."""

    @property
    def title(self) -> str: ...

    @property
    def size(self) -> tuple[float, float]:
        """Width and height, in pixels of the SVG."""
        ...

    @property
    def spoken(self) -> str:
        """What a reader hears who sees no picture."""
        ...

    def body(self) -> Markup:
        """Return the drawing without its frame, from 0, 0 to its size."""
        ...

    def onto(self, axes: Any) -> None:
        """Draw on axes of matplotlib."""
        ...


def drawn(title: str, pictures: Sequence[Picture], across: int = 2) -> str:
    """Return pictures as one SVG, so many in a line, each under its title."""
    placed: list[tuple[Picture, float, float]] = []
    x, y, wide, tall = GAP, GAP + 10.0, 0.0, 0.0
    for number, picture in enumerate(pictures):
        if number and number % across == 0:
            x, y, tall = GAP, y + tall, 0.0
        placed.append((picture, x, y))
        x += picture.size[0] + GAP
        wide, tall = max(wide, x), max(tall, picture.size[1] + 2 * GAP)
    values: dict[str, Any] = {"heading": title, "placed": placed, "wide": wide, "tall": y + tall - GAP / 2}
    return markup("pictures.svg", scope=SCOPE, drawing=drawing_style(SCOPE), **values)
