"""Names that would be obeyed by who does not escape them, and what a browser makes of a page."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

HOSTILE = ("<script>alert(1)</script>", "[/bold]", "{{ 7*7 }}", "{% raw %}", '"onmouseover="x', "'><b>&amp;")


class Seen(HTMLParser):
    """The tags of a page with the names of their attributes, and every text and value in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[tuple[str, ...]] = Counter()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[(tag, *(name for name, _ in attrs))] += 1
        self.texts += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, word: str) -> int:
        """How often a word stands there, as it is."""
        return sum(text.count(word) for text in self.texts)


def shown_as_text(hostile: str, harmless: str, word: str) -> int:
    """How often a word stands on a page, which is as one with as many letters x in its place, but for texts."""
    found, plain = Seen(hostile), Seen(harmless)
    assert found.tags == plain.tags
    assert found.count(word) == plain.count("x" * len(word))
    return found.count(word)
