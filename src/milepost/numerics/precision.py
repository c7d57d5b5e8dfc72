"""Float64 on devices that have none: what needs it is computed on the CPU, and its result is float32 on the device."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)
"""Types of devices none of which has float64; of XPUs some have it."""


def has_float64(device: torch.device) -> bool:
    """True if a device has float64."""
    if device.type == "xpu":
        return cast("Any", torch.xpu.get_device_properties(device)).has_fp64 is True
    return device.type not in WITHOUT_FLOAT64


def float_type(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device without it."""
    return torch.float64 if has_float64(device) else torch.float32


def exact_device(device: torch.device) -> torch.device:
    """Return the device itself if it has float64, else the CPU."""
    return device if has_float64(device) else torch.device("cpu")


def float64(x: Tensor) -> Tensor:
    """Return x in float64, on the CPU if its device has none."""
    return x.double() if has_float64(x.device) else x.cpu().double()


def returned(x: Tensor, device: torch.device) -> Tensor:
    """Return what was computed with float64 to a device: as it is if that has float64, else in float32."""
    return x if x.device == device else x.to(float_type(device)).to(device)


def demand_float64(owner: str, device: torch.device) -> None:
    """Refuse a device without float64, where positions themselves are fractions of it."""
    if not has_float64(device):
        raise TypeError(f"{owner}: needs positions in float64, which {device.type} does not have; run it on the CPU")
