"""Formulas of LaTeX in Markdown, as MathML: the browser sets them, and nothing has to be loaded."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

PIECE = re.compile(
    r"(```.*?^```$|`(?:[^`\n]|\n(?!\n))+`)|\$\$(.+?)\$\$|(?<![\\$])\$(?=\S)([^$\n]*?\S)\$(?![\d$])([,.;:!?)，。；：！？、）]*)",
    re.S | re.M,
)
NUMBERED = re.compile(r"&#x((?!0*(?:26|3C|3E);)[0-9A-F]+);")
"""A character that is written as its number, but for those that HTML needs."""
TIGHT = re.compile(r"<mo[^>]*>(\||/)</mo>")
FUNCTION = re.compile(r"<mi>([a-z]{2,})</mi>(?!<mo[^>]*>\()")
SPECIAL = {ord(each): f"&#{ord(each)};" for each in "*_`[]\\~^!|"}
"""What Markdown would read, as numbers."""


def with_mathml(text: str) -> str:
    """Return Markdown whose $…$ and $$…$$ are MathML; what stands in code is left alone."""
    return PIECE.sub(_written, text)


def formulas_of(text: str) -> list[str]:
    """Return the LaTeX of every formula of a text."""
    return [(found[2] or found[3]).strip() for found in PIECE.finditer(text) if not found[1]]


def _written(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    if found[2]:
        return f'<span class="formula">{mathml(found[2].strip(), "block")}</span>'
    # A span, since Markdown takes a line that begins with <math> for a block; it holds the mark that must not wrap.
    return f'<span class="math">{mathml(found[3])}{found[4]}</span>'


def mathml(latex: str, display: str = "inline") -> str:
    """Return a formula as MathML that stands in Markdown."""
    made = convert(latex, display=display).replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    made = NUMBERED.sub(lambda found: chr(int(found[1], 16)), made)
    # Bars around a number and a slash are no relations, and a name of a function stands apart from what it is of.
    made = TIGHT.sub(r'<mo lspace="0" rspace="0" stretchy="false">\1</mo>', made)
    made = FUNCTION.sub(r'<mi>\1</mi><mspace width="0.17em"/>', made)
    # Markdown reads the text between tags: its marks are written as numbers.
    return re.sub(r">([^<]+)<", lambda found: f">{found[1].translate(SPECIAL)}<", made)
