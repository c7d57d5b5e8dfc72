"""Whether a translation is of today's original, and has the same code."""

from __future__ import annotations

import re
from pathlib import Path

from guide.builder.chapter import Chapter, read, shape_of


def faults(original: Chapter, translation: Path) -> list[str]:
    """Return what is wrong with a chapter's translation, in words."""
    if not translation.exists():
        return [
            f"{original.name}: there is no {translation.parent.name}/{translation.name}; write it (guide/WRITING.md)"
        ]
    made, name = read(translation), f"{translation.parent.name}/{translation.name}"
    found: list[str] = []
    if made.facts["translates"] != original.digest:
        found.append(
            f"{name} translates {made.facts['translates']}, and the original is {original.digest}: bring it up to "
            f"date, then run python -m guide stamp {original.name}"
        )
    ours, theirs = [each.text for each in made.code], [each.text for each in original.code]
    if len(ours) != len(theirs):
        return [*found, f"{name} has {len(ours)} blocks of Python, the original {len(theirs)}"]
    for block, other in zip(made.code, original.code, strict=True):
        if shape_of(block.text) != shape_of(other.text):
            found.append(f"{name}, line {block.line}: differs from line {other.line} of the original in its code")
    return found


def stamp(translation: Path, original: Chapter) -> None:
    """Record in a translation that it is of the original as it is now."""
    text = translation.read_text(encoding="utf-8")
    made = re.sub(r"^translates:.*$", f"translates: {original.digest}", text, count=1, flags=re.M)
    translation.write_text(made, encoding="utf-8")
