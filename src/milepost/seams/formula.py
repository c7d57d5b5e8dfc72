"""Formulas as docstrings write them: found, the lines that apply chosen, and numbers put in for names.

    clip=True:   sharpen(i)  =  max(1, ln n / ln trained)
    clip=False:  sharpen(i)  =  ln n / ln trained

A line that begins with arguments and a colon applies where the arguments have those values; `most=…:` means any but
None. Of LogN(4096) there is left, and printed, `sharpen(i)  =  max(1, ln n / ln 4096)`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence

from torch import nn

# One term, then a sign that relates it to another: `turn(x, p)[n]  =  …`, `form="log":  score  ←  …`.
EQUATION = re.compile(r"(?:\w+=\S+:\s+)?[^\s([]+(?:\([^)]*\)|\[[^\]]*\])*\s+[←=<≤>≥~]\s")

ONE_CONDITION = r"""[A-Za-z]\w*=(?:"[^"]*"|[\w.…-]+)"""
CONDITIONS = re.compile(rf"({ONE_CONDITION}(?:, {ONE_CONDITION})*):\s+(.*)")

# A quotient or a difference of two whole numbers that no sign beside it pulls apart.
QUOTIENT = re.compile(r"(?<![\w.])(\d+)/(\d+)(?![\w.])")
DIFFERENCE = re.compile(r"(?<![\w.])(\d+) − (\d+)(?![\w.])")

OPENS, CLOSES = "([{⌊⌈|,;:=<≤>≥←+…", ")]}⌋⌉|,;:=<≤>≥+−…"
"""What may stand before and after one that is worked out; a quotient may be subtracted and multiplied, too."""


def formula_lines(method: object) -> list[str]:
    """The lines of the formula in the docstring of a method or of its class.

    It is the first indented block. A docstring that holds nothing else to measure an indent against has lost its own,
    so there the first lines that read as equations are taken.
    """
    lines = inspect.cleandoc(_docstring(method if isinstance(method, type) else type(method))).splitlines()
    for start, line in enumerate(lines):
        above = lines[start - 1].strip() if start else ""
        if _indent(line) and (not above or EQUATION.match(line.strip())) and not line.strip().startswith(">>>"):
            return _block(lines[start:], _indent(line))
    for start, line in enumerate(lines):
        if EQUATION.match(line):
            return _block(lines[start:], 0)
    return []


def _docstring(method: type) -> str:
    """A class's own docstring, or that of the nearest method it is made from; not torch's."""
    for each in method.__mro__:
        if each in (nn.Module, object):
            break
        if each.__doc__:
            return each.__doc__
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _block(lines: Sequence[str], indent: int) -> list[str]:
    """The lines up to one that is blank or further left; one that is further right goes on with the one before."""
    found: list[str] = []
    for line in lines:
        if not line.strip() or _indent(line) < indent or (indent == 0 and not (_indent(line) or EQUATION.match(line))):
            break
        if found and _indent(line) > indent:
            found[-1] += ("   " if found[-1].endswith(",") else " ") + line.strip()
        else:
            found.append(line.strip())
    return found


def that_apply(lines: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The lines whose conditions hold for the values of the arguments, without their conditions."""
    chosen: list[str] = []
    for line in lines:
        found = CONDITIONS.fullmatch(line)
        conditions = [] if found is None else [each.split("=", 1) for each in found[1].split(", ")]
        if found is None or not all(name in values for name, _ in conditions):
            chosen.append(line)
        elif all(_holds(wanted, values[name]) for name, wanted in conditions):
            chosen.append(found[2])
    return chosen


def _holds(wanted: str, value: object) -> bool:
    return value is not None if wanted == "…" else value == ast.literal_eval(wanted)


def put_in(line: str, texts: Mapping[str, str]) -> str:
    """Write what is known for every name that stands as a word of its own, and work out `128/2` and `(128 − 2)`.

    A name that is defined here (`base = …`), called (`pair(n)`) or belongs to something else (`x.dim`) stays.
    """
    if texts:
        names = "|".join(sorted(map(re.escape, texts), key=len, reverse=True))
        word = re.compile(rf"(?<![\w.])(?:{names})(?![\w(]|\s+[=←]\s)")
        line = word.sub(lambda found: texts[found[0]], line)
    before = None
    while before != line:
        before = line
        line = QUOTIENT.sub(_worked_out, line)
        line = DIFFERENCE.sub(_worked_out, line)
        # Brackets around a number are needed by a function alone.
        line = re.sub(r"(?<!\w)\((\d+)\)", r"\1", line)
    return line


def _worked_out(found: re.Match[str]) -> str:
    """A quotient or difference as one number, where it is a whole one and no sign beside it binds more tightly."""
    a, b, quotient = int(found[1]), int(found[2]), found.re is QUOTIENT
    before, after = found.string[: found.start()].rstrip()[-1:], found.string[found.end() :].lstrip()[:1]
    opens, closes = (OPENS + "−", CLOSES + "·") if quotient else (OPENS, CLOSES)
    alone = before in opens and (after in closes or after.isalpha())
    if not alone or (quotient and (b == 0 or a % b)) or (not quotient and a < b):
        return found[0]
    return str(a // b if quotient else a - b)


def with_value(line: str, name: str, value: str) -> str | None:
    """The line with the value of a name that it ends by defining, `magnitude = 0.1 · ln(8) + 1 = 1.20794`, or None."""
    another = r"[,;]\s+\S+\s+[=←]\s"
    found = re.fullmatch(rf"(?:.*[,;]\s+)?{re.escape(name)}(\s+)[=←]\s+((?:(?!{another}).)*)", line)
    if found is None:
        return None
    return line if found[2] == value else f"{line}{found[1]}={found[1]}{value}"


def with_value_instead(line: str, name: str, value: str) -> str | None:
    """The line with the value of the name that it defines in place of the formula, or None."""
    found = re.match(rf"{re.escape(name)}\s+=\s+", line)
    return None if found is None else f"{found[0]}{value}"
