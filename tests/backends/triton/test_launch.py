# pyright: basic, reportMissingImports=false
"""Launches that are remembered by how their arguments look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import triton

from milepost.backends.triton.runtime import launch
from milepost.backends.triton.runtime.launch import looks_of
from milepost.call.call import CannotRun


def test_numbers_that_triton_compiles_for_look_different():
    # One, any other, multiples of sixteen, and the same of those that take eight bytes.
    alike = [(1,), (2, 3), (16, 32), (2**31 + 8, 2**32 + 8), (2**32, 2**33)]
    looks = [{looks_of(each) for each in some} for some in alike]
    assert all(len(each) == 1 for each in looks)
    assert len(set[object]().union(*looks)) == len(alike)


class _TooLarge:
    """A kernel that a GPU has no memory for."""

    __name__ = "backward_keys"
    arg_names = ("x",)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **named: Any) -> None:
            raise triton.OutOfResources(131072, 101376, "shared memory")

        return run


@pytest.mark.parametrize("public", [True, False])
def test_a_kernel_that_a_gpu_has_no_memory_for_is_refused_by_name(public: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "PUBLIC", public)
    monkeypatch.setattr(launch.torch.cuda, "current_device", lambda: 0)
    needs = "kernel backward_keys needs more shared memory than this GPU has: 131072, and the limit is 101376. Use"
    for _ in range(2):
        with pytest.raises(CannotRun, match=needs):
            launch.launch(_TooLarge(), (1,), 7)
