"""How a report comes onto the disk."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(text: str, path: Path) -> None:
    """Write a file that is there wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
