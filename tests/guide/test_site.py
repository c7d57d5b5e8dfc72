"""Formulas, notebooks, pages and links: what the site is made of; and the site itself, where its generator is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("latex2mathml", reason="formulas need latex2mathml: pip install 'milepost[docs]'")
pytest.importorskip("nbformat", reason="notebooks need nbformat: pip install 'milepost[docs]'")

import nbformat
from guide.builder import project
from guide.builder.chapter import Chapter, Prose, chapters
from guide.builder.formulas import formulas_of, mathml, with_mathml
from guide.builder.links import faults
from guide.builder.notebook import notebook
from guide.builder.pages import page
from guide.builder.running import Shown

from tests.guide.test_chapters import written

EVERY = chapters("en") + chapters("zh")
BOTH = pytest.mark.parametrize("chapter", EVERY, ids=lambda each: f"{each.language}/{each.name}")


@BOTH
def test_every_formula_becomes_mathml(chapter: Chapter):
    found = [each for part in chapter.parts if isinstance(part, Prose) for each in formulas_of(part.text)]
    for each in found:
        made = mathml(each)
        # What it does not know, it writes out with its backslash.
        assert "\\" not in re.sub(r"&#92;", "\\\\", made), each
    prose = with_mathml("".join(part.text for part in chapter.parts if isinstance(part, Prose)))
    assert "$" not in re.sub(r"`[^`]*`", "", prose), "a dollar that is no formula, or a formula that is not closed"


@BOTH
def test_its_notebook_is_valid_has_its_code_and_no_outputs(chapter: Chapter):
    made = nbformat.reads(notebook(chapter), as_version=4)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == [each.text.rstrip("\n") for each in chapter.code]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    # The answers are folded.
    assert sum("jupyter" in cell.metadata for cell in code) >= 3


def test_formulas_in_code_and_single_dollars_stay():
    assert with_mathml("`$x$` and 5 $ and\n```\n$y$\n```\n") == "`$x$` and 5 $ and\n```\n$y$\n```\n"
    made = with_mathml("so $x_1$, and $$ y $$")
    assert made.count("<math") == 2
    assert "</math>,</span>" in made
    assert 'class="formula"' in made


def test_a_page_has_what_blocks_show_and_folds_answers(tmp_path: Path):
    text = "# T\n\n```python\n1\n```\n\n<details><summary>Answer</summary>\n\n```python\n2\n```\n\n</details>\n"
    shown = [Shown("1\n"), Shown(svg='<svg width="10" height="20"></svg>', says='a "picture"')]
    made, pictures = page(written(tmp_path, text), shown)
    assert '```text title="shows"\n1\n```' in made
    assert re.search(r'\?\?\? success "Answer"\n+    ```python\n    2\n    ```\n', made)
    ((name, svg),) = pictures.items()
    assert svg == shown[1].svg
    assert f'src="../pictures/{name}" width="10" height="20" alt="a &quot;picture&quot;"' in made
    assert '<a href="../../zh/learn/01-t.html"' in made


def test_the_pages_of_docs_link_to_files_that_are_there():
    assert list(project.missing()) == []


def test_links_to_nowhere_and_requests_elsewhere_are_caught(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="here">b</h1><img src="../gone.png">', encoding="utf-8")
    (tmp_path / "a.html").write_text(
        '<a href="b/">1</a><a href="b/index.html#here">2</a><a href="b/#gone">3</a><a href="c.html">4</a>'
        '<a href="https://example.org">5</a><script src="https://example.org/x.js"></script>',
        encoding="utf-8",
    )
    assert faults(tmp_path) == [
        "a.html: loads https://example.org/x.js",
        "a.html: b/#gone: there is no #gone on that page",
        "a.html: c.html: there is no such file",
        "b/index.html: ../gone.png: there is no such file",
    ]


def test_a_page_of_a_megabyte_is_caught(tmp_path: Path):
    (tmp_path / "en" / "learn").mkdir(parents=True)
    (tmp_path / "en" / "search.json").write_bytes(b" " * 600_000)
    (tmp_path / "en" / "a.svg").write_bytes(b" " * 399_970)
    (tmp_path / "en" / "learn" / "a.html").write_text('<img src="../a.svg">', encoding="utf-8")
    assert faults(tmp_path) == []
    (tmp_path / "en" / "learn" / "a.html").write_text('<img src="../a.svg">' + " " * 10, encoding="utf-8")
    assert faults(tmp_path) == ["en/learn/a.html: 1,000,000 bytes with all that it loads; at most 1,000,000"]
    (tmp_path / "en" / "learn" / "a.html").write_text('<img src="../a.svg" loading="lazy">', encoding="utf-8")
    assert faults(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs zensical: pip install 'milepost[docs]'")
def test_the_site_is_built_strictly():
    from guide.builder.site import build

    assert build() == []
