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
        "facts": "Facts",
        "picture": "Picture",
        "no picture": "No picture: ",
        "use": "When to use it",
        "cost": "Cost",
        "reach": "Reach",
        "exports": "Where an extended model runs",
        "not measured": "Not measured.",
        "not run": "Not run.",
        "stop": ".",
        "comma": ", ",
        "also": "`milepost methods` also finds it as ",
        "speed": "Rows of [How fast](../project/speed.md), which says how they were measured.",
        "results": "Rows of [Results](../project/results.md), which says how models were trained and judged.",
        "exported": "A row of [README](../project/overview.md).",
        "reference says": (
            "A page for every public name, made of its docstring when the site is built: formula, picture, cost, reach "
            "and where it runs. `milepost methods NAME` prints the same in a terminal."
        ),
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
        "facts": "要点",
        "picture": "图",
        "no picture": "没有图：",
        "use": "何时用",
        "cost": "代价",
        "reach": "能到多长",
        "exports": "扩展后的模型能在哪里运行",
        "not measured": "没有测过。",
        "not run": "没有运行过。",
        "stop": "。",
        "comma": "、",
        "also": "`milepost methods` 也认得：",
        "speed": "摘自[速度测量](../project/speed.md)，测法见该页（英文）。",
        "results": "摘自[训练与外推结果](../project/results.md)，训练与评测方法见该页（英文）。",
        "exported": "摘自 [README](../project/overview.md)（英文）。",
        "reference says": (
            "每个公开的名字一页，由源码里的文档字符串生成：公式、图、代价、能到多长、能在哪里运行。终端里用 "
            "`milepost methods 名字 --lang zh` 也能看到。"
        ),
    },
}
