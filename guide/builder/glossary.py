"""The terms of glossary.md."""

from __future__ import annotations

from dataclasses import dataclass

from guide.builder.paths import GUIDE


@dataclass(frozen=True)
class Term:
    """A term, with a line about it, in both languages."""

    en: str
    zh: str
    line: str
    line_zh: str
    avoid: tuple[str, ...] = ()
    """Other Chinese words for it, which a chapter must not use."""


def terms() -> list[Term]:
    """Return the rows of the table."""
    lines = (GUIDE / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    return [Term(*four, tuple(filter(None, avoid.split("、")))) for *four, avoid in cells]


def page(language: str, title: str) -> str:
    """Return the glossary as a page, sorted in its language's order, the other language beside it."""
    rows = [
        f"| **{each.en}** | {each.zh} | {each.line} |"
        if language == "en"
        else f"| **{each.zh}** | {each.en} | {each.line_zh} |"
        for each in terms()
    ]
    head = "| | | |\n|---|---|---|"
    return "\n".join([f"# {title}", "", head, *rows, ""])
