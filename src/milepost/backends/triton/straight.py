# pyright: basic, reportMissingImports=false
"""A compiled kernel launched again: straight into Triton's compiled launcher, where this is the Triton that we know.

Triton 3.6 goes over all arguments in Python to describe tiles to the copy engine, which takes longer than most of our
kernels. Of a launch like another nothing is new but addresses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

KNOWN = triton.__version__.startswith("3.6.")
"""Whether this is the Triton whose launcher is known here; with any other, launches go Triton's own way."""
Run = Callable[..., None]


class Entry(NamedTuple):
    """A kernel's compiled launcher, and what its tiles are described with."""

    run: Run
    tiles: Sequence[dict[str, Any]]


class Again:
    """A compiled kernel and what it was compiled for, `rest`, launched with other arguments like the first."""

    __slots__ = ("compiled", "device", "entry", "rest", "run")

    def __init__(self, compiled: Any, rest: tuple[Any, ...], grid: tuple[int, int, int], device: int) -> None:
        self.compiled, self.rest, self.device = compiled, rest, device
        self.entry = entry_of(compiled) if KNOWN else None
        self.run = self.on(grid)

    def __call__(self, *args: Any) -> None:
        """Launch with arguments as `read` makes them."""
        self.run(torch._C._cuda_getCurrentRawStream(self.device), *args)  # pyright: ignore

    def on(self, grid: tuple[int, int, int]) -> Run:
        """The launch on another grid, of a stream and the arguments."""
        rest, compiled = self.rest, self.compiled
        if self.entry is None:
            usual = compiled[grid]
            return lambda stream, *args: usual(*args, *rest, stream=stream)
        entry, launcher, (x, y, z) = self.entry.run, compiled.run, grid
        fixed = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, None, None
        packed, hooks = compiled.packed_metadata, triton.knobs.runtime  # pyright: ignore

        def run(stream: int, *args: Any) -> None:
            enter, leave = _listener(hooks.launch_enter_hook), _listener(hooks.launch_exit_hook)
            said = None if enter is leave is None else compiled.launch_metadata(grid, stream, *args, *rest)
            entry(x, y, z, stream, *fixed, packed, said, enter, leave, *args, *rest)

        return run

    def read(self, args: Sequence[Any]) -> list[Any]:
        """Arguments as a tape takes them: a tensor with what a launch reads of it, which keeps no tensor."""
        found: list[Any] = []
        tiles = iter(() if self.entry is None else self.entry.tiles)
        for each in args:
            if isinstance(each, TensorDescriptor) and self.entry is not None:
                describe, more = _describing(each, next(tiles))
                found += [(each.base, describe), *more]
            elif isinstance(each, TensorDescriptor):
                found.append((each.base, _maker(each)))
            else:
                found.append((each, Tensor.data_ptr) if isinstance(each, Tensor) else each)
        return found


def entry_of(compiled: Any) -> Entry | None:
    """A kernel's launcher; None where it needs memory of its own, its tiles are not the copy engine's, or somebody has
    put a function of theirs around it.
    """
    launcher = compiled.run
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None
    if not inspect.isfunction(launcher.launch):
        return Entry(launcher.launch, ())
    inside = inspect.getclosurevars(launcher.launch).nonlocals
    tiles = inside.get("tensordesc_meta", [None])
    return None if any(each is None or each["fp4_padded"] for each in tiles) else Entry(inside["launcher"], tiles)


def _listener(hook: Any) -> Any:
    """Who hears of launches: nobody, where Triton has a list of them and it is empty."""
    return hook if getattr(hook, "calls", True) else None


def _describing(like: TensorDescriptor, told: dict[str, Any]) -> tuple[Callable[[Tensor], Any], list[int]]:
    """What describes another tensor's tiles to the copy engine as this one's, and what follows it in a launch."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    fill = triton.runtime.driver.active.utils.fill_tma_descriptor  # pyright: ignore
    shape, strides, kind = list(like.shape), list(like.strides), TMA_DTYPE_DEVICE_TO_HOST[told["elem_type"]]
    size, padding = told["elem_size"], int(like.padding == "nan")
    same = told["swizzle"], size, kind, told["block_size"], shape, strides, padding
    return lambda base: fill(base.data_ptr(), *same), [*shape, *strides]


class _Tiles:
    """A tensor and its tiles, as Triton's own launch reads them: a TensorDescriptor that was found right before."""

    __slots__ = ("base", "padding", "shape", "strides")

    def __init__(self, base: Any, shape: Any, strides: Any, padding: Any) -> None:
        self.base, self.shape, self.strides, self.padding = base, shape, strides, padding


def _maker(like: TensorDescriptor) -> Callable[[Tensor], Any]:
    """A function that describes another tensor as this one is."""
    shape, strides, padding = like.shape, like.strides, like.padding
    return lambda base: _Tiles(base, shape, strides, padding)
