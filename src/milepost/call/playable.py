"""Whether a call may be written down and played, and what decides how its operations run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

DEVICES = ("cuda",)
"""Where Python is slower than the device, so that it pays."""


def can_play(x: Tensor) -> bool:
    """Whether a call on this device, made just now, may be written down and played."""
    return (
        x.device.type in DEVICES
        and not torch.compiler.is_compiling()
        and not is_in_torch_dispatch_mode()
        and (x.device.type != "cuda" or x.device.index == torch.cuda.current_device())
        # Checkpoints count what a forward pass saves, and want the same number when it is run again.
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None  # pyright: ignore
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore
        and not torch.is_anomaly_enabled()
        and forward_ad._current_level < 0  # pyright: ignore
    )


def is_plain_weight(weight: Tensor) -> bool:
    """Whether a weight is one that its scheme has for good, and nobody listens to its gradient on the way."""
    return type(weight) is torch.nn.Parameter and not weight._backward_hooks


def surroundings(x: Tensor) -> Hashable:
    """What decides how operations run, besides the tensors they are given."""
    backends = torch.backends.cuda
    return (
        torch._C._cuda_getCurrentRawStream(x.device.index) if x.device.type == "cuda" else 0,  # pyright: ignore
        torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(), backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled(), backends.cudnn_sdp_enabled(),
    )  # fmt: skip


def laid_out(tensors: Sequence[Tensor]) -> Hashable:
    """How tensors lie in memory: kernels are compiled for it."""
    return tuple([(each.stride(), each.data_ptr() % 16) for each in tensors])


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which dtypes are those of the tensors; to enter it where there is no autocast would cost time."""
    # There is no autocast on the meta device.
    kind = "cpu" if device.type == "meta" else device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
