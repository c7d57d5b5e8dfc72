"""An analysis as one HTML page that needs nothing else, in the look of the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from milepost import __version__
from milepost.explore.analysis import Analysis
from milepost.explore.pictures.picture import drawn
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
        pictures=[Markup(drawn(each.title, [each], headed=False)) for each in found.pictures],
    )
    write_whole(page, path)
