"""Text in lines as wide as the terminal."""

from __future__ import annotations

import textwrap
from shutil import get_terminal_size

PIPE, WIDEST = 80, 118
"""How wide lines are in a pipe, and at most."""


def columns() -> int:
    """Return how wide lines are here."""
    return min(get_terminal_size((PIPE, 24)).columns, WIDEST)


def said(name: str, text: str) -> list[str]:
    """Return text after its name, in lines."""
    return wrapped(text, f"  {name:<10}", 12)


def wrapped(text: str, head: str = "", indent: int = 0) -> list[str]:
    """Return text in lines as wide as the terminal, broken at blanks alone, so that no number is cut."""
    cut = textwrap.TextWrapper(columns(), break_long_words=False, break_on_hyphens=False)
    cut.initial_indent, cut.subsequent_indent = head, " " * indent
    return cut.wrap(text) or [head]
