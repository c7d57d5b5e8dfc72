"""README and the pages of docs/ as pages of the site, as they are; links into the source become names of files."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from guide.builder.paths import ROOT

TOP = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
UNSEARCHED = (
    "results/",
    "sweeps/",
    "methods.md",
    "changelog.md",
    "design.md",
    "contributing.md",
    "speed",
    "extended.md",
    "results.md",
)
"""Long tables, and what the reference has: in the search they would be most of what every page loads."""
LINK = re.compile(r"(```.*?^```$|`(?:[^`\n]|\n(?!\n))*`)|(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)", re.S | re.M)


@cache
def places() -> dict[str, str]:
    """Return where each page of the checkout lies on the site, below project/."""
    found = dict(TOP)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        # A generator takes README.md for the index of its folder.
        found[f"docs/{name}"] = name.replace("README.md", "about.md")
    return found


def write(folder: Path) -> list[tuple[str, str]]:
    """Write every page, and the pictures and pages of docs/ that they show; return titles and files for the menu."""
    menu: list[tuple[str, str]] = []
    for source, place in places().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        to = folder / "project" / place
        to.parent.mkdir(parents=True, exist_ok=True)
        head = "---\nsearch:\n  exclude: true\n---\n" if place.startswith(UNSEARCHED) else ""
        to.write_text(head + _relinked(text, source, place, folder / "project"), encoding="utf-8")
        title = next(
            (line.removeprefix("# ").replace("`", "") for line in text.splitlines() if line.startswith("# ")), place
        )
        if "/" not in place:
            menu.append((title, f"project/{place}"))
    return menu


def _relinked(text: str, source: str, place: str, folder: Path) -> str:
    def one(found: re.Match[str]) -> str:
        code, picture, words, target = found.groups()
        if code is not None or "://" in target or target.startswith("#"):
            return found[0]
        path, _, fragment = target.partition("#")
        to = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if to in places():
            link = posixpath.relpath(places()[to], posixpath.dirname(place) or ".")
            return f"{picture}[{words}]({link}{'#' if fragment else ''}{fragment})"
        if to.startswith("docs/") and (ROOT / to).is_file() and (ROOT / to).stat().st_size < 1_000_000:
            (folder / to.removeprefix("docs/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / to, folder / to.removeprefix("docs/"))
            link = posixpath.relpath(to.removeprefix("docs/"), posixpath.dirname(place) or ".")
            return f"{picture}[{words}]({link})" + ("{ loading=lazy }" if picture else "")
        return words if words == to else f"{words} (`{to}`)"

    return LINK.sub(one, text)


def missing() -> Iterator[str]:
    """Yield files that pages link to and the checkout lacks."""
    for source in places():
        for found in LINK.finditer((ROOT / source).read_text(encoding="utf-8")):
            target = (found[4] or "").partition("#")[0]
            if target and "://" not in target:
                to = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
                if not (ROOT / to).exists():
                    yield f"{source}: {target}"
