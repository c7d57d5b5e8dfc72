"""A notebook of a chapter, without outputs."""

from __future__ import annotations

import re

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from guide.builder.chapter import Chapter, Code

INSTALL = {
    "en": "*To run this, install milepost with its extra `explore`: `pip install '.[explore]'` in a checkout.*",
    "zh": "*运行本笔记前，请在源码目录中安装 milepost 及其 `explore` 附加依赖：`pip install '.[explore]'`。*",
}


def notebook(chapter: Chapter) -> str:
    """Return the chapter as a notebook, checked against the format; answers are folded."""
    cells = [new_markdown_cell(INSTALL[chapter.language], id="install")]
    hidden = False
    for number, part in enumerate(chapter.parts):
        if isinstance(part, Code):
            cells.append(new_code_cell(part.text.rstrip("\n"), id=f"code-{part.number}"))
            if hidden:
                cells[-1].metadata = {"jupyter": {"source_hidden": True}}
            continue
        opened, closed = part.text.rfind("<details>"), part.text.rfind("</details>")
        hidden = opened > closed if opened != closed else hidden
        text = re.sub(r"<details><summary>(.*?)</summary>", r"**\1**", part.text).replace("</details>", "").strip()
        if text:
            cells.append(new_markdown_cell(text, id=f"text-{number}"))
    made = new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
    )
    nbformat.validate(made)
    return nbformat.writes(made)
