"""The catalogue as Markdown."""

import textwrap

from milepost.catalogue import words
from milepost.catalogue.names import chinese
from milepost.catalogue.names.chinese import label
from milepost.catalogue.page import facts
from milepost.catalogue.sheet import Sheet, grouped
from milepost.catalogue.signature import signature

HEADINGS = ("method", "what it does", "verbs", "facets", "formula", "paper", "relative", "learned", "backends")


def table(listed: list[Sheet], lang: str = "en") -> str:
    """Return every group under a heading, with a table of its methods."""
    blocks: list[str] = []
    for group, members in grouped(listed):
        title, about = chinese.group(group.title, group.about, lang)
        head = [_row([label(each, lang) for each in HEADINGS]), _row(["---"] * len(HEADINGS))]
        rows = [*head, *(_row(_cells(sheet)) for sheet in members)]
        blocks.append(f"### {title}\n\n{_sentence(about, lang)}\n\n" + "\n".join(rows))
    return "\n\n".join(blocks)


def page(sheet: Sheet, lang: str = "en") -> str:
    """Return all that is known of one method."""
    blocks = [f"## {sheet.name}", f"```python\n{signature(sheet.name, sheet.arguments)}\n```"]
    blocks += [sheet.does] if lang == "zh" else []
    blocks += [_fenced(sheet.about)]
    blocks.append("\n".join(f"- **{label(name, lang)}**: {'; '.join(lines)}" for name, lines in facts(sheet)))
    if sheet.composes:
        blocks.append(
            f"### {label('How it composes', lang)}\n\n" + "\n".join(f"- {sentence}" for sentence in sheet.composes)
        )
    if sheet.example:
        blocks.append(f"### {label('Example', lang)}\n\n```python\n{sheet.example}\n```")
    return "\n\n".join(block for block in blocks if block)


def _cells(sheet: Sheet) -> list[str]:
    formula = words.formula(sheet)
    return [
        f"`{sheet.name}`",
        sheet.does,
        ", ".join(f"`{verb}`" for verb in sheet.verbs),
        ", ".join(f"`{facet}`" for facet in sheet.facets),
        f"`{formula}`" if formula else "",
        f"[{sheet.paper}]({sheet.link})" if sheet.link else sheet.paper,
        words.relative(sheet),
        words.learned(sheet),
        words.backends(sheet),
    ]


def _row(cells: list[str] | tuple[str, ...]) -> str:
    # Inside a table a bar ends the cell, in code too.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _fenced(about: str) -> str:
    """Return a docstring whose formulas are code blocks."""
    blocks: list[str] = []
    for paragraph in about.split("\n\n"):
        if words.is_indented(paragraph) or words.column_of(paragraph):
            blocks.append("\n".join(("```", textwrap.dedent(paragraph), "```")))
        else:
            blocks.append(paragraph)
    return "\n\n".join(blocks)


def _sentence(words: str, lang: str) -> str:
    return f"{words[0].upper()}{words[1:]}{'。' if lang == 'zh' else '.'}"
