# pyright: basic
"""Launches that leave out Triton's Python: what its compiled launcher is given is what Triton itself would give it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.backends.triton import flash, straight
from milepost.numerics.tape import Tape

pytestmark = pytest.mark.skipif(not straight.KNOWN, reason="another Triton, which launches in its own way")
GRID, STREAM = (3, 2, 1), 77
SIGNATURE = {0: "tensordesc<fp16[64, 16]>", 1: "*fp32", 2: "i32", 3: "tensordesc<fp16[64, 16]>", 4: "constexpr"}
TOLD = [
    {"swizzle": n, "elem_size": 2, "elem_type": 6, "block_size": [1, 1, 64, 16], "fp4_padded": False} for n in (2, 3)
]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a compiled launcher is given, on a device that describes tiles in words."""
    utils = SimpleNamespace(fill_tma_descriptor=lambda *said: ("tiles", *said))
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils))
    monkeypatch.setattr(straight.torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    return []


def compiled(heard: list[tuple[Any, ...]], tiles: bool = True, scratch: int = 0) -> Any:
    """A kernel as Triton has compiled it, but for the function that is written in C."""
    from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
    from triton.compiler.compiler import CompiledKernel

    launcher = CudaLauncher.__new__(CudaLauncher)

    class Written:
        """No function of Python's."""

        def __call__(self, *args: Any) -> None:
            heard.append(args)

    written, signature = Written(), SIGNATURE if tiles else {0: "*fp16", 1: "i32"}
    vars(launcher).update(
        launch=wrap_handle_tensordesc(written, signature, TOLD if tiles else None), num_ctas=1,
        global_scratch_size=scratch, global_scratch_align=1, profile_scratch_size=0, profile_scratch_align=1,
        launch_cooperative_grid=False, launch_pdl=True,
    )  # fmt: skip
    kernel = CompiledKernel.__new__(CompiledKernel)
    vars(kernel).update(
        _run=launcher, module=1, function=4711, packed_metadata=(4, 1, 256), name="kernel", src=None, metadata=None
    )
    return kernel


def played(kernel: Any, args: list[Any], others: list[Any]) -> None:
    """Launch as a tape does that was written with args, on others."""
    again = straight.Again(kernel, ("rest",), GRID, 0)
    read = again.read(args)
    where = {id(each.base if isinstance(each, TensorDescriptor) else each): n for n, each in enumerate(args)}
    tensors = [each.base if isinstance(each, TensorDescriptor) else each for each in others]
    again(*(each[1](tensors[where[id(each[0])]]) if isinstance(each, tuple) else each for each in read))


def tensors() -> list[Any]:
    # Three axes, of which the last but one is padded out.
    x, y = torch.zeros(2, 5, 24, dtype=torch.float16)[..., :16], torch.zeros(2, 7, 16, dtype=torch.float16)
    described = [
        TensorDescriptor(each[None], [1, *each.shape], [256, *each.stride()], [1, 1, 64, 16], "zero") for each in (x, y)
    ]
    return [described[0], torch.zeros(4), 12, described[1]]


def by_address(args: tuple[Any, ...]) -> list[Any]:
    return [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in args]


def test_tiles_are_described_as_triton_describes_them(heard: list[tuple[Any, ...]]):
    first, second = tensors(), tensors()
    kernel = compiled(heard)
    assert straight.entry_of(kernel) is not None
    played(kernel, first, second)
    kernel[GRID](*second, "rest", stream=STREAM)
    ours, theirs = map(by_address, heard)
    # They differ in who listens: Triton hands on its empty lists of listeners.
    assert ours[:10] == theirs[:10]
    assert ours[10:13] == [None] * 3
    assert ours[13:] == theirs[13:]
    assert ours[13][0] == "tiles"
    assert ours[13][1] == second[0].base.data_ptr() != first[0].base.data_ptr()


def test_kernels_without_tiles(heard: list[tuple[Any, ...]]):
    x, other, kernel = torch.zeros(3), torch.ones(3), compiled(heard, tiles=False)
    played(kernel, [x, 5], [other, 5])
    kernel[GRID](other, 5, "rest", stream=STREAM)
    ours, theirs = map(by_address, heard)
    assert ours[:10] == theirs[:10]
    assert ours[13:] == theirs[13:] == [other.data_ptr(), 5, "rest"]


def test_whoever_listens_to_launches_hears_of_them(heard: list[tuple[Any, ...]]):
    def listener(said: Any) -> None: ...

    kernel, hook = compiled(heard, tiles=False), triton.knobs.runtime.launch_enter_hook
    hook.add(listener)
    try:
        straight.Again(kernel, (), GRID, 0)(1, 2)
    finally:
        hook.remove(listener)
    said, enter, leave = heard[0][10:13]
    assert enter is hook
    assert leave is None
    assert said.get()["name"] == "kernel"


def test_a_kernel_with_memory_of_its_own_goes_triton_s_way(heard: list[tuple[Any, ...]]):
    assert straight.entry_of(compiled(heard, scratch=128)) is None


def test_any_other_triton_launches_in_its_own_way(heard: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(straight, "KNOWN", False)
    first, second, kernel = tensors(), tensors(), compiled(heard)
    played(kernel, first, second)
    kernel[GRID](*second, "rest", stream=STREAM)
    ours, theirs = map(by_address, heard)
    # What is said of a launch is made for each.
    del ours[10], theirs[10]
    assert ours == theirs


def test_a_launcher_that_somebody_wrapped_is_left_alone(heard: list[tuple[Any, ...]]):
    kernel = compiled(heard, tiles=False)
    kernel.run.launch = lambda *args: heard.append(args)
    assert straight.entry_of(kernel) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="nothing is compiled without a GPU")
def test_kernels_are_launched_straight():
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda").bfloat16() for _ in range(3))
    with Tape(q, k, v) as tape:
        out, _ = flash.flash(q, k, v, ahead=0)
    launched = [step.run for step in tape.steps if isinstance(step.run, straight.Again)]
    assert launched
    assert all(each.entry is not None for each in launched)
    other = torch.randn_like(q)
    (again,) = tape.finished([out])(other, k, v)
    torch.testing.assert_close(again, flash.flash(other, k, v, ahead=0)[0], rtol=0, atol=0)
