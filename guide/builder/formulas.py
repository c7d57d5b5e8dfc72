"""Formulas of LaTeX in Markdown, as MathML: the browser sets them, and nothing has to be loaded."""

from __future__ import annotations

import re
from collections.abc import Callable

from latex2mathml.converter import convert

PIECE = re.compile(r"(```.*?^```$|`[^`\n]+`)|\$\$(.+?)\$\$|(?<![\\$])\$(?=\S)([^$\n]*?\S)\$(?![\d$])", re.S | re.M)
BAR = re.compile(r"<mo[^>]*>(?:\||&#x0007C;)</mo>")
FUNCTION = re.compile(r"<mi>([a-z]{2,})</mi>(?!<mo[^>]*>(?:\(|&#x00028;))")
SPECIAL = {ord(each): f"&#{ord(each)};" for each in "*_`[]\\~^!|"}
"""What Markdown would read, as numbers."""


def with_mathml(text: str) -> str:
    """Return Markdown whose $…$ and $$…$$ are MathML; what stands in code is left alone."""
    return _replaced(text, _mathml)


def formulas_of(text: str) -> list[str]:
    """Return the LaTeX of every formula of a text."""
    return [(found[2] or found[3]).strip() for found in PIECE.finditer(text) if not found[1]]


def _replaced(text: str, write: Callable[[str, bool], str]) -> str:
    def one(found: re.Match[str]) -> str:
        return found[1] or write((found[2] or found[3]).strip(), found[2] is not None)

    return PIECE.sub(one, text)


def _mathml(latex: str, block: bool) -> str:
    made = convert(latex, display="block" if block else "inline")
    # Bars around a number are no relation, and a name of a function stands apart from what it is of.
    made = BAR.sub('<mo lspace="0" rspace="0" stretchy="false">|</mo>', made)
    made = FUNCTION.sub(r'<mi>\1</mi><mspace width="0.17em"/>', made)
    # Markdown reads the text between tags: its marks are written as numbers.
    made = re.sub(r">([^<]+)<", lambda found: f">{found[1].translate(SPECIAL)}<", made)
    # In a span, since Markdown takes a line that begins with <math> for a block of HTML.
    # A mark after a formula stays on its line: U+2060 forbids the break.
    return f'<span class="formula">{made}</span>' if block else f'<span class="math">{made}</span>&#8288;'
