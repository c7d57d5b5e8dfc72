"""Short texts for the cells of a table, the same in the terminal and in Markdown."""

import math
import re

from milepost.backends import BACKENDS
from milepost.catalogue.sheet import Sheet


def relative(sheet: Sheet) -> str:
    """Return "yes" if shifting all positions changes nothing, "no", or "depends" (on the arguments)."""
    if not sheet.runs:
        return ""
    return {True: "yes", False: "no", None: "depends"}[sheet.relative]


def learned(sheet: Sheet) -> str:
    """Return the names of what is trained, without the parts inside each."""
    names = dict.fromkeys(re.sub(r"\.(weight|bias)$", "", name) for name in sheet.learned)
    if names:
        return ", ".join(names)
    return "yes" if sheet.learns else "no" if sheet.backends else ""


def backends(sheet: Sheet) -> str:
    """Return the backends that run it, named by those that do not."""
    if not sheet.runs:
        return ""
    others = [name for name in BACKENDS if name not in sheet.backends]
    return f"all but {', '.join(others)}" if others else "all"


def formula(sheet: Sheet) -> str:
    """Return the formula on one line, or the call of a function."""
    return re.sub(r" {2,}", " ", sheet.formula) or (sheet.call if sheet.call != sheet.name else "")


def numbers(sheet: Sheet) -> str:
    """Return the parameters with their shapes, and their number in the example."""
    shown = [f"{name} [{' '.join(map(str, shape))}]" for name, shape in sheet.learned.items()]
    total = sum(map(math.prod, sheet.learned.values()))
    return f"{', '.join(shown)}: {total:,} parameters in the example" if shown else learned(sheet)


def is_indented(paragraph: str) -> bool:
    """True if a paragraph of a docstring is a formula or code."""
    return all(line.startswith("    ") for line in paragraph.splitlines())


def column_of(paragraph: str) -> int | None:
    """Return where the second column begins, in a paragraph of a docstring that is a list in two columns."""
    found = re.search(r"^\S.*? {3,}(?=\S)", paragraph, re.MULTILINE)
    return None if found is None else len(found[0])
