"""The kernels as a GPU's compiler sees them, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.bench.chips import SHARED, Compiled, read_resources


@pytest.mark.slow
def test_kernels_compile_and_none_spills(tmp_path: Path):
    """A few configurations; `python -m milepost.bench.chips` has all of them, for three chips."""
    around = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "milepost.bench.chips", "--quick"],
        env=around | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = {line.split()[-6] for line in done.stdout.splitlines() if "registers" in line}
    assert kernels >= {"forward", "backward_keys", "backward_rows", "walk", "outline", "cut", "turn"}


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Compiled("c", "k", 90, 128, 0, 100), ""),
        (Compiled("c", "k", 90, 128, 8, 100), "8 bytes of registers spill"),
        (Compiled("c", "k", 80, 128, 8, 100), ""),
        (Compiled("c", "k", 80, shared=SHARED[80] + 1), "166913 bytes of shared memory, and the chip has 166912"),
        (Compiled("c", "k", 100, failed="CompilationError"), "CompilationError"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_said(found: Compiled, wrong: str):
    assert found.wrong == wrong


def test_a_stack_and_local_memory_are_registers_that_spilled():
    said = " Function forward:\n  REG:178 STACK:16 SHARED:1024 LOCAL:8 CONSTANT[0]:1328 TEXTURE:0\n"
    assert read_resources(said) == (178, 24)
