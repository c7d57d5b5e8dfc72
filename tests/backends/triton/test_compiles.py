"""The kernels as a GPU's compiler sees them, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milepost.backends.triton.runtime import configs
from tests.sweeps.chips import SHARED, Compiled, read_resources


@pytest.mark.slow
def test_kernels_compile_and_none_spills(tmp_path: Path):
    """A few configurations; `make sweep-chips` compiles all of them, for four chips."""
    around = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.sweeps.chips", "--quick"],
        env=around | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = {line.split()[-8] for line in done.stdout.splitlines() if "registers" in line}
    assert kernels >= {"forward", "backward_keys", "backward_rows", "walk", "outline", "cut", "turn"}


def test_a_gpu_with_little_shared_memory_gets_a_smaller_tile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(configs, "_OVERRIDES", {})

    def capability(device: torch.device) -> tuple[int, int]:
        return (12, 0) if device.index else (9, 0)

    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    chosen = [
        configs.choose("keys", 256, 2, False, few_keys=True, little=configs.has_little(torch.device("cuda", n)))
        for n in (0, 1)
    ]
    assert [str(each) for each in chosen] == ["32×64 w8 s2 tma", "16×64 w8 s2 tma"]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Compiled("c", "k", 90, 128, 0, 100), ""),
        (Compiled("c", "k", 90, 128, 8, 100), "8 bytes of registers spill"),
        (Compiled("c", "k", 80, 128, 8, 100), ""),
        (Compiled("c", "k", 90, 128, 8, 100, triton="3.9.0"), ""),
        (Compiled("c", "k", 80, shared=SHARED[80] + 1), "166913 bytes of shared memory, and the chip has 166912"),
        (Compiled("c", "k", 100, failed="CompilationError"), "CompilationError"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_said(found: Compiled, wrong: str):
    assert found.wrong == wrong


def test_a_stack_and_local_memory_are_registers_that_spilled():
    said = " Function forward:\n  REG:178 STACK:16 SHARED:1024 LOCAL:8 CONSTANT[0]:1328 TEXTURE:0\n"
    assert read_resources(said) == (178, 24)
