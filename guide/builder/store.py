"""What was computed for a source, kept under the hash of that source and of the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import milepost
from guide.builder.paths import CACHE
from milepost.lab.report.layout import write_whole

SOURCE = Path(milepost.__file__).parent
USED: set[str] = set()
"""The names that this process asked for."""


@cache
def package() -> str:
    """Return the version of milepost with a hash of every file of it: a change of any may change what is shown."""
    import torch

    made = hashlib.sha256(f"{milepost.__version__} {torch.__version__}".encode())
    for path in sorted(each for each in SOURCE.rglob("*") if each.is_file() and "__pycache__" not in each.parts):
        made.update(path.relative_to(SOURCE).as_posix().encode())
        made.update(path.read_bytes())
    return made.hexdigest()


def key_of(kind: str, *sources: str) -> str:
    """Return the name under which what is made of the sources is kept."""
    return f"{kind}-{hashlib.sha256(json.dumps([package(), *sources]).encode()).hexdigest()[:24]}"


def kept(key: str) -> Any:
    """Return what is kept under a name, or None."""
    USED.add(key)
    path = CACHE / f"{key}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def keep(key: str, value: Any) -> Any:
    """Keep a value that JSON can hold, whole or not at all, and return it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    write_whole(json.dumps(value, ensure_ascii=False), CACHE / f"{key}.json")
    return value


def made(kind: str, make: Callable[[], Any], *sources: str) -> Any:
    """Return what is kept for the sources, or make and keep it."""
    key = key_of(kind, *sources)
    found = kept(key)
    return found if found is not None else keep(key, make())


def forget() -> None:
    """Remove what this process did not ask for: earlier versions of chapters and of the package."""
    for path in CACHE.glob("*.json"):
        if path.stem not in USED:
            path.unlink()
