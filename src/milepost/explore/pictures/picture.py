"""A picture, and several of them as one SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from milepost.explore.pictures.written import markup, own
from milepost.lab.report.layout import drawing_style

if TYPE_CHECKING:
    from markupsafe import Markup

SCOPE = "milepost"
GAP = 24
LETTER = 7.8
"""How wide a letter of a title is."""
WIDEST = 1460.0
"""Three pictures are put in one line where that is not wider."""


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


def drawn(title: str, pictures: Sequence[Picture], settings: str = "", *, headed: bool = True) -> str:
    """Return pictures as one SVG, each under its title, two in a line, or three where there are no more.

    headed: with the title and the settings above all.
    """
    # Some titles are wider than what is beneath them.
    sizes = [(max(each.size[0], LETTER * len(each.title)), each.size[1]) for each in pictures]
    across = 3 if len(sizes) == 3 and sum(width + GAP for width, _ in sizes) + GAP <= WIDEST else 2
    # One that is left for the last line may be wider than a column.
    whole = sizes[: len(sizes) // across * across] or sizes
    columns = [max((width for width, _ in whole[n::across]), default=0.0) for n in range(across)]
    wide = max(GAP + sum(width + GAP for width in columns if width), *(width + 2 * GAP for width, _ in sizes), 400.0)
    lines: list[tuple[str, float, str]] = []
    y = float(GAP)
    if headed:
        for style, text, letter, line in (("top", title, 8.6, 21.0), ("under", settings, 6.4, 17.0)):
            for each in textwrap.wrap(text, int((wide - 2 * GAP) / letter)):
                lines.append((style, y + 4, each))
                y += line
        y += 8
    y += 10
    placed: list[tuple[Picture, float, float]] = []
    for first in range(0, len(pictures), across):
        row = range(first, min(first + across, len(pictures)))
        placed += [(pictures[n], GAP + sum(columns[: n - first]) + GAP * (n - first), y) for n in row]
        y += max(sizes[n][1] for n in row) + 2 * GAP
    values: dict[str, Any] = {"heading": title, "lines": lines, "placed": placed, "wide": wide, "tall": y - GAP}
    return markup("pictures.svg", scope=SCOPE, drawing=own(drawing_style(SCOPE)), left=GAP, **values)
