# pyright: basic, reportMissingImports=false
"""Launching a kernel. Triton asks every argument anew what it is, which takes longer than many kernels do; here a
launch whose arguments look as they did before goes to the compiled kernel at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = triton.knobs.runtime.interpret  # pyright: ignore
MOST = 4096
"""How many kinds of launches are remembered."""
_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
    """Launch kernel[grid](*args, **named): args are what differs from call to call, named what it is compiled for."""
    if INTERPRETED:
        kernel[grid](*args, **named)
        return
    looks = (id(kernel), torch.cuda.current_device(), *map(_looks, args), *named, *named.values())
    found = _known.get(looks)
    if found is None:
        compiled = kernel[grid](*args, **named)
        rest = tuple(named[name] for name in kernel.arg_names[len(args) :])
        if len(_known) >= MOST:
            _known.clear()
        _known[looks] = compiled, rest
        return
    compiled, rest = found
    compiled[(*grid, 1, 1)[:3]](*args, *rest)


def _looks(x: Any) -> Any:
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
