"""The groups of `milepost bench`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from milepost.bench.harness.contest import Contest
from milepost.bench.harness.settings import Settings
from milepost.bench.suites import accuracy, attention, cpu, decoding, memory, models, rotary


@dataclass(frozen=True)
class Group:
    """Contests that belong together."""

    title: str
    note: str
    contests: Callable[[Settings], list[Contest]]
    on_gpu: bool = True


GROUPS: dict[str, Group] = {
    "attention": Group(
        "Attention",
        'As `attend` chooses by itself, plain causal by `backend="triton"`; gradients are those of q, k, v and of '
        "everything learned.",
        attention.attention,
    ),
    "packed": Group(
        "Packed documents", "Several documents in one row, compared with the whole row as one text.", attention.packed
    ),
    "encoder": Group("Encoders and short rows", "Short rows are called eagerly, many in a burst.", attention.encoder),
    "host": Group(
        "Short calls", "Launch-bound: the host decides the time of a call. Called eagerly, in bursts.", attention.host
    ),
    "rotary": Group(
        "The rotation of q and k alone",
        "As a share of the speed of a copy; with gradients, of two copies. A burst of eager calls, and a CUDA graph.",
        rotary.rotary,
    ),
    "decoding": Group(
        "One token",
        "Through `Cache`, compared with SDPA on keys already rotated. A burst of eager calls, and a CUDA graph.",
        decoding.decoding,
    ),
    "memory": Group(
        "Memory", "The peak during a call, over what was allocated before it; the last call of two.", memory.memory
    ),
    "models": Group(
        "Whole models",
        "Each scheme with our kernels, as `attend` chooses, and without them, as it chose before there were any. The "
        "lab compiles its steps. Calls follow one another, one wait at the end. Nothing is compared with float64 here.",
        models.models,
    ),
    "accuracy": Group(
        "Accuracy",
        "Root mean square errors against float64, as shares of the norm, and divided by those of plain torch in the "
        "same dtype.",
        accuracy.accuracy,
    ),
    "cpu": Group("On the CPU", "In float32.", cpu.on_cpu, on_gpu=False),
    "compiled": Group(
        "Inside torch.compile", "With Inductor on the CPU, in float32, compared with eager mode.", cpu.compiled, False
    ),
}


def contests_of(name: str, settings: Settings) -> list[Contest]:
    """Return the contests of a group, restricted to the rows that the settings ask for."""
    if not GROUPS[name].on_gpu:
        settings = replace(settings, device="cpu", dtype=torch.float32)
    more = ", peers" if settings.peers == "only" else ""
    return [
        replace(each, title=each.title + more, skip=settings.skip, peers=settings.peers)
        for each in GROUPS[name].contests(settings)
    ]
