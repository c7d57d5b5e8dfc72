"""Queries and keys rotated in one launch of our own kernel, where a GPU is there to run it."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

from milepost.call.call import Call
from milepost.seams.facets import facets_of

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Waves = tuple[Tensor, Tensor]


def rotated(call: Call, dtype: torch.dtype, p: Tensor | None, r: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Queries at p and keys at r, [b|1 n] or [b|1 n axes], or where they stand if that is left out, rotated.

    None where the kernel has no answer.
    """
    parts: tuple[Any, ...] = call.scheme.answering("turn")
    if len(parts) != 1 or dtype not in DTYPES or call.keys_turned or not _ready(call.q.device):
        return None
    part = parts[0]
    if torch.compiler.is_compiling() or "cos_sin" not in facets_of(part) or part.blocks != 1:
        return None
    own = p is None and r is None
    p, r = call.position if p is None else p, call.key_position if r is None else r
    if part.beyond(p, call.length) is not None or part.width > call.q.shape[-1]:
        return None
    # Loaded here, because it needs triton.
    from milepost.backends.triton.rotary import rotate_qk

    cos, sin = _waves(part.cos_sin(p, call.length, "query"))
    if cos.requires_grad:
        return None
    # Queries that are the keys' own tokens share their angles, but for a part whose sides differ.
    layout = call.layout if own and call.at_index and not getattr(part, "centred", False) else None
    keys: Waves | tuple[None, None] = (None, None)
    if layout is None or layout.offset != 0 or call.queries.count != call.keys.count:
        keys = _waves(part.cos_sin(r, call.key_length, "key"))
    return rotate_qk(call.q.to(dtype), call.k.to(dtype), cos, sin, *keys, neighbours=part.pairs == "neighbours")


def _waves(waves: Waves) -> Waves:
    """Cosines and sines as [b|1 n width/2]."""
    cos, sin = (each if each.dim() == 3 else each[None] for each in waves)
    return cos, sin


@functools.lru_cache(maxsize=16)
def _ready(device: torch.device) -> bool:
    """Whether the kernel can run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None
