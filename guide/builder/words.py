"""What the builder itself writes on pages, in both languages."""

from __future__ import annotations

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "site": "milepost, the guide",
        "home": "Home",
        "learn": "Learn",
        "reference": "Reference",
        "glossary": "Glossary",
        "project": "Tasks and tables",
        "other": "中文",
        "notebook": "Notebook",
        "shows": "shows",
        "explore": "Explore it",
        "story": (
            "A page in one file, made by `milepost explore --export`: move the controls, guess first, and compare with "
            "what was derived here."
        ),
        "open": "Open the story",
    },
    "zh": {
        "site": "milepost 指南",
        "home": "首页",
        "learn": "教程",
        "reference": "参考",
        "glossary": "术语表",
        "project": "任务与数据表（英文）",
        "other": "English",
        "notebook": "笔记本（ipynb）",
        "shows": "输出",
        "explore": "动手看看",
        "story": "下面是由 `milepost explore --export` 导出的单个网页：先猜一猜，再拖动滑块，与上面推导的结论对照。",
        "open": "打开交互页面",
    },
}
