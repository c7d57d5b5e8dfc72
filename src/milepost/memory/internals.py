# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Private names of torch: each is checked for when it is used, and each has a public way around it.

Where torch does not say whether a transform, a mode or a hook is active, the answer is that one may be: then nothing is
remembered, and calls take the way that is always right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module
from torch.utils import _python_dispatch

NAMES = (
    "torch._C._are_functorch_transforms_active",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._cuda_getCurrentRawStream",
    "torch._C._dynamo.guards._empty_strided_cpu",
    "torch._C._dynamo.guards._empty_strided_cuda",
    "torch._C._functorch.is_batchedtensor",
    "torch._C._get_function_stack_at",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch.autograd.forward_ad._current_level",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.utils._python_dispatch._get_current_dispatch_mode",
)
"""Every private name of torch that is relied on; a test removes each and compares answers."""


def transformed() -> bool:
    """True if a transform of torch.func or forward-mode differentiation may be active."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is None or forward_mode() or bool(active())


def forward_mode() -> bool:
    """True if forward-mode differentiation (dual numbers, `torch.func.jvp`) may be active."""
    level: Any = getattr(forward_ad, "_current_level", None)
    return not isinstance(level, int) or level >= 0


def batched(x: torch.Tensor) -> bool:
    """True if a tensor may stand for all rows that `torch.vmap` runs at once."""
    asked = getattr(getattr(torch._C, "_functorch", None), "is_batchedtensor", None)
    return transformed() if asked is None else bool(asked(x))


def function_mode() -> object:
    """Return the active TorchFunctionMode: None if there is none, `...` if it may change what functions do.

    A default device (`torch.set_default_device`, `with torch.device(…)`) is returned as that device.
    """
    count = getattr(torch._C, "_len_torch_function_stack", None)
    if count is None:
        return ...
    depth = count()
    if not depth:
        return None
    at = getattr(torch._C, "_get_function_stack_at", None)
    mode = at(0) if at is not None and depth == 1 else None
    return getattr(mode, "device", ...) if type(mode).__name__ == "DeviceContext" else ...


def dispatch_modes() -> int:
    """Return how many TorchDispatchModes are active; more than one if torch does not say."""
    count = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return 2 if count is None else count()


def dispatch_mode() -> object:
    """Return the innermost TorchDispatchMode: None if there is none, `...` if torch does not say."""
    current = getattr(_python_dispatch, "_get_current_dispatch_mode", None)
    return ... if current is None else current()


def saved_tensor_hooks() -> bool:
    """True if hooks on saved tensors, such as those of a checkpoint, may be active."""
    top = getattr(getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def module_hooks() -> bool:
    """True if hooks on every module (`register_module_forward_hook`) may be active."""
    found = getattr(module, "_has_any_global_hook", None)
    return found is None or found()


def stream_of(device: int | None) -> int:
    """Return the handle of the current stream of a CUDA device."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return torch.cuda.current_stream(device).cuda_stream
    return raw(torch.cuda.current_device() if device is None else device)


def empty_on(device: torch.device) -> Callable[..., torch.Tensor]:
    """Return what allocates a tensor of a size, strides and a dtype on a device.

    Graphs that torch compiled have a function of their own for the current device, which takes half the time.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    quick = getattr(guards, f"_empty_strided_{device.type}", None) if device.type in ("cpu", "cuda") else None
    if quick is not None:
        return quick

    def empty(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, strides, dtype=dtype, device=device)

    return empty
