"""Keep the store of a demo for the tests: `python -m tests.lab.record_demo out/demo`."""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Copy the store, leave out what no claim needs, and pack it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lab.sqlite"
        with sqlite3.connect(Path(sys.argv[1]) / "lab.sqlite") as store, sqlite3.connect(path) as copy:
            store.backup(copy)
        with sqlite3.connect(path) as copy:
            # Losses step by step are most of it.
            copy.execute("DELETE FROM losses WHERE step % 25")
            copy.commit()
            copy.execute("VACUUM")
        target = Path(__file__).parent / "demo.sqlite.gz"
        target.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
