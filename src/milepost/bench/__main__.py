"""Run every benchmark, or those named: `python -m milepost.bench rope chunked`."""

from __future__ import annotations

import os
import platform
import sys

import torch

from milepost.bench import attention, chunked, compiled, decoding, rope, training

BENCHES = {
    "attention": attention.main,
    "rope": rope.main,
    "chunked": chunked.main,
    "compiled": compiled.main,
    "decoding": decoding.main,
    "training": training.main,
    "loop": training.loop,
}


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, all if none is given."""
    for name in names:
        if name not in BENCHES:
            print(f"no benchmark is called {name!r}; there are {', '.join(BENCHES)}", file=sys.stderr)
            return 2
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    for name in names or BENCHES:
        BENCHES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
