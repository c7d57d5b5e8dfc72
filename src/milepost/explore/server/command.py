"""`milepost explore`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milepost.refusal import need, refuse

PORT = 8765
NAMES = ("order", "turn", "clocks", "unseen", "stretches", "windows", "penalties", "keys", "config")
"""The stories in their order, written here so that the help loads none of them."""
LISTED = ", ".join(f"{n} {name}" for n, name in enumerate(NAMES, 1))


def explore(
    port: Annotated[int, typer.Option("--port", help="The port; 0 takes a free one.", min=0, max=65535)] = PORT,
    host: Annotated[
        str, typer.Option("--host", help="The address to answer at; others can then reach it.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", help="A name under which a proxy asks, such as that of a Jupyter hub; again for more."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A folder with weights and a tokenizer, for attention on a sentence.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write one HTML file of --story or --link, and end.")
    ] = None,
    story: Annotated[
        str | None, typer.Option("--story", help=f"The story to export, by its number or name: {LISTED}.")
    ] = None,
    link: Annotated[
        str | None, typer.Option("--link", help="A link copied from the page: a story, or schemes of the composer.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="en or zh; the page has a switch.")] = "en",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Explore positions in a page on this machine: nine questions, a composer of schemes, attention on a sentence.

    Prints a link with a token. Nothing is sent anywhere, and only this machine is answered unless --host is given.
    """
    try:
        need("explore", "explore")
        if model is not None and not Path(model).is_dir():
            raise ValueError(f"--model {model}: there is no such folder")
        from milepost.explore.server.app import Explorer
        from milepost.explore.server.page import LANGUAGES
        from milepost.explore.server.serve import bound, link_to, new_token, serve
        from milepost.explore.server.told import stories

        if lang not in LANGUAGES:
            raise ValueError(f"--lang {lang}: give {' or '.join(LANGUAGES)}")
        if export is not None:
            _write(export, f"#story={_name_of(story)}" if link is None else link, lang)
            return
        reader = None
        if model is not None:
            need("explore --model", "hf")
            from milepost.explore.sentence import Reader

            reader = Reader(model)
        made = bound(host, port)
        own = "" if host in ("0.0.0.0", "::") else host
        explorer = Explorer(new_token(), stories(), lang, tuple(allow_host or ()), own, reader)
        address = link_to(made, explorer.token)
        typer.echo(f"milepost explore: {address}\nCtrl-C ends it.")
        serve(explorer, made, lambda: browser and typer.launch(address))
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(str(error))


def _name_of(story: str | None) -> str | None:
    """Return the name of a story that was asked for by its name or its number."""
    if story is None or story in NAMES:
        return story
    if story.isascii() and story.isdigit() and 1 <= int(story) <= len(NAMES):
        return NAMES[int(story) - 1]
    raise ValueError(f"--story {story}: there is no such story; there are {LISTED}")


def _write(path: Path, link: str, lang: str) -> None:
    """Write one file."""
    from milepost.explore.server.export import export, of_link
    from milepost.explore.server.told import stories
    from milepost.lab.report.layout import write_whole

    if path.suffix != ".html":
        raise ValueError(f"--export {path}: name a page, such as page.html")
    if link == "#story=None":
        raise ValueError(f"--export {path}: say what, --story NAME of {LISTED}, or --link LINK")
    named, given, guessed = of_link(link, stories())
    made = export(named, given, lang, guessed=guessed)
    write_whole(made.html, path)
    fewer = f"; fewer places of {', '.join(made.fewer)}, so that it stays small" if made.fewer else ""
    typer.echo(f"{path}: {len(made.html.encode()):,} bytes, {made.settings:,} settings{fewer}")
