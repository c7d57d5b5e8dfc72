"""An analysis as one HTML page that needs nothing else, in the look of the reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from milepost import __version__
from milepost.explore.analysis import Analysis
from milepost.explore.pictures.picture import Picture, drawn
from milepost.lab.report.layout import laid_out, write_whole

NOTHING: Mapping[str, str] = MappingProxyType({})


def write_page(found: Analysis, path: Path, command: str, asked: str, meanings: Mapping[str, str] = NOTHING) -> None:
    """Write the page; the file is there wholly or not at all. meanings: of the words in it."""
    from markupsafe import Markup

    page = laid_out(
        "page.html",
        "milepost.explore",
        command=command,
        title=found.title,
        asked=asked,
        lede=[f"{each.removesuffix('.')}." for each in found.says.split(". ")],
        made=f"milepost {__version__}",
        meanings=meanings,
        groups=[
            (across, [Markup(drawn(each.title, [each], headed=False)) for each in pictures])
            for across, pictures in _groups(found)
        ],
    )
    write_whole(page, path)


def _groups(found: Analysis) -> Iterator[tuple[int, list[Picture]]]:
    """Return pictures of one kind together, and how many are in a line: as many as the analysis has, or two."""
    for _, each in groupby(found.pictures, type):
        pictures = list(each)
        across = found.across or 2
        yield across if len(pictures) % across == 0 else 2, pictures
