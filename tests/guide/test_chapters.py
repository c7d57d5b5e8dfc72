"""Every block of every chapter runs, and shows what the site shows; what did not change is not run again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide.builder.chapter import Chapter, Prose, chapters, read
from guide.builder.running import run

CHAPTERS = chapters()
HEAD = "---\ntitle: T\nstory: turn\n---\n"


def written(folder: Path, text: str, name: str = "01-t.md") -> Chapter:
    """A chapter of that text."""
    path = folder / "en" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + text, encoding="utf-8")
    return read(path)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda each: each.name)
def test_its_blocks_run(chapter: Chapter):
    shown = run(chapter)
    assert len(shown) == len(chapter.code) > 5
    assert sum(bool(each.svg) for each in shown) >= 2, "two pictures at least"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda each: each.name)
def test_it_ends_in_three_exercises_whose_answers_run(chapter: Chapter):
    text = chapter.path.read_text(encoding="utf-8")
    assert text.count("## Exercises\n") == 1
    exercises = text.partition("## Exercises\n")[2]
    answers = re.findall(r"^<details><summary>Answer</summary>\n(.*?)^</details>$", exercises, re.S | re.M)
    assert len(answers) == len(re.findall(r"^\*\*\d\.\*\*", exercises, re.M)) == 3
    assert all("```python\n" in each for each in answers)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda each: each.name)
def test_its_story_is_there(chapter: Chapter):
    from milepost.explore.server.export import of_link
    from milepost.explore.server.told import stories

    link = chapter.facts["story"]
    assert of_link(f"#{link if '=' in link else f'story={link}'}", stories())


def test_blocks_share_names_and_the_last_line_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("guide.builder.store.CACHE", tmp_path / "cache")
    chapter = written(tmp_path, "# T\n\n```python\nx = 2\nprint(x)\n```\n\nand\n\n```python\nx + 1\n```\n")
    assert [each.text for each in run(chapter)] == ["2\n", "3\n"]
    assert [part.text for part in chapter.parts if isinstance(part, Prose)][1] == "\nand\n\n"


def test_a_block_that_fails_fails_the_chapter_and_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("guide.builder.store.CACHE", tmp_path / "cache")
    chapter = written(tmp_path, "# T\n\n```python\nassert 1 + 1 == 3\n```\n")
    with pytest.raises(AssertionError) as failed:
        run(chapter)
    assert str(failed.traceback[-1].path).endswith("en/01-t.md, block 1 (line 8)")


def test_what_did_not_change_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("guide.builder.store.CACHE", tmp_path / "cache")
    count = tmp_path / "count"
    count.touch()
    counting = f"from pathlib import Path\n\ncount = Path({str(count)!r})\ncount.write_text(count.read_text() + 'x')"
    chapter = written(tmp_path, f"# T\n\n```python\n{counting}\n```\n")
    run(chapter)
    run(chapter)
    assert count.read_text() == "x"
    run(written(tmp_path, f"# T\n\n```python\n{counting}\n```\n\n```python\n1\n```\n"))
    assert count.read_text() == "xx"
    monkeypatch.setattr("guide.builder.store.package", lambda: "another")
    run(chapter)
    assert count.read_text() == "xxx"


def test_a_head_that_lacks_a_line_is_refused(tmp_path: Path):
    path = tmp_path / "en" / "01-t.md"
    path.parent.mkdir()
    path.write_text("---\ntitle: T\n---\n# T\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^en/01-t\.md: its head has no 'story'; add a line 'story: …'$"):
        read(path)
    path.write_text("# T\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^01-t\.md: no head; begin with --- and a line 'title: …', and end it"):
        read(path)
