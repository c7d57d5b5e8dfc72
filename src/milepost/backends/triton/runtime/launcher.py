# pyright: basic, reportMissingImports=false
"""Launch a compiled kernel again, with other arguments that look like the first ones.

`kernel[grid](*args)` reads in Python what every argument is, which takes longer than most of our kernels run. The
compiled kernel that it returns is launched again by `compiled[grid](*args)`, which is public too. That still prepares
what listeners hear of a launch, though nobody listens; where it is seen to end in `compiled.run(…)`, that is called.

What is relied on beyond Triton's public interface is checked as the program runs, never by a version:

| relied on | checked by | otherwise |
|---|---|---|
| Triton compiles for no more than `looks_of` reads | `looks_suffice` asks Triton | `kernel[grid](*args)` |
| `compiled[grid](*args)` is `compiled.run(…)` | `runs_as_known` records a launch | `compiled[grid](*args)` |
| a `TensorDescriptor` is its fields | `describing` reads its `__dict__` | the class is called |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.memory.internals import stream_of

Run = Callable[..., None]
OPTIONS = {"enable_fp_fusion": True}
"""Given with every launch: a product and a sum are one operation. From Triton 3.10 on it is off unless asked for."""


class Again:
    """Launch a compiled kernel with other arguments like the first; `rest` is what it was compiled for."""

    __slots__ = ("compiled", "device", "direct", "rest", "run")

    def __init__(self, compiled: Any, rest: tuple[Any, ...], grid: tuple[int, int, int], device: int) -> None:
        self.compiled, self.rest, self.device = compiled, rest, device
        self.direct = runs_as_known(type(compiled))
        self.run = self.on(grid)

    def __call__(self, *args: Any) -> None:
        """Launch on the current stream, with arguments as `read` makes them."""
        self.run(stream_of(self.device), *args)

    def on(self, grid: tuple[int, int, int]) -> Run:
        """Return the launch on another grid, a function of a stream and the arguments."""
        rest, usual = self.rest, self.compiled[grid]
        if not self.direct:
            return lambda stream, *args: usual(*args, *rest, stream=stream)
        run, fixed, hooks = self.compiled.run, (self.compiled.function, self.compiled.packed_metadata), _hooks()

        def launch(stream: int, *args: Any) -> None:
            if _is_heard(hooks.launch_enter_hook) or _is_heard(hooks.launch_exit_hook):
                usual(*args, *rest, stream=stream)
            else:
                run(*grid, stream, *fixed, None, None, None, *args, *rest)

        return launch

    def read(self, args: Sequence[Any]) -> list[Any]:
        """Return arguments as a tape takes them: each tensor with a function that gives what a launch reads of it."""
        return [
            (each.base, describing(each))
            if isinstance(each, TensorDescriptor)
            else (each, Tensor.data_ptr)
            if isinstance(each, Tensor)
            else each
            for each in args
        ]


def describing(like: TensorDescriptor) -> Callable[[Tensor], TensorDescriptor]:
    """Return a function that describes another tensor as `like` describes its own.

    The other tensor is of the same shape, strides, dtype and alignment, so nothing is validated a second time.
    """
    kind = type(like)
    same = {each.name: getattr(like, each.name) for each in dataclasses.fields(like) if each.name != "base"}
    if getattr(like, "__dict__", {}).keys() != {"base", *same}:
        return lambda base: kind(base=base, **same)

    def describe(base: Tensor) -> TensorDescriptor:
        made = object.__new__(kind)
        made.__dict__ = {"base": base, **same}
        return made

    return describe


@cache
def runs_as_known(kind: type) -> bool:
    """Check that a class of compiled kernels launches by `run`, with the arguments that `Again` would give it.

    An object that only records takes the kernel's place: Triton's own code tells which arguments it passes.
    """
    recorder = _Recorder()
    try:
        kind.__getitem__(recorder, (2, 3, 5))("an argument", 7, stream=11)  # pyright: ignore
        hooks = _hooks().launch_enter_hook, _hooks().launch_exit_hook
    except Exception:
        return False
    fixed = recorder.function, recorder.packed_metadata, recorder.metadata
    return recorder.heard == [(2, 3, 5, 11, *fixed, *hooks, "an argument", 7)]


class _Recorder:
    """An object with what Triton's launch reads of a compiled kernel."""

    function, packed_metadata, metadata = "function", "packed metadata", "launch metadata"

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def _init_handles(self) -> None: ...

    def launch_metadata(self, *_: Any) -> str:
        return self.metadata

    def run(self, *args: Any) -> None:
        self.heard.append(args)


def _hooks() -> Any:
    """Triton's settings that name who hears of launches."""
    return triton.knobs.runtime  # pyright: ignore


def _is_heard(hook: Any) -> bool:
    """True if a hook has listeners: Triton keeps a list of them, which may be empty."""
    return hook is not None and bool(getattr(hook, "calls", True))


def looks_of(x: Any) -> Any:
    """Return what Triton compiles for, of one argument: its type, whether it is 1, whether 16 divides it."""
    if x is None:
        return None
    if isinstance(x, int):
        if isinstance(x, bool):
            return bool
        return (1 if x == 1 else 16 if x % 16 == 0 else 0, -(1 << 31) <= x < 1 << 31, x < 1 << 63)
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if isinstance(x, TensorDescriptor):
        return x.base.dtype, tuple(x.block_shape)
    return type(x)


@cache
def looks_suffice() -> bool:
    """Check that arguments which look alike are one kernel to Triton, by asking Triton what it makes of many."""
    wide = torch.zeros(16, 64)
    tensors = [wide.view(-1)[n:] for n in range(9)] + [wide.half(), wide.int(), wide.view(-1).half()[1:]]
    tiles = [TensorDescriptor(wide[n:], [16 - n, 64], [64, 1], [m, 16]) for n in (0, 1) for m in (1, 8)]
    near = [base + n for base in (0, 1 << 31, 1 << 32, 1 << 62) for n in range(-33, 34)]
    found: dict[Any, Any] = {}
    try:
        from triton.backends.nvidia.compiler import CUDABackend
        from triton.runtime.jit import native_specialize_impl  # pyright: ignore

        for each in (None, True, False, 0.0, 1.0, 2.5, *near, *tensors, *tiles):
            made = [native_specialize_impl(CUDABackend, each, False, asked, asked) for asked in (True, False)]
            if found.setdefault(looks_of(each), made) != made:
                return False
    except Exception:
        return False
    return True
