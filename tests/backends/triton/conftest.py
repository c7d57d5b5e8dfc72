"""The kernels run on a GPU where there is one, otherwise in Triton's interpreter, on the CPU in float32."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
import torch

from milepost.backends.has_triton import no_triton
from milepost.backends.triton import backend
from tests.backends.triton.interpreter import hasten

if not torch.cuda.is_available() and "triton" not in sys.modules:
    # Read when Triton is imported, so before anything here does.
    os.environ["TRITON_INTERPRET"] = "1"
    if no_triton() is None:
        hasten()
# The tests of other rooms know nothing of it, also in a process that was started with it.
backend.INTERPRETED = False


@pytest.fixture(autouse=True)
def sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compared by the log-sum-exps of rows that may not be whole, which `attend` refuses."""
    monkeypatch.setattr("milepost.call.call.Call.is_whole", True)


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch):
    """In the interpreter a large tile costs no more than a small one, and there are fewer of them."""
    if torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
        from milepost.memory.table import MEMORY

        # What another test set, and then called.
        MEMORY.forget()
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        yield
        return
    from milepost.backends.triton.runtime import configs

    monkeypatch.setattr(backend, "INTERPRETED", True)
    monkeypatch.setattr(backend, "_devices", {})
    with configs.override(**dict.fromkeys(configs.KERNELS, configs.Config(64, 64, 4, 1, False))):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, saying so, where the kernels cannot run at all."""
    ours = any("tests/backends/triton" in item.path.as_posix() for item in items)
    installed = importlib.util.find_spec("triton") is not None
    if ours and installed and not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        # Skipped, nobody would miss them.
        raise pytest.UsageError(
            "there is no GPU, and Triton was imported before its interpreter could be asked for: run "
            "TRITON_INTERPRET=1 pytest, or see which test imports it as it is collected"
        )
    why = no_triton()
    for item in items:
        if "tests/backends/triton" in item.path.as_posix():
            # Inside the interpreter NumPy speaks of exp2(inf − inf) in rows that a mask drops.
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.slow)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))
