"""How the default text was gathered: `python -m tests.lab.gather_text CHECKOUT` writes it anew, from a checkout.

It is milepost's own: sources, documents and examples as they were one day, so that it is the same text on every
machine and under every Python. It is kept as it is; a new one would make every store of the default text an old one.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from milepost.lab.text import corpus
from milepost.lab.text.corpus import KEPT, parts_of

WHERE = ("src/milepost", "docs", "examples", "README.md", "CONTRIBUTING.md")
LINE = 20
"""A line with so many letters or more stands once in the whole text, digits and blanks not counted."""
STRETCH = 32
"""No stretch of so many bytes of what is trained on stands in what is judged on, or in what settings are chosen by."""
LEAST = 600
"""Bytes of the shortest file that is kept."""


def gathered(root: Path) -> bytes:
    """The files of a checkout with zeros between them, in an order that says nothing, without lines that come twice."""
    texts = [text for text in _without_copies(map(_read, _files(root))) if len(text) >= LEAST]
    texts.sort(key=lambda text: hashlib.sha256(text[:200]).digest())
    train, judged, chosen = (stretches(b"\0".join(part)) for part in parts_of(enumerate(texts)))
    for n, text in enumerate(texts):
        if n % KEPT < 2:
            texts[n] = _unshared(text, train | (chosen if n % KEPT == 0 else judged))
    return b"\0".join(texts)


def stretches(text: bytes) -> set[bytes]:
    """Return every stretch of a text."""
    return {text[n : n + STRETCH] for n in range(len(text) - STRETCH + 1)}


def _files(root: Path) -> Iterator[Path]:
    for place in (root / each for each in WHERE):
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (path for path in found if path.suffix in (".py", ".md") and path.is_file())


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _without_copies(texts: Iterator[str]) -> Iterator[bytes]:
    """Texts whose longer lines are none that came before, in any of them, whatever their digits and blanks."""
    seen: set[str] = set()
    for text in texts:
        kept: list[str] = []
        for line in map(str.rstrip, text.split("\n")):
            key = re.sub(r"[\s\d]+", "", line)
            if len(key) >= LINE and key in seen:
                continue
            if line or (kept and kept[-1]):
                kept.append(line)
            seen.add(key)
        yield ("\n".join(kept).strip("\n") + "\n").encode()


def _unshared(text: bytes, others: set[bytes]) -> bytes:
    """Return a text without the lines in which a stretch ends that stands in other parts."""
    n = 0
    while n <= len(text) - STRETCH:
        if text[n : n + STRETCH] not in others:
            n += 1
            continue
        last = n + STRETCH - 1
        begin, end = text.rfind(b"\n", 0, last) + 1, text.find(b"\n", last) + 1
        text = text[:begin] + (text[end:] if end else b"")
        # What now follows makes new stretches with what stood before the line.
        n = max(0, begin - STRETCH)
    return text


def main() -> None:
    """Write the text to where the lab reads it."""
    text = gathered(Path(sys.argv[1]))
    (Path(corpus.__file__).parent / "own.txt.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{len(text):,} bytes")


if __name__ == "__main__":
    main()
