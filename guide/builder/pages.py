"""A chapter as a page of the site: its text, what its blocks show, its notebook and its story."""

from __future__ import annotations

import hashlib
import re
from html import escape

from guide.builder.chapter import Chapter, Code
from guide.builder.formulas import with_mathml
from guide.builder.running import Shown
from guide.builder.words import WORDS

FOLDED = re.compile(r"^<details><summary>(.*?)</summary>\n(.*?)^</details>\n?", re.S | re.M)

FENCED = re.compile(r"^```(?:python|text).*?^```\n", re.S | re.M)


def page(chapter: Chapter, shown: list[Shown]) -> tuple[str, dict[str, str]]:
    """Return a chapter's page in Markdown, and its pictures by file name."""
    said = WORDS[chapter.language]
    pictures: dict[str, str] = {}
    parts: list[str] = []
    for part in chapter.parts:
        if isinstance(part, Code):
            parts.append(f"```python\n{part.text}```\n")
            parts.append(_output(shown[part.number], said, pictures))
        else:
            parts.append(with_mathml(part.text))
    text = FENCED.sub(lambda found: unsearched(found[0]), FOLDED.sub(_folded, "\n".join(parts)))
    other = "zh" if chapter.language == "en" else "en"
    top = (
        f'<p class="about"><a href="../../{other}/learn/{chapter.name}.html" hreflang="{other}">{said["other"]}</a> · '
        f'<a href="{chapter.name}.ipynb" download>{said["notebook"]}</a></p>\n'
    )
    title, _, rest = text.lstrip().partition("\n")
    return f"{title}\n\n{top}\n{rest}\n{_story(chapter)}", pictures


def unsearched(text: str) -> str:
    """Return Markdown that the search passes over: every page loads the index of all."""
    return f'<div data-search-exclude markdown="1">\n\n{text}\n\n</div>\n'


def _output(shown: Shown, said: dict[str, str], pictures: dict[str, str]) -> str:
    made = f'```text title="{said["shows"]}"\n{shown.text.rstrip()}\n```\n' if shown.text else ""
    if shown.svg:
        name = f"{hashlib.sha256(shown.svg.encode()).hexdigest()[:16]}.svg"
        pictures[name] = shown.svg
        made += f"\n{picture(f'../pictures/{name}', shown)}\n"
    return made


def picture(address: str, shown: Shown) -> str:
    """Return a picture as HTML: a link to itself, as wide as it is, with what it shows for those who do not see it."""
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', shown.svg)
    given = f' width="{size[1]}" height="{size[2]}"' if size else ""
    alt = escape(shown.says or "", quote=True)
    return f'<a class="picture" href="{address}"><img src="{address}"{given} alt="{alt}" loading="lazy"></a>'


def _folded(found: re.Match[str]) -> str:
    inner = "\n".join(f"    {line}" if line.strip() else "" for line in found[2].splitlines())
    return f'??? success "{found[1]}"\n\n{inner}\n\n'


def _story(chapter: Chapter) -> str:
    said = WORDS[chapter.language]
    return (
        f"## {said['explore']}\n\n{said['story']}\n\n"
        f'<p><a class="md-button" href="../stories/{chapter.name}.html">{said["open"]}</a></p>\n'
    )
