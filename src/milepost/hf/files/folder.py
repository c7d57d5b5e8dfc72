"""Folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def demand_writable(out: Path, called: str = "--out") -> None:
    """Refuse a folder that cannot be written, before minutes are spent on what would go there.

    called: what errors call it.
    """
    if out.is_file():
        raise ValueError(f"{called} {out}: this is a file; name a folder")
    above = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(
            f"{called} {out}: this folder cannot be made, since {above} cannot be written to; name another"
        )


def demand_new(out: Path, called: str = "--out") -> None:
    """Refuse a folder that cannot be written, or has something in it."""
    demand_writable(out, called)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{called} {out}: this folder is not empty; name another")


@contextmanager
def written_whole(out: Path, called: str = "--out") -> Generator[Path]:
    """Give an empty folder to write into, which gets its name when all is there; on an error it is removed.

    A process that is killed leaves a folder named .NAME.part-…, never a folder of that name with a part of the files.
    """
    demand_new(out, called)
    here = out.absolute()
    part = here.with_name(f".{here.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        yield part
        # An empty folder of the name gives way.
        part.rename(here)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
