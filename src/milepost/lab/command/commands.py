"""`milepost report` and `milepost diff`: what a store knows, without training or reading anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from milepost.lab.command import options
from milepost.refusal import need, refuse

if TYPE_CHECKING:
    from milepost.lab.statistics.findings import Findings

Folder = Annotated[Path, typer.Argument(metavar="OUT", help="The --out of a milepost compare, finished or not.")]
Other = Annotated[Path, typer.Argument(metavar="OTHER", help="The --out of another.")]


Claims = Annotated[
    bool,
    typer.Option("--claims", help="Check what the demo is there to show, each by its interval; ends with 1 if not."),
]


def report(
    out: Folder,
    json: options.ToJson = None,
    csv: options.ToCsv = None,
    markdown: options.ToMarkdown = None,
    claims: Claims = False,
) -> None:
    """Write the report of a sweep from what its store knows, finished or not, and print the table."""
    from milepost.lab.command.compare import Files, write
    from milepost.lab.exported import opened
    from milepost.lab.sweep.recorded import recorded
    from milepost.lab.sweep.search import as_chosen

    try:
        need("report", "lab")
        store = opened(out)
        try:
            sweep, command = recorded(store)
            write(store, as_chosen(sweep, store), out, Files(json, csv, markdown), command or f"milepost report {out}")
        finally:
            store.close()
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(f"report: {error}")
    if claims:
        _check(out)


def _check(out: Path) -> None:
    """Print every claim of the demo, with its figures; end with 1 where one does not hold."""
    from milepost.lab.statistics.claims import claims

    found = claims(_gathered(out))
    for each in found:
        typer.echo(f"{'holds' if each.holds else 'FAILS'}  {each.says}: {each.figures}")
    if not all(each.holds for each in found):
        raise SystemExit(1)


def diff(out: Folder, other: Other) -> None:
    """Say how two sweeps differ: what was asked, and each row that both have, paired where they read the same text."""
    from rich.console import Console

    from milepost.lab.statistics.difference import shown

    try:
        need("diff", "lab")
        found = [_gathered(each) for each in (out, other)]
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(f"diff: {error}")
    Console().print(shown(found[0], found[1], (str(out), str(other))))


def _gathered(out: Path) -> Findings:
    from milepost.lab.exported import opened
    from milepost.lab.report import gather
    from milepost.lab.sweep.recorded import recorded

    store = opened(out)
    try:
        sweep, command = recorded(store)
        return gather(store, sweep, command)
    finally:
        store.close()
