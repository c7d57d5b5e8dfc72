"""Checks a site as files: every link leads somewhere, and no page loads anything from elsewhere."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGEST = 1_000_000
BY_SCRIPTS = ("search.json", "assets/javascripts/workers/*.js", "*.woff2")
"""What every page of a language loads that no tag of it names."""
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


@dataclass
class Seen(HTMLParser):
    """The links of a page, what it loads, and the places in it that a link can name."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    lazy: set[str] = field(default_factory=set)
    """What it loads when a reader comes to it."""
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        # rel=canonical and its kin name a page and load nothing.
        loads = tag != "link" or any(each in given.get("rel", "") for each in ("stylesheet", "icon", "preload"))
        if tag in LOADED and LOADED[tag] in given and loads:
            self.loads.append(given[LOADED[tag]])
            self.lazy |= {given[LOADED[tag]]} if given.get("loading") == "lazy" else set()


def seen(page: str) -> Seen:
    """Read a page."""
    made = Seen()
    made.feed(page)
    return made


def faults(site: Path) -> list[str]:
    """Return links to nowhere, what pages load from elsewhere, and pages of a megabyte, in words."""
    pages = {path: seen(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        # A page for addresses that are not there can stand anywhere, so its links are absolute.
        if path.name == "404.html" or path.parent.name == "stories":
            continue
        name = path.relative_to(site).as_posix()
        for each in page.loads:
            if urlsplit(each).scheme not in ("", "data") or each.startswith("//"):
                found.append(f"{name}: loads {each}")
        for each in page.links + page.loads:
            fault = _fault(each, path, pages, site)
            found += [f"{name}: {each}: {fault}"] if fault else []
        size = _size(path, page, site)
        if size >= LARGEST:
            found.append(f"{name}: {size:,} bytes with all that it loads; at most {LARGEST:,}")
    return found


def _size(path: Path, page: Seen, site: Path) -> int:
    """Return the bytes of a page with all that it loads at first, what scripts and styles load included."""
    folder = site / path.relative_to(site).parts[0]
    loaded = {path, *(each for pattern in BY_SCRIPTS for each in folder.glob(pattern))}
    loaded |= {
        Path(posixpath.normpath(path.parent / unquote(urlsplit(each).path)))
        for each in page.loads
        if each not in page.lazy
    }
    return sum(each.stat().st_size for each in loaded if each.is_file())


def _fault(link: str, page: Path, pages: dict[Path, Seen], site: Path) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    to = page if not parts.path else site / posixpath.normpath(page.parent.relative_to(site) / unquote(parts.path))
    to = to / "index.html" if to.is_dir() else to
    if not to.exists():
        return "there is no such file"
    fragment = unquote(parts.fragment)
    if fragment and to in pages and fragment not in pages[to].places:
        return f"there is no #{fragment} on that page"
    return ""
