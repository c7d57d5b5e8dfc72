"""`milepost explore`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

from typing import Annotated

import typer

from milepost.refusal import need, refuse

PORT = 8765


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
    lang: Annotated[str, typer.Option("--lang", help="en or zh; the page has a switch.")] = "en",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Explore positions in a page on this machine: nine questions, a composer of schemes, attention on a sentence.

    Prints a link with a token. Nothing is sent anywhere, and only this machine is answered unless --host is given.
    """
    try:
        need("explore", "explore")
        from milepost.explore.server.app import Explorer
        from milepost.explore.server.page import LANGUAGES
        from milepost.explore.server.serve import bound, link_to, new_token, serve
        from milepost.explore.server.told import stories

        if lang not in LANGUAGES:
            raise ValueError(f"--lang {lang}: give {' or '.join(LANGUAGES)}")
        names = tuple(allow_host or ()) + ((host,) if host not in ("0.0.0.0", "::") else ())
        made = bound(host, port)
        explorer = Explorer(new_token(), stories(), lang, names)
        link = link_to(made, explorer.token)
        typer.echo(f"milepost explore: {link}\nCtrl-C ends it.")
        serve(explorer, made, lambda: browser and typer.launch(link))
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(str(error))
