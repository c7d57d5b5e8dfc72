"""Kernels compiled for GPUs that need not be there: what they take fits into registers and shared memory.

Compiling takes seconds a kernel, so a few stand for all; MILEPOST_COMPILE=all compiles every configuration for compute
capabilities 9.0 and 10.0, which the backend asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
SHARED = {90: 227 * 1024, 100: 227 * 1024}
"""Bytes that a program may have."""
FACETS = ("by row", "by key", "by both", *(f"by both, {how}" for how in ("causal", "encoder", "squares", "documents")))
ASKED: list[tuple[int, int, str, tuple[str, ...]]] = [(90, 64, "by row", ("forward",))]
if os.environ.get("MILEPOST_COMPILE") == "all":
    ASKED = [(sm, d, facet, ("forward", "keys", "rows")) for sm in SHARED for d in (64, 128) for facet in FACETS]


@pytest.mark.parametrize(("capability", "width", "facet", "kernels"), ASKED, ids=str)
def test_vectors_by_distance_fit(capability: int, width: int, facet: str, kernels: tuple[str, ...]):
    wanted = ["--capability", capability, "--width", width, "--facet", facet, "--kernel", *kernels]
    # The interpreter that tests run would be no compiler.
    around = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    around["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    command = [sys.executable, "-m", "tests.backends.triton.compiling", *map(str, wanted)]
    said = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["kernel"] for line in lines] == list(kernels)
    for line in lines:
        # Where documents have to be read besides, wide heads do not fit: a few registers are written to memory.
        assert line["stack"] <= (256 if "documents" in facet else 0), line
        assert line["shared"] <= SHARED[capability], line
        assert line["across"] == 0, line
