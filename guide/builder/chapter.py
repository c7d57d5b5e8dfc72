"""A chapter: a Markdown file whose blocks of Python run in order, in one namespace."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from guide.builder.paths import CHAPTERS

HEAD = re.compile(r"---\n(.*?)\n---\n", re.S)
CHINESE = r"[\u2014-\u201d\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
BROKEN = re.compile(rf"(?<={CHINESE})\n(?={CHINESE})")
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.S | re.M)


@dataclass(frozen=True)
class Prose:
    """Markdown as it is written."""

    text: str


@dataclass(frozen=True)
class Code:
    """A block of Python."""

    text: str
    number: int
    """Which block of its chapter it is, from 0."""
    line: int
    """The line of the file on which it begins."""


@dataclass(frozen=True)
class Chapter:
    """One source, in one language."""

    path: Path
    facts: dict[str, str]
    """What stands in its head: title, story, translates."""
    parts: tuple[Prose | Code, ...]
    digest: str = field(repr=False)
    """The hash of the whole file, which a translation records."""

    @property
    def name(self) -> str:
        """Its file's name without the ending: `04-rope`."""
        return self.path.stem

    @property
    def language(self) -> str:
        """The folder that it is in: `en` or `zh`."""
        return self.path.parent.name

    @property
    def title(self) -> str:
        """Its title, as menus have it."""
        return self.facts["title"]

    @property
    def code(self) -> tuple[Code, ...]:
        """Its blocks of Python, in order."""
        return tuple(part for part in self.parts if isinstance(part, Code))


def read(path: Path) -> Chapter:
    """Return the chapter that a file holds; a ValueError names what its head lacks."""
    text = path.read_text(encoding="utf-8")
    head = HEAD.match(text)
    if head is None:
        raise ValueError(f"{path.name}: no head; begin with --- and a line 'title: …', and end it with ---")
    facts = dict(_fact(line, path) for line in head[1].splitlines())
    demanded = ("title", "story") if path.parent.name == "en" else ("title", "translates")
    for each in demanded:
        if each not in facts:
            raise ValueError(f"{path.parent.name}/{path.name}: its head has no {each!r}; add a line '{each}: …'")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Chapter(path, facts, tuple(_parts(text, head.end())), digest)


def chapters(language: str = "en") -> list[Chapter]:
    """Return every chapter in a language, in the order of their numbers."""
    return [read(path) for path in sorted((CHAPTERS / language).glob("*.md"))]


def in_language(chapter: Chapter, language: str) -> Path:
    """Return the file of a chapter in another language, which may not be there."""
    return chapter.path.parents[1] / language / chapter.path.name


def shape_of(code: str) -> str:
    """Return what a block does, without its comments and the words of its strings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def _fact(line: str, path: Path) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError(f"{path.name}: {line!r} is no line of a head; write 'name: value'")
    return name.strip(), value.strip()


def _parts(text: str, begin: int) -> list[Prose | Code]:
    parts: list[Prose | Code] = []
    for number, found in enumerate(BLOCK.finditer(text, begin)):
        parts += [_prose(text[begin : found.start()]), Code(found[1], number, text.count("\n", 0, found.start(1)) + 1)]
        begin = found.end()
    return [*parts, _prose(text[begin:])]


def _prose(text: str) -> Prose:
    """Return prose whose lines of Chinese are joined: a break between two characters would be shown as a blank."""
    return Prose(BROKEN.sub("", text))
