"""Run every benchmark, or those named: `python -m milepost.bench rope chunked`.

The groups of `milepost bench` go by their names here, too, where nothing but torch is installed.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial

import torch

from milepost.bench import chunked, compiled, decoding, rope, running, training
from milepost.bench.contest import Contest
from milepost.bench.groups import GROUPS
from milepost.bench.settings import Settings
from milepost.bench.shown import printed


def _attention() -> None:
    if torch.cuda.is_available():
        running.run(["attention"])
    else:
        print("\nattention as attend chooses: needs a GPU, skipped")


def _on_cpu(contests: Callable[[Settings], list[Contest]]) -> None:
    settings = Settings(device="cpu", dtype=torch.float32)
    for contest in contests(settings):
        print(printed(contest.run(settings.device, settings.rounds)))


def _decoding() -> None:
    if torch.cuda.is_available():
        running.run(["decoding"])
    else:
        _on_cpu(decoding.on_cpu)


def _chunked() -> None:
    _on_cpu(chunked.on_cpu)
    chunked.memory()


BENCHES: dict[str, Callable[[], None]] = {
    "attention": _attention,
    "rope": partial(_on_cpu, rope.on_cpu),
    "chunked": _chunked,
    "compiled": compiled.main,
    "decoding": _decoding,
    "training": training.main,
    "loop": training.loop,
}


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, all if none is given."""
    for name in names:
        if name not in BENCHES and name not in GROUPS:
            known = ", ".join(dict.fromkeys((*BENCHES, *GROUPS)))
            print(f"no benchmark is called {name!r}; there are {known}", file=sys.stderr)
            return 2
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    for name in names or BENCHES:
        BENCHES[name]() if name in BENCHES else running.run([name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
