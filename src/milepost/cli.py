"""The command line: a hub. Each command lives in a module of its own room, and loads what it needs when it is called.

To add one, write a function with typer's annotations in such a module and name it in `app`.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from milepost import __version__
from milepost.refusal import need

if TYPE_CHECKING:
    import typer


NEEDS = {
    "compare": "lab",
    "report": "lab",
    "diff": "lab",
    "export": "hf",
    "plan": "hf",
    "show": "hf",
    "check": "hf",
    "extend": "hf",
    "look": "hf",
    "eval": "eval",
    "tune": "tune",
    "explore": "explore",
}
"""Commands that need more than the command line itself, and the extra that has it."""


def main() -> None:
    """Run the command line."""
    # Who asks for the lab is not sent for two extras, one after the other.
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    extra = NEEDS.get(asked, "cli")
    try:
        need(asked if asked in NEEDS else "the command line", extra)
    except ImportError as error:
        raise SystemExit(f"milepost: {error}") from None
    for stream in (sys.stdout, sys.stderr):
        # Formulas are full of θ and Σ; a pipe that cannot take them gets escapes, not a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()(prog_name="milepost")


def app() -> typer.Typer:
    """Return the hub with every command in it."""
    import typer

    from milepost.bench.command import bench
    from milepost.catalogue.command import methods
    from milepost.explore.command import look
    from milepost.explore.server.command import explore
    from milepost.hf.command import check, export, extend, plan, show
    from milepost.hf.evaluation.command import evaluate
    from milepost.hf.tuning.command import tune
    from milepost.lab.command.commands import diff, report
    from milepost.lab.command.compare import Compare, compare
    from milepost.lab.command.settings import table

    hub = typer.Typer(
        help="How Transformers know where a token stands, and how far past their training length they can go.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": 120},
    )
    version = typer.Option(False, "--version", help="Show the version and exit.", callback=_version, is_eager=True)

    @hub.callback()
    def options(version: bool = version) -> None: ...

    hub.command()(methods)
    hub.command(cls=Compare, epilog=table())(compare)
    for command in (report, diff, export, plan, show, check, extend, tune, look, explore, bench):
        hub.command()(command)
    # Whatever it does not know is for lm-eval.
    hub.command("eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(evaluate)
    return hub


def _version(asked: bool) -> None:
    if asked:
        print(f"milepost {__version__}")
        raise SystemExit(0)


if __name__ == "__main__":
    main()
