"""`milepost bench` where typer is not installed: `python -m milepost.bench attention`."""

from __future__ import annotations

import argparse
from pathlib import Path

from milepost.bench.run import run
from milepost.bench.suites.groups import GROUPS

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m milepost.bench", description=__doc__)
    parser.add_argument("groups", nargs="*", help=", ".join(GROUPS))
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--from", dest="stored", type=Path, action="append", default=[])
    parser.add_argument("--warm", type=int)
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float)
    run(**vars(parser.parse_args()))
