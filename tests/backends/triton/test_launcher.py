# pyright: basic
"""Launching a compiled kernel again passes on what Triton's own launch does, whatever of Triton or torch is missing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton import knobs  # pyright: ignore
from triton.compiler import compiler
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.backends.triton.attention import flash
from milepost.backends.triton.runtime import launch, launcher
from milepost.memory.internals import stream_of
from milepost.memory.tape import Tape

GRID, STREAM = (3, 2, 1), 77


class CompiledKernel(compiler.CompiledKernel):
    """A compiled kernel that was never loaded, so that nothing is unloaded with it."""

    def __del__(self) -> None: ...


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch):
    """A stream, on machines without a GPU; and nothing remembered of how Triton was found to be."""
    monkeypatch.setattr(launcher, "stream_of", lambda device: STREAM)
    for each in (launcher.runs_as_known, launcher.looks_suffice):
        each.cache_clear()
    yield
    for each in (launcher.runs_as_known, launcher.looks_suffice):
        each.cache_clear()


def compiled(heard: list[tuple[Any, ...]], kind: Any = CompiledKernel) -> Any:
    """A kernel as Triton has compiled it; what its launcher, which is written in C, would be given is noted."""
    kernel = kind.__new__(kind)
    vars(kernel).update(
        _run=lambda *args: heard.append(args), module=1, function=4711, packed_metadata=(4, 1, 256), name="kernel",
        src=None, metadata=None,
    )  # fmt: skip
    return kernel


def replayed(kernel: Any, args: list[Any], others: list[Any]) -> None:
    """Launch as a tape does that was recorded with args, on others."""
    again = launcher.Again(kernel, ("rest",), GRID, 0)
    tensors = [each.base if isinstance(each, TensorDescriptor) else each for each in others]
    read = zip(again.read(args), tensors, strict=True)
    again(*(each[1](other) if isinstance(each, tuple) else each for each, other in read))


def arguments() -> list[Any]:
    """Descriptors of tensors of which one is padded, a tensor, and a number."""
    x, y = torch.zeros(2, 5, 24, dtype=torch.float16)[..., :16], torch.zeros(2, 7, 16, dtype=torch.float16)
    tiles = [
        TensorDescriptor(each[None], [1, *each.shape], [256, *each.stride()], [1, 1, 64, 16], "nan") for each in (x, y)
    ]
    return [tiles[0], torch.zeros(4), 12, tiles[1]]


def comparable(args: tuple[Any, ...]) -> list[Any]:
    """Arguments with addresses in place of tensors, and without what listeners would hear."""
    found: list[Any] = [*args[:6]]
    for each in args[9:]:
        if isinstance(each, TensorDescriptor):
            fields = {name.name: getattr(each, name.name) for name in dataclasses.fields(each)}
            found.append({**fields, "base": each.base.data_ptr()})
        else:
            found.append(each.data_ptr() if isinstance(each, torch.Tensor) else each)
    return found


class Unlike(CompiledKernel):
    """A compiled kernel of another Triton: its launcher takes the arguments as one tuple."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, stream=None: self.run(  # pyright: ignore
            *grid, stream, self.function, self.packed_metadata, args
        )


def without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(CompiledKernel):
        def __getitem__(self, grid: Any) -> Any:
            run: Any = self.run
            fixed = self.function, self.packed_metadata, None, None, None
            return lambda *args, stream=None: run(*grid, stream, *fixed, *args)

    monkeypatch.setattr(launcher, "_hooks", SimpleNamespace)
    monkeypatch.setitem(globals(), "CompiledKernel", Gone)


def without_packed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(launcher._Recorder, "packed_metadata")


def without_init_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(launcher._Recorder, "_init_handles")


def descriptors_with_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = dataclasses.fields(TensorDescriptor)
    slotted = dataclasses.make_dataclass(
        "TensorDescriptor",
        [(each.name, each.type, dataclasses.field(default=each.default)) for each in fields],
        slots=True,
    )
    monkeypatch.setattr(launcher, "TensorDescriptor", slotted)
    monkeypatch.setitem(globals(), "TensorDescriptor", slotted)


