"""Finds the sheet that a reader means: by name, by the field's words, in English and in Chinese."""

from collections.abc import Iterable
from dataclasses import replace

from milepost.catalogue.elsewhere import elsewhere
from milepost.catalogue.names.chinese import LINES
from milepost.catalogue.names.spelling import ALSO, plain
from milepost.catalogue.sheet import Sheet
from milepost.seams.arguments import did_you_mean


def find(name: str, listed: Iterable[Sheet]) -> Sheet:
    """Return the sheet of a name, in any case, or of a name from papers; a ValueError names the nearest.

    What other packages of milepost export is found as well: extend, hf.extend.
    """
    listed = [*listed, *elsewhere()]
    sheet_of = {sheet.name: sheet for sheet in listed}
    # Later lines win: a name of milepost itself stands before one of its packages.
    by_name = {plain(sheet.name.rpartition(".")[2]): sheet for sheet in reversed(listed)}
    by_name |= {plain(also): sheet_of[method] for also, method in ALSO.items() if method in sheet_of}
    by_name |= {plain(sheet.title): sheet for sheet in listed if sheet.title}
    by_name |= {plain(sheet.name): sheet for sheet in listed}
    if plain(name) in by_name:
        return by_name[plain(name)]
    holding = [sheet.name for key, sheet in by_name.items() if plain(name) and plain(name) in key]
    near = did_you_mean(name, [sheet.name for sheet in listed])
    if not near and holding:
        near = f"; did you mean {' or '.join(dict.fromkeys(holding[:3]))}?"
    raise ValueError(f"unknown method {name!r}; `milepost methods` lists all{near}")


def in_chinese(sheet: Sheet) -> Sheet:
    """Return a sheet whose first line is Chinese, where there is one."""
    return replace(sheet, does=LINES.get(sheet.name, sheet.does))


def one_line(sheet: Sheet, lang: str) -> str:
    """Return what a method does, in a line of a language."""
    return (in_chinese(sheet) if lang == "zh" else sheet).does
