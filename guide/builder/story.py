"""The story that ends a chapter: a page of the explorer in one file."""

from __future__ import annotations

from guide.builder import store


def story(link: str, language: str) -> str:
    """Return the page of a link of `milepost explore`; a name alone is that story: turn, story=clocks&factor=8."""
    whole = link if "=" in link else f"story={link}"
    return store.made("story", lambda: _exported(f"#{whole}", language), whole, language)


def _exported(link: str, language: str) -> str:
    from milepost.explore.server.export import export, of_link
    from milepost.explore.server.told import stories

    named, given, guessed = of_link(link, stories())
    return export(named, given, language, guessed=guessed).html
