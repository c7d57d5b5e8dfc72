"""The command line: a hub. Each command lives in a module of its own room, and loads what it needs when it is called.

To add one, write a function with typer's annotations in such a module and name it in `app`.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"milepost: the command line needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed: pip install 'milepost[cli]'"
        )
    for stream in (sys.stdout, sys.stderr):
        # Formulas are full of θ and Σ; a pipe that cannot take them gets escapes, not a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()(prog_name="milepost")


def app() -> typer.Typer:
    """The hub with every command in it."""
    import typer

    from milepost.catalogue.command import methods
    from milepost.lab.compare import compare

    hub = typer.Typer(
        help="How Transformers know where a token stands, and how far past their training length they can go.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    # With a callback, one command is still called by its name.
    hub.callback()(_hub)
    hub.command()(methods)
    hub.command()(compare)
    return hub


def _hub() -> None: ...


if __name__ == "__main__":
    main()
