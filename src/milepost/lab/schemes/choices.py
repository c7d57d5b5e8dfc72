"""Settings left open in an expression: `Rope(dim) + Pivot(Rerope(32), trained, {0.25|0.5|1})` stands for three."""

from __future__ import annotations

import itertools
import re

OPEN = re.compile(r"\{([^{}]*)\}")
MOST = 64
"""Settings of one row; each is judged."""


def is_open(text: str) -> bool:
    """True if an expression leaves a setting open."""
    return "{" in text or "}" in text


def choices(text: str) -> list[str]:
    """Return every expression that a text stands for, in order; itself where nothing is open.

    What stands in braces, with bars between, is tried one by one; several braces give every combination.
    """
    inner = [[each.strip() for each in found.split("|")] for found in OPEN.findall(text)]
    around = OPEN.split(text)[::2]
    if any("{" in each or "}" in each for each in around) or not all(map(all, inner)):
        raise ValueError(f"the row {text!r}: settings to choose from are written {{0.25|0.5|1}}, none of them empty")
    found = list(dict.fromkeys(_filled(around, chosen) for chosen in itertools.product(*inner)))
    if len(found) > MOST:
        raise ValueError(f"the row {text!r} stands for {len(found)} settings; at most {MOST} are tried")
    return found


def edge_of(text: str, number: int) -> str:
    """Return which settings of one choice are the first or the last of those listed, in a text with braces."""
    inner = [[each.strip() for each in found.split("|")] for found in OPEN.findall(text)]
    around = OPEN.split(text)[::2]
    chosen = next(each for each in itertools.product(*inner) if _filled(around, each) == choices(text)[number])
    found = [
        f"{value}, the {'first' if value == listed[0] else 'last'} of {', '.join(listed)}"
        for value, listed in zip(chosen, inner, strict=True)
        if len(listed) > 1 and value in (listed[0], listed[-1])
    ]
    return "; ".join(found)


def _filled(around: list[str], chosen: tuple[str, ...]) -> str:
    return "".join(itertools.chain.from_iterable(itertools.zip_longest(around, chosen, fillvalue="")))
