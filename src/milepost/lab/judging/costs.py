"""What a row costs beside its bits: how fast it reads and writes, and how much memory that takes.

Measured once, in passing, on the machine where the sweep runs, with whatever else runs there: good for orders of
magnitude. `milepost bench` is for more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from milepost.cache import Cache
from milepost.lab.training.model import Model

WRITTEN = 8
"""Bytes that are written one by one to see how fast that goes."""


@dataclass(frozen=True)
class Cost:
    """What one row of a cell costs."""

    cell: str
    variant: str
    """The training-free row; empty for the scheme it was trained with."""
    values: dict[str, float] = field(default_factory=dict[str, float])
    """`read` and `written`: bytes a second, up to the longest length and there; `memory`: the most bytes on the GPU."""


@torch.no_grad()
def cost_of(model: Model, longest: int) -> dict[str, float]:
    """Read almost the longest text there is, then write the rest of it byte by byte."""
    device = model.tokens.weight.device
    written = min(WRITTEN, longest // 2)
    tokens = torch.zeros(1, longest - written, dtype=torch.long, device=device)
    caches = [Cache() for _ in model.layers]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    begun = _now(device)
    model.states(tokens, caches)
    read = _now(device)
    for _ in range(written):
        model(tokens[:, :1], caches)
    ended = _now(device)
    found = {"read": tokens.shape[1] / (read - begun), "written": written / (ended - read)}
    if device.type == "cuda":
        found["memory"] = float(torch.cuda.max_memory_allocated(device))
    return found


def _now(device: torch.device) -> float:
    """Return the time, after all that was asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
