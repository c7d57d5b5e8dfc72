"""A chapter in Chinese has the code of the English one, and is of its text of today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide.builder.chapter import Chapter, Prose, chapters, in_language, read
from guide.builder.glossary import terms
from guide.builder.translation import faults, stamp

from tests.guide.test_chapters import written

CHINESE = "[\u4e00-\u9fff]"
TERMS = terms()


@pytest.mark.parametrize("chapter", chapters(), ids=lambda each: each.name)
def test_a_chapter_has_a_translation_of_today(chapter: Chapter):
    assert faults(chapter, in_language(chapter, "zh")) == []


def test_no_translation_is_without_its_original():
    assert {each.name for each in chapters("zh")} == {each.name for each in chapters("en")}


@pytest.mark.parametrize("chapter", chapters("zh"), ids=lambda each: each.name)
def test_it_uses_the_words_of_the_glossary(chapter: Chapter):
    text = "".join(part.text for part in chapter.parts if isinstance(part, Prose))
    assert [word for term in TERMS for word in term.avoid if word in text] == []


@pytest.mark.parametrize("chapter", chapters("zh"), ids=lambda each: each.name)
def test_its_marks_are_those_of_chinese(chapter: Chapter):
    text = "".join(part.text for part in chapter.parts if isinstance(part, Prose))
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", "x", text, flags=re.S)
    assert re.findall(f"{CHINESE}[,;:?!]|{CHINESE}\\.(?:\\s|$)|{CHINESE} +{CHINESE}", text) == []


def pair(folder: Path, chinese: str = "# 标题\n\n```python\nx = 1  # 一\ny = '二'\n```\n") -> tuple[Chapter, Path]:
    """A chapter, and its translation with that text."""
    original = written(folder, "# T\n\n```python\nx = 1  # one\ny = 'two'\n```\n")
    path = folder / "zh" / "01-t.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"---\ntitle: 标题\ntranslates: 0\n---\n{chinese}", encoding="utf-8")
    stamp(path, original)
    return original, path


def test_comments_and_strings_may_differ(tmp_path: Path):
    assert faults(*pair(tmp_path)) == []


def test_a_missing_a_stale_and_a_changed_translation_are_caught(tmp_path: Path):
    original, path = pair(tmp_path)
    assert faults(original, tmp_path / "zh" / "02.md") == ["01-t: there is no zh/02.md; write it (guide/WRITING.md)"]
    newer = written(tmp_path, "# T, changed\n\n```python\nx = 1  # one\ny = 'two'\n```\n")
    assert faults(newer, path) == [
        f"zh/01-t.md translates {original.digest}, and the original is {newer.digest}: bring it up to date, then run "
        "python -m guide stamp 01-t"
    ]
    stamp(path, newer)
    assert faults(newer, path) == []
    assert faults(*pair(tmp_path, "# 标题\n\n```python\nx = 2\ny = '二'\n```\n")) == [
        "zh/01-t.md, line 8: differs from line 8 of the original in its code"
    ]
    assert faults(*pair(tmp_path, "# 标题\n")) == ["zh/01-t.md has 0 blocks of Python, the original 1"]


def test_lines_of_chinese_are_joined(tmp_path: Path):
    _, path = pair(tmp_path, "# 标题\n\n一行，\n又一行\nand\n一行\n")
    assert "一行，又一行\nand\n一行" in "".join(part.text for part in read(path).parts)


def test_the_glossary_has_eighty_terms_each_once():
    assert len(TERMS) == len({each.en for each in TERMS}) == len({each.zh for each in TERMS}) == 80
    for each in TERMS:
        assert re.search(CHINESE, each.line_zh), each.en
        assert each.line.endswith("."), each.en
        assert each.line_zh.endswith("。"), each.en
    assert {word for each in TERMS for word in each.avoid}.isdisjoint(each.zh for each in TERMS)
