"""Builds both sites: stages Markdown, pictures, notebooks and stories, lets the generator write HTML, checks it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from guide.builder import glossary, project, reference, store
from guide.builder.chapter import Chapter, chapters, in_language, read
from guide.builder.links import faults
from guide.builder.notebook import notebook
from guide.builder.pages import page
from guide.builder.paths import LANGUAGES, ROOT, SITE, STAGE, THEME
from guide.builder.running import run
from guide.builder.story import story
from guide.builder.words import WORDS
from milepost.refusal import refuse

PROJECT = re.compile(r"\[([^\[\]]+)\]\(\.\./project/([\w/-]+)\.md(#[\w-]+)?\)")
UNSEARCHED = (
    "project/overview.html",
    "project/names.html",
    "project/sweeps",
    "project/explore/",
    "project/explore.html",
)
"""Tables, and what other pages say as well: the index of the search is loaded by every page."""
ICON = ROOT / "src" / "milepost" / "explore" / "server" / "static" / "icon.svg"


def build() -> list[str]:
    """Write the site in out/site; return what is wrong with it, such as a link to nowhere."""
    began = time.monotonic()
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    for language in LANGUAGES:
        nav = _staged(language, STAGE / language)
        _log(began, f"{language}: sources ready")
        _generated(language, nav)
        _shorten_search(SITE / language / "search.json")
        _log(began, f"{language}: pages written")
    shutil.copy(THEME / "index.html", SITE / "index.html")
    store.forget()
    found = faults(SITE)
    _log(began, f"links checked, {len(found)} wrong")
    return found


def _log(began: float, words: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {words}", flush=True)


def _staged(language: str, folder: Path) -> list[dict[str, object]]:
    """Write the sources of one language; return its menu."""
    said = WORDS[language]
    for name in ("learn", "pictures", "stories"):
        (folder / name).mkdir(parents=True)
    for each in ("guide.css", "stix-two-math.woff2", "stix-two-math.LICENSE"):
        shutil.copy(THEME / each, folder / each)
    shutil.copy(ICON, folder / "icon.svg")
    learn = [_chapter(each, language, folder) for each in chapters("en") if in_language(each, language).exists()]
    index = [f"# {said['learn']}", "", *(f"1. [{title}]({Path(file).name})" for title, file in learn), ""]
    (folder / "learn" / "index.md").write_text("\n".join(index), encoding="utf-8")
    (folder / "index.md").write_text((THEME / f"home.{language}.md").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "glossary.md").write_text(glossary.page(language, said["glossary"]), encoding="utf-8")
    nav: list[dict[str, object]] = [
        {said["home"]: "index.md"},
        {said["learn"]: ["learn/index.md", *({title: file} for title, file in learn)]},
        {said["reference"]: _reference(language, folder)},
        {said["glossary"]: "glossary.md"},
    ]
    if language == "en":
        nav.append({said["project"]: [{title: file} for title, file in project.write(folder)]})
    else:
        _send_to_english(folder)
    return nav


def _reference(language: str, folder: Path) -> list[object]:
    """Write a page for every public name; return their menu."""
    (folder / "reference").mkdir()
    for name, text, shown in reference.pages(language):
        (folder / "reference" / name).write_text(text, encoding="utf-8")
        if shown is not None:
            (folder / "pictures" / f"{name.removesuffix('.md')}.svg").write_text(shown.svg, encoding="utf-8")
    (folder / "reference" / "index.md").write_text(reference.index(language), encoding="utf-8")
    return ["reference/index.md"]


def _send_to_english(folder: Path) -> None:
    """Let links to the pages of docs/, which are in English alone, lead there."""
    for path in folder.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        sent = PROJECT.sub(r'<a href="../../en/project/\2.html\3" hreflang="en">\1</a>', text)
        if sent != text:
            path.write_text(sent, encoding="utf-8")


def _chapter(original: Chapter, language: str, folder: Path) -> tuple[str, str]:
    """Write a chapter's page, pictures, notebook and story; return its title and file."""
    chapter = original if language == "en" else read(in_language(original, language))
    text, pictures = page(chapter, run(original))
    for name, svg in pictures.items():
        (folder / "pictures" / name).write_text(svg, encoding="utf-8")
    (folder / "learn" / f"{chapter.name}.md").write_text(text, encoding="utf-8")
    (folder / "learn" / f"{chapter.name}.ipynb").write_text(notebook(chapter), encoding="utf-8")
    made = story(original.facts["story"], language)
    (folder / "stories" / f"{chapter.name}.html").write_text(made, encoding="utf-8")
    return chapter.title, f"learn/{chapter.name}.md"


def _generated(language: str, nav: list[dict[str, object]]) -> None:
    """Let the generator write one language; what it warns of is an error."""
    settings = {
        "site_name": WORDS[language]["site"],
        "docs_dir": language,
        "site_dir": f"site/{language}",
        "language": language,
    }
    config = (THEME / "zensical.toml").read_text(encoding="utf-8")
    for name, value in settings.items():
        config = config.replace(f"{{{name}}}", json.dumps(value, ensure_ascii=False))
    path = STAGE / f"zensical-{language}.toml"
    path.write_text(config.replace("{nav}", _toml(nav)), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "-f", str(path)], cwd=STAGE)
    if done.returncode:
        refuse(f"guide build: zensical refuses {language}, for what stands above; its sources are in {STAGE}")
    # The generator writes only below its own configuration.
    SITE.mkdir(parents=True, exist_ok=True)
    shutil.move(STAGE / "site" / language, SITE / language)


def _shorten_search(path: Path) -> None:
    """Leave tables out of the index of the search, and blanks between its entries."""
    index = json.loads(path.read_text(encoding="utf-8"))
    index["items"] = [each for each in index["items"] if not each["location"].startswith(UNSEARCHED)]
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(each) for each in value)}]"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)} = {_toml(inner)}" for key, inner in value.items())  # pyright: ignore
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)
