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
LINE = 16.0
"""From one line of a title to the next."""
WIDEST = 1020.0
"""A line of pictures is no wider: at the width of a page of text the letters can still be read."""


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


def drawn(
    title: str, pictures: Sequence[Picture], settings: str = "", *, headed: bool = True, says: str = "", across: int = 0
) -> str:
    """Return pictures as one SVG, each under its title.

    headed: with the title and the settings above all, lines of the latter begun anew where they are; says: what the
    pictures show, for who sees none. across: so many in a line at most; two if left out, or three where there are no
    more. Where that is too wide, as many as fit.
    """
    sizes = [each.size for each in pictures]
    titles = [textwrap.wrap(each.title, int(max(each.size[0], 240.0) / LETTER)) for each in pictures]
    rows = _rows([width for width, _ in sizes], across)
    wide = max(max((x + sizes[n][0] + GAP for row in rows for n, x in row), default=0.0), 400.0)
    lines: list[tuple[str, float, str]] = []
    y = float(GAP)
    if headed:
        for style, text, letter, line in (("top", title, 9.4, 21.0), ("under", settings, 6.4, 17.0)):
            most = int((wide - 2 * GAP) / letter)
            for each in (part for own in text.splitlines() for part in textwrap.wrap(own, most)):
                lines.append((style, y + 4, each))
                y += line
        y += 8
    y += 10
    placed: list[tuple[Picture, list[tuple[float, str]], float, float, float]] = []
    for row in rows:
        drop = LINE * max(max(len(titles[n]) for n, _ in row) - 1, 0)
        placed += [(pictures[n], [(LINE * m, each) for m, each in enumerate(titles[n])], x, y, drop) for n, x in row]
        y += drop + max(sizes[n][1] for n, _ in row) + 2 * GAP
    spoken = f"{title}. {says}".strip() if says else title
    values: dict[str, Any] = {"heading": title, "spoken": spoken, "lines": lines, "wide": wide, "tall": y - GAP}
    return markup("pictures.svg", scope=SCOPE, drawing=own(drawing_style(SCOPE)), left=GAP, placed=placed, **values)


def _rows(widths: Sequence[float], across: int) -> list[list[tuple[int, float]]]:
    """Return the pictures of each line, and where each begins."""
    for count in (across,) if across else (3, 2) if len(widths) == 3 else (2,):
        # One that is left for the last line may be wider than a column.
        whole = widths[: len(widths) // count * count] or widths
        columns = [max(whole[n::count], default=0.0) for n in range(count)]
        starts = [GAP + sum(columns[:n]) + GAP * n for n in range(count)]
        if starts[-1] + columns[-1] + GAP <= WIDEST:
            return [
                [(n, starts[n - first]) for n in range(first, min(first + count, len(widths)))]
                for first in range(0, len(widths), count)
            ]
    rows: list[list[tuple[int, float]]] = []
    x = float(GAP)
    for n, width in enumerate(widths):
        if not rows or x + width + GAP > WIDEST:
            rows.append([])
            x = float(GAP)
        rows[-1].append((n, x))
        x += width + GAP
    return rows