@pytest.mark.parametrize(
    ("change", "direct"),
    [
        (None, True),
        (without_hooks, False),
        (without_packed_metadata, False),
        (without_init_handles, False),
        (descriptors_with_slots, True),
    ],
)
def test_a_kernel_is_launched_with_what_triton_would_give_it(
    change: Any, direct: bool, monkeypatch: pytest.MonkeyPatch
):
    if change is not None:
        change(monkeypatch)
    heard: list[tuple[Any, ...]] = []
    first, second = arguments(), arguments()
    kernel = compiled(heard, globals()["CompiledKernel"])
    assert launcher.runs_as_known(type(kernel)) == direct
    replayed(kernel, first, second)
    kernel[GRID](*second, "rest", stream=STREAM)
    ours, theirs = map(comparable, heard)
    assert ours == theirs
    assert ours[:4] == [*GRID, STREAM]
    assert ours[6]["base"] == second[0].base.data_ptr() != first[0].base.data_ptr()


def test_a_class_that_launches_otherwise_is_launched_by_its_own_code():
    heard: list[tuple[Any, ...]] = []
    assert not launcher.runs_as_known(Unlike)
    assert launcher.runs_as_known(CompiledKernel)
    launcher.Again(compiled(heard, Unlike), ("rest",), GRID, 0)(1, 2)
    assert heard == [(*GRID, STREAM, 4711, (4, 1, 256), (1, 2, "rest"))]


@pytest.mark.parametrize("which", ["launch_enter_hook", "launch_exit_hook"])
def test_listeners_hear_of_launches(which: str):
    heard: list[tuple[Any, ...]] = []
    hook = getattr(knobs.runtime, which)
    again = launcher.Again(compiled(heard), (), GRID, 0)
    again(1, 2)
    hook.add(print)
    try:
        again(1, 2)
    finally:
        hook.remove(print)
    assert heard[0][6:9] == (None, None, None)
    metadata, enter, leave = heard[1][6:9]
    assert (enter, leave) == (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    assert metadata.get()["name"] == "kernel"


def test_triton_compiles_for_what_arguments_look_like():
    assert launcher.looks_suffice()


@pytest.mark.parametrize(
    "rule",
    [
        None,
        lambda backend, x, const, specialize, align: (type(x).__name__, x % 8 == 0 if type(x) is int else None),
        lambda backend, x, const, specialize, align: (
            type(x).__name__,
            x.data_ptr() % 32 if isinstance(x, torch.Tensor) else None,
        ),
    ],
    ids=["not to be asked", "numbers by eights", "addresses by 32"],
)
def test_where_triton_compiles_for_more_every_launch_is_its_own(rule: Any, monkeypatch: pytest.MonkeyPatch):
    from triton.runtime import jit

    if rule is None:
        monkeypatch.delattr(jit, "native_specialize_impl")
    else:
        monkeypatch.setattr(jit, "native_specialize_impl", rule)
    assert not launcher.looks_suffice()


def test_public_launches_see_tensors(monkeypatch: pytest.MonkeyPatch):
    """Also those of a tape, and those of a step that is made again."""
    monkeypatch.setattr(launch, "PUBLIC", True)
    heard: list[tuple[Any, ...]] = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **named: heard.append((grid, *args, named))

    x, other = torch.zeros(4), torch.ones(4)
    with Tape(x) as tape:
        launch.launch(Kernel(), GRID, x, 5, BLOCK=8)
    tape.finished([])(other)
    made = launch.launch_alike("looks", Kernel(), GRID, (x, 5), lambda: {"BLOCK": 8})
    launch.Repeated([made], (x,), ())(other)
    for given, found in zip((x, other, x, other), heard, strict=True):
        assert found == (GRID, given, 5, {"BLOCK": 8, **launcher.OPTIONS})
        assert found[1] is given


@pytest.mark.skipif(not torch.cuda.is_available(), reason="nothing is compiled without a GPU")
@pytest.mark.parametrize("direct", [True, False])
def test_replayed_kernels_give_what_fresh_launches_do(direct: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launcher, "stream_of", stream_of)
    if not direct:
        monkeypatch.setattr(launcher, "runs_as_known", lambda kind: False)
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda").bfloat16() for _ in range(3))
    with Tape(q, k, v) as tape:
        out, _ = flash.flash(q, k, v, ahead=0)
    launched = [step.run for step in tape.steps if isinstance(step.run, launcher.Again)]
    assert launched
    assert all(each.direct == direct for each in launched)
    other = torch.randn_like(q)
    (again,) = tape.finished([out])(other, k, v)
    torch.testing.assert_close(again, flash.flash(other, k, v, ahead=0)[0], rtol=0, atol=0)
