# pyright: basic, reportMissingImports=false
"""Launching a kernel. Triton asks every argument anew what it is, which takes longer than many kernels do; here a
launch whose arguments look as they did before goes to the compiled kernel at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.numerics.tape import running_tape

INTERPRETED = triton.knobs.runtime.interpret  # pyright: ignore
MOST = 4096
"""How many kinds of launches are remembered."""
_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
_alike: dict[Hashable, Callable[..., None]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
    """Launch kernel[grid](*args, **named): args are what differs from call to call, named what it is compiled for."""
    tape = running_tape()
    if tape is None:
        _launch(kernel, grid, args, named)
        return
    with tape.aside():
        again = _launch(kernel, grid, args, named)
        tape.launched(*_with_tensors(again, args))


def launch_alike(
    looks: Hashable, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], named: Callable[[], dict[str, Any]]
) -> None:
    """The same for a launch whose looks the caller knows: what Triton compiles for, of all arguments, and `named`."""
    if INTERPRETED or running_tape() is not None:
        launch(kernel, grid, *args, **named())
        return
    key = (id(kernel), args[0].device, looks)
    found = _alike.get(key)
    if found is None:
        if len(_alike) >= MOST:
            _alike.clear()
        _alike[key] = _launch(kernel, grid, args, named())
        return
    found(*args, grid=grid)


def operator(name: str, body: Any) -> Any:
    """One of our operators as torch knows it, or its body, where a tape is to see what it does."""
    return getattr(torch.ops.milepost, name) if running_tape() is None else body


def _launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Launch, and answer a function that does it again with other arguments like these."""
    if INTERPRETED:
        kernel[grid](*args, **named)
        return lambda *args: kernel[grid](*args, **named)
    device = torch.cuda.current_device()
    looks = (id(kernel), device, *map(looks_of, args), *named, *named.values())
    found = _known.get(looks)
    if found is None:
        compiled = kernel[grid](*args, **named)
        found = compiled, tuple(named[name] for name in kernel.arg_names[len(args) :])
        if len(_known) >= MOST:
            _known.clear()
        _known[looks] = found
    else:
        compiled, rest = found
        compiled[(*grid, 1, 1)[:3]](*args, *rest)
    compiled, rest = found
    run = compiled[(*grid, 1, 1)[:3]]

    def again(*args: Any, grid: tuple[int, int, int] | None = None) -> None:
        stream = torch._C._cuda_getCurrentRawStream(device)  # pyright: ignore
        (run if grid is None else compiled[grid])(*args, *rest, stream=stream)

    return again


class _Tiles:
    """A tensor and its tiles, as a launch reads them: a TensorDescriptor that was found right before."""

    __slots__ = ("base", "padding", "shape", "strides")

    def __init__(self, base: Any, shape: Any, strides: Any, padding: Any) -> None:
        self.base, self.shape, self.strides, self.padding = base, shape, strides, padding


def _with_tensors(run: Any, args: tuple[Any, ...]) -> tuple[Any, list[Tensor]]:
    """The launch as a function of its tensors alone, and these. It keeps none of them."""
    plain = [n for n, each in enumerate(args) if isinstance(each, Tensor)]
    tiled = [(n, _maker(each)) for n, each in enumerate(args) if isinstance(each, TensorDescriptor)]
    template = [None if isinstance(each, (Tensor, TensorDescriptor)) else each for each in args]

    def again(*tensors: Tensor) -> None:
        args = template.copy()
        for n, each in zip(plain, tensors, strict=False):
            args[n] = each
        for (n, tiles), each in zip(tiled, tensors[len(plain) :], strict=True):
            args[n] = tiles(each)
        run(*args)

    return again, [args[n] for n in plain] + [args[n].base for n, _ in tiled]


def _maker(like: TensorDescriptor) -> Any:
    """A function that describes another tensor as this one is."""
    shape, strides, blocks, padding = like.shape, like.strides, like.block_shape, like.padding
    if INTERPRETED:
        return lambda base: TensorDescriptor(base, shape, strides, blocks, padding)
    return lambda base: _Tiles(base, shape, strides, padding)


def looks_of(x: Any) -> Any:
    """What Triton compiles for, of one argument: a number's being 1, or a multiple of 16, and what it is stored in."""
    if x is None:
        return None
    if isinstance(x, int):
        return (1 if x == 1 else 16 if x % 16 == 0 else 0) if -(1 << 31) <= x < 1 << 31 else "long"
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if isinstance(x, TensorDescriptor):
        return x.base.dtype, tuple(x.block_shape)
    return type(x)
