"""`milepost report` and `milepost diff`: what a store knows, without training or reading anything."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from milepost.lab.cells.store import opened
from milepost.lab.command.files import ERRORS, Files, ToCsv, ToJson, ToMarkdown, check_out, write
from milepost.refusal import need, refuse

if TYPE_CHECKING:
    from milepost.lab.statistics.findings import Findings

Folder = Annotated[Path, typer.Argument(metavar="OUT", help="The --out of a milepost compare, finished or not.")]


def report(
    out: Folder,
    json: ToJson = None,
    csv: ToCsv = None,
    markdown: ToMarkdown = None,
    claims: Annotated[
        bool, typer.Option("--claims", help="Check what the demo is there to show, by intervals; ends with 1 if not.")
    ] = False,
) -> None:
    """Write the report of a sweep from what its store knows, finished or not, and print the table."""
    try:
        need("report", "lab")
        with closing(opened(out)) as store:
            check_out(out, [])
            from milepost.lab.sweep.recorded import recorded
            from milepost.lab.sweep.search import as_chosen

            sweep, command = recorded(store)
            write(store, as_chosen(sweep, store), out, Files(json, csv, markdown), command or f"milepost report {out}")
    except ERRORS as error:
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


def diff(out: Folder, other: Annotated[Path, typer.Argument(metavar="OTHER", help="The --out of another.")]) -> None:
    """Print how two sweeps differ: what was asked, and each row that both have, paired where the text is the same."""
    try:
        need("diff", "lab")
        found = [_gathered(each) for each in (out, other)]
    except ERRORS as error:
        refuse(f"diff: {error}")
    from milepost.lab.command import shown

    shown.console().print(shown.differences(found[0], found[1], (str(out), str(other))))


def _gathered(out: Path) -> Findings:
    with closing(opened(out)) as store:
        from milepost.lab.report import gather
        from milepost.lab.sweep.recorded import recorded

        return gather(store, *recorded(store))
