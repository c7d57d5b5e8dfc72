"""What a sweep writes: its report and the files that were asked for, over nothing that is not its own."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from milepost.lab.cells.store import Store
    from milepost.lab.sweep.sweep import Sweep

ToJson = Annotated[Path | None, typer.Option("--json", help="A file to write all results to, as JSON.")]
ToCsv = Annotated[Path | None, typer.Option("--csv", help="A file to write every score to, as CSV.")]
ToMarkdown = Annotated[
    Path | None, typer.Option("--markdown", help="A file to write the headlines and the tables to, as Markdown.")
]
ERRORS = (ValueError, TypeError, OSError, ImportError)
"""What a command refuses in one sentence."""
OWN = re.compile(r"lab\.sqlite.*|report\.html|\.report\.html\.\d+|\.locks|exported|[0-9a-f]{16}\.safetensors.*")
"""Files that a sweep writes into its folder; a damaged store may have been moved away under another ending."""


@dataclass(frozen=True)
class Files:
    """What is written besides the report, where it was asked for."""

    json: Path | None = None
    csv: Path | None = None
    markdown: Path | None = None
    board: Path | None = None
    wandb: Path | None = None

    def check(self) -> None:
        """Refuse what could not be written, before everything is trained."""
        for option, path in (("--json", self.json), ("--csv", self.csv), ("--markdown", self.markdown)):
            if path is not None and path.is_dir():
                raise ValueError(f"{option} {path}: that is a folder; name a file")
            try:
                if path is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(
                    f"{option} {path}: its folder cannot be made ({error.strerror}); name another"
                ) from None


def check_out(out: Path, asked: list[Path]) -> None:
    """Refuse a folder whose files are not a sweep's, where some would be overwritten or mixed with others.

    asked: files that the same command writes, and that may be in the folder.
    """
    if not out.is_dir():
        return
    store, report = out / "lab.sqlite", out / "report.html"
    if store.is_file() and (tables := _tables(store)) and "cells" not in tables:
        raise ValueError(
            f"--out {out}: its lab.sqlite is another program's, with {', '.join(tables)}; name another folder"
        )
    if report.is_file() and "milepost" not in report.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"--out {out}: its report.html is not milepost's and would be overwritten; name another")
    if not any(OWN.fullmatch(each.name) for each in out.iterdir()):
        mine = {each.resolve() for each in asked}
        foreign = [
            each.name for each in sorted(out.iterdir())
            if not any(each.resolve() in (own, *own.parents) for own in mine)
        ]  # fmt: skip
        if foreign:
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise ValueError(
                f"--out {out}: the folder has files and no store of milepost: {', '.join(foreign[:3])}{more}; "
                f"name a new or an empty folder"
            )


def _tables(store: Path) -> list[str]:
    """Return the names of a database's tables; none where it is damaged, which the store itself reports."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error:
        return []


def note(message: str) -> None:
    """Print a line to stderr: the table alone goes to stdout, which others may read."""
    print(f"milepost: compare: {message}", file=sys.stderr)


def write(store: Store, sweep: Sweep, out: Path, files: Files, command: str, whole: bool = True) -> None:
    """Write the report of what is known so far, and print its table unless the sweep was stopped."""
    from milepost.lab.command import shown
    from milepost.lab.report import gather, to_csv, to_json, to_markdown
    from milepost.lab.report import write as write_page

    findings = gather(store, sweep, command=command)
    page = out / "report.html"
    if not whole and not findings.rows and not any(each.bits for each in findings.tried):
        return
    write_page(findings, page)
    for path, made in ((files.json, to_json), (files.csv, to_csv), (files.markdown, to_markdown)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made(findings), encoding="utf-8")
    if not whole:
        return note(f"the report of what was found so far: {page}")
    if files.board is not None or files.wandb is not None:
        from milepost.lab.command.board import log, log_wandb

        if files.board is not None:
            log(store, sweep, files.board)
        if files.wandb is not None:
            log_wandb(store, sweep, files.wandb)
    shown.console().print(shown.table(findings))
    typer.echo(f"report: {page}")
