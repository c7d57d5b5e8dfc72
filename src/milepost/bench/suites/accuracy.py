"""Errors against float64, and those of plain torch in the same dtype: outputs and gradients, no times."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from milepost import Rope, Scheme, causal, rotate
from milepost.bench.harness.agreement import FLOORS, compared
from milepost.bench.harness.contest import Contest, Entry, Works
from milepost.bench.harness.report import Agreement
from milepost.bench.harness.settings import Settings, grouped
from milepost.bench.suites.attention import entry, tensors
from milepost.bench.suites.schemes import PLAIN, causal_schemes

FAR = (0, 10**6, 10**7)
"""The position of the first token."""


def accuracy(settings: Settings) -> list[Contest]:
    """Return every causal scheme with grouped queries, in the dtypes of a GPU; and phases far out."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32) if settings.device == "cuda" else (settings.dtype,)
    return [*(_schemes(replace(settings, dtype=dtype)) for dtype in dtypes), _phases(settings)]


def _schemes(settings: Settings) -> Contest:
    b, h, g, t, d = settings.sizes.accuracy

    def entries() -> list[Entry]:
        given = tuple(tensors(settings, b, h, t, d, g))
        # Errors grow neither with the batch nor with the heads.
        schemes = {PLAIN: lambda: Scheme(causal), **causal_schemes(h, d)}
        return [entry(name, make, (given[0], given[1], given[2], given[3]), settings) for name, make in schemes.items()]

    return Contest("accuracy", f"{grouped(b, h, g, t, d)}, {settings.words}", (), entries)


def _phases(settings: Settings) -> Contest:
    """Return the rotation alone, from positions, at the start of a text and far out."""
    _, h, _, t, d = settings.sizes.accuracy

    def entries() -> list[Entry]:
        x = tensors(settings, 1, h, t, d)[3]
        return [Entry(f"RoPE from position {first:,}", "milepost", _turning(x, first)) for first in FAR]

    return Contest("accuracy", f"rotation alone, h{h} t{t} d{d}, {settings.words}", (), entries)


def _turning(x: Tensor, first: int):
    def works() -> Works:
        rope = Rope(x.shape[-1])
        position = torch.arange(first, first + x.shape[2], device=x.device)

        def check() -> Agreement:
            cos, sin = rope.cos_sin(position, dtype=torch.float64)
            exact = rotate(x.double(), cos, sin)
            # Plain torch: exact angles, rounded once.
            plain = rotate(x, cos.float(), sin.float())
            return compared([rope.turn(x, position)], [exact], [plain], FLOORS[x.dtype])

        return Works({}, check)

    return works
