"""The page as HTML, and the files that it is made of; the look is that of the reports."""

from __future__ import annotations

from importlib.resources import files

from milepost.lab.report.layout import beside, drawing_style

HERE = "milepost.explore.server"
STYLES = ("vendor/uPlot.min.css", "house.css", "explore.css")
SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "core/words.js",
    "core/page.js",
    "core/call.js",
    "core/link.js",
    "core/controls.js",
    "figures/figure.js",
    "figures/lines.js",
    "figures/map.js",
    "figures/dials.js",
    "figures/arrows.js",
    "figures/digits.js",
    "figures/table.js",
    "screens/guess.js",
    "screens/story.js",
)
"""What every page runs, in this order; an exported one has no more."""
MORE_SCRIPTS = ("screens/form.js", "screens/equation.js", "screens/composer.js", "screens/start.js")
"""What needs the server."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LANGUAGES = {"en": "en", "zh": "zh-CN"}
TITLE = {"en": "milepost explore", "zh": "milepost explore：位置编码"}


def static(name: str) -> str | None:
    """Return a file of the page by its name, or None; no other file can be named."""
    if name == "house.css":
        return house_style()
    if name not in (*STYLES, *SCRIPTS, *MORE_SCRIPTS, "icon.svg"):
        return None
    return _beside(name)


def house_style() -> str:
    """Return the style of the reports: colours, light and dark, letters and headings."""
    return drawing_style() + beside("report.css")


def html(lang: str) -> str:
    """Return the page; all links in it are relative, so that it may stand behind a proxy."""
    styles = "\n".join(f'<link rel="stylesheet" href="static/{name}">' for name in STYLES)
    scripts = "\n".join(f'<script src="static/{name}" defer></script>' for name in (*SCRIPTS, *MORE_SCRIPTS))
    return frame(lang, f'<link rel="icon" href="static/icon.svg">\n{styles}\n{scripts}', "")


def frame(lang: str, head: str, body: str, title: str = "") -> str:
    """Return the frame of a page."""
    return f"""<!doctype html>
<html lang="{LANGUAGES[lang]}" data-lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title or TITLE[lang]}</title>
{head}
</head>
<body>
<div id="page"></div>
{body}</body>
</html>
"""


def _beside(name: str) -> str:
    found = files(HERE) / "static"
    for part in name.split("/"):
        found = found / part
    return found.read_text(encoding="utf-8")


__all__ = ["LANGUAGES", "MORE_SCRIPTS", "SCRIPTS", "STYLES", "TYPES", "frame", "house_style", "html", "static"]
