"""The device, shapes and time of `milepost bench`; tests set smaller ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from milepost.bench.harness.clock import Budget
from milepost.bench.harness.contest import Peers

Shape = tuple[int, int, int, int]
"""b, h, t, d."""
Grouped = tuple[int, int, int, int, int]
"""b, h, g, t, d: h query heads on g key heads."""


@dataclass(frozen=True)
class Lab:
    """The lab's model, its batches, and the length that it then reads."""

    width: int = 384
    layers: int = 6
    heads: int = 6
    batch: int = 64
    length: int = 512
    longest: int = 16384


@dataclass(frozen=True)
class Llama:
    """A checkpoint of SmolLM2-135M's shape, with random weights, and the length that it reads."""

    width: int = 576
    layers: int = 30
    heads: int = 9
    key_heads: int = 3
    words: int = 49152
    context: int = 8192


@dataclass(frozen=True)
class Sizes:
    """The shapes."""

    a: Shape = (4, 16, 4096, 64)
    b: Shape = (1, 16, 16384, 128)
    c: Grouped = (1, 32, 8, 32768, 128)
    encoder: Shape = (32, 12, 512, 64)
    short: Shape = (64, 6, 512, 64)
    host: Shape = (64, 12, 512, 64)
    documents: int = 16
    rotary: tuple[Grouped, ...] = ((4, 32, 8, 4096, 128), (1, 32, 8, 32768, 128), (8, 16, 16, 2048, 64))
    rotary_step: Grouped = (64, 32, 8, 1, 128)
    steps: tuple[Grouped, ...] = ((16, 32, 8, 32768, 128), (1, 32, 8, 8192, 128))
    accuracy: Grouped = (2, 16, 4, 1280, 64)
    cpu_rotary: Grouped = (2, 32, 32, 2048, 128)
    cpu_steps: tuple[Grouped, ...] = ((1, 32, 8, 4096, 128), (1, 4, 4, 4096, 64))
    cpu_window: tuple[int, int, int, int, int] = (1, 8, 8192, 64, 512)
    """b, h, t, d and the window."""
    cpu_chunked: Shape = (1, 8, 8192, 64)
    compiled: Shape = (1, 8, 1024, 64)
    lab: Lab = Lab()
    llama: Llama = Llama()


@dataclass(frozen=True)
class Settings:
    """Common to all groups."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    rounds: int = 15
    peers: Peers = "with"
    skip: tuple[str, ...] = ()
    """Rows with any of these in their names are left out."""
    sizes: Sizes = field(default_factory=Sizes)
    budget: Budget = field(default_factory=Budget)

    @property
    def words(self) -> str:
        """The dtype, as titles name it."""
        return str(self.dtype).removeprefix("torch.")


def shaped(b: int, h: int, t: int, d: int) -> str:
    """Return a shape as titles name it."""
    return f"b{b} h{h} t{t} d{d}"


def grouped(b: int, h: int, g: int, t: int, d: int) -> str:
    """Return the same of grouped heads."""
    return f"b{b} h{h}" + (f" on {g}" if g != h else "") + f" t{t} d{d}"
