"""The fingerprint of a call: the state of torch around it, and what its tensors look like."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from milepost.memory.internals import dispatch_modes, function_mode, saved_tensor_hooks, stream_of, transformed
from milepost.memory.tape import running_tape

PLAYS_ON = ("cuda",)
"""Devices that are faster than Python, so that playing a call pays."""


class Surroundings(NamedTuple):
    """All that decides how operations run now, besides the tensors they are given."""

    modes: tuple[Hashable, ...]
    """Gradients, inference, determinism, default dtype and device, matmul precision, torch's attention kernels."""
    autocast: torch.dtype | None
    stream: int
    plays: bool
    """Whether a call may be written to a tape, or played from one, just now."""


class Fingerprint(NamedTuple):
    """All that decides how a call runs."""

    around: Surroundings
    state: Hashable
    """What decides how the scheme's parts run; see `milepost.memory.fixed`."""
    looks: tuple[Hashable, ...]
    """Shapes, dtypes, layouts and which tensors are one; of decoding steps nothing that grows with the text."""
    steps: bool


def surroundings(device: torch.device) -> Surroundings | None:
    """Return the state of torch that tensors made now depend on; None if nothing made now may be remembered.

    What inference mode makes can have no part in a backward pass later, and what one stream writes is not yet there for
    another. A CUDA graph that is captured owns what is made meanwhile. Under a transform of torch.func, forward-mode
    differentiation or a mode such as FakeTensorMode, tensors may hold no numbers, or more than numbers.
    """
    if not has_numbers() or transformed() or capturing(device):
        return None
    mode = function_mode()
    if mode is ...:
        return None
    cuda, kind = torch.backends.cuda, device.type
    here = kind == "cuda" and device.index == torch.cuda.current_device()
    return Surroundings(
        (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(), mode, torch.get_float32_matmul_precision(),
            functional.scaled_dot_product_attention, cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
        ),
        autocast_dtype(device),
        stream_of(device.index) if kind == "cuda" else 0,
        kind in PLAYS_ON and (here or kind != "cuda") and not saved_tensor_hooks() and not torch.is_anomaly_enabled(),
    )  # fmt: skip


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return what autocast brings the inputs of matrix products and of attention to; None where there is none."""
    # There is no autocast on the meta device.
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def has_numbers() -> bool:
    """True if tensors hold numbers: not while a graph is traced, nor in a mode such as FakeTensorMode."""
    if torch.compiler.is_compiling():
        return False
    return not dispatch_modes() or running_tape() is not None


def capturing(device: torch.device) -> bool:
    """True if a CUDA graph is captured just now."""
    if torch.compiler.is_compiling() or device.type != "cuda":
        return False
    return torch.cuda.is_current_stream_capturing()


def looks_of(x: Tensor) -> Hashable:
    """Return what decides how operations on a tensor run: kernels are compiled for its layout and alignment."""
    return x.shape, x.dtype, x.device, x.requires_grad, x.stride(), x.data_ptr() % 16


def look_of_all(tensors: Iterable[Tensor]) -> tuple[Hashable, ...]:
    """Return `looks_of` for each tensor."""
    return tuple([looks_of(each) for each in tensors])


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which dtypes are those of the tensors; it costs nothing where there is no autocast."""
    # There is no autocast on the meta device.
    kind = "cpu" if device.type == "meta" else device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def digest(value: object) -> int:
    """Return a number of 63 bits that is the same in every process for what prints alike; of a tensor, its numbers.

    Where objects lie in memory does not count.
    """
    if isinstance(value, Tensor):
        read = value.detach().flatten().clone().view(torch.uint8)
        words = read.view(torch.int64) if len(read) % 8 == 0 else read.long()
        # Each times an odd number of its own; what overflows is lost.
        mixed = (words + 1) * (2 * torch.arange(len(words), device=words.device) + 1) * 0x2545F4914F6CDD1D
        said = f"{value.dtype} {[*value.shape]} {int(mixed.sum())}"
    else:
        said = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "big") >> 1
