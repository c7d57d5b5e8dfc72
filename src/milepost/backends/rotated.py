"""Queries and keys rotated by cosines and sines that are kept; on a GPU both in one launch of our own kernel."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from milepost.backends.kept import kept
from milepost.call.call import Call
from milepost.numerics.rotation import rotate

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What the kernel takes."""
LARGEST = 1 << 22
"""Numbers of a table that is kept; a longer one takes less time to make than to read attention's keys."""
ROOM = 1024
"""Tokens that the tables of a growing cache grow by."""
Waves = tuple[Tensor, Tensor]


def rotated(call: Call, dtype: torch.dtype, p: Tensor | None, r: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Queries at p and keys at r, [b|1 n] or [b|1 n axes], or where they stand if that is left out, rotated.

    None where the parts' own verbs have to do it.
    """
    part = _rotation(call)
    if part is None:
        return None
    both = _counted(call, part, dtype) if p is None and r is None else None
    by_kernel = dtype in DTYPES and not call.keys_turned and _ready(call.q.device)
    if both is None:
        both = _given(call, part, p, r) if by_kernel else None
    if both is None:
        return None
    (cos, sin), keys = both
    q, k = call.q.to(dtype), call.k.to(dtype)
    if by_kernel:
        # Loaded here, because it needs triton.
        from milepost.backends.triton.rotary import rotate_qk

        return rotate_qk(q, k, cos, sin, *(keys or (None, None)), neighbours=part.pairs == "neighbours")
    q = _turn(q, (cos, sin), part)
    return q, k if call.keys_turned else _turn(k, keys or (cos, sin), part)


def rotated_queries(call: Call) -> tuple[Tensor, Waves | None, bool] | None:
    """The queries rotated, cosines and sines [1 ≥ s width/2] for keys that are still raw, and whether pairs neighbour.

    For a kernel that rotates keys as it reads them. None where these are not known from the layout.
    """
    part = _rotation(call)
    both = None if part is None else _counted(call, part, call.q.dtype, room=ROOM)
    if part is None or both is None:
        return None
    queries, keys = both
    return _turn(call.q, queries, part), keys, part.pairs == "neighbours"


def _rotation(call: Call) -> Any | None:
    """The one part that turns queries and keys, where cosines and sines say all that it does."""
    parts: tuple[Any, ...] = call.scheme.answering("turn")
    if len(parts) != 1 or not call.scheme.answering("cos_sin") or torch.compiler.is_compiling():
        return None
    # A width that does not fit is the verb's to refuse.
    return parts[0] if parts[0].blocks == 1 and parts[0].head_dim == call.q.shape[-1] else None


def _turn(x: Tensor, waves: Waves, part: Any) -> Tensor:
    """Rotate the first channels of x [b h n d]."""
    cos, sin = (each[:, None] for each in waves)
    if x.shape[-1] == part.width:
        return rotate(x, cos, sin, part.pairs)
    return torch.cat((rotate(x[..., : part.width], cos, sin, part.pairs), x[..., part.width :]), -1)


def _counted(call: Call, part: Any, dtype: torch.dtype, room: int = 0) -> tuple[Waves, Waves | None] | None:
    """Cosines and sines of tokens that count up by one, [1 n width/2], for the queries and, where unlike, the keys.

    room: keys get a multiple of so many tokens, so that a table serves many steps; 0 for as many as there are.
    """
    layout = call.layout
    by_length = getattr(part, "by_length", False)
    if layout is None or not call.at_index or getattr(part, "centred", False) or not _fixed(part):
        return None
    if by_length and call.given_length is not None:
        return None
    t, s = call.queries.count, call.keys.count
    if max(t, s) * part.width > 2 * LARGEST:
        return None
    length = layout.key_first + s if by_length else None
    exact = torch.promote_types(dtype, torch.float32)
    queries = _along(part, layout.first, t, length, "query", exact, call.q.device)
    # Queries that are the keys' own tokens share their angles.
    if queries is None or call.keys_turned or (layout.offset == 0 and t == s and not room):
        return None if queries is None else (queries, None)
    count = s if not room else -(-s // room) * room
    keys = _along(part, layout.key_first, count, length, "key", exact, call.q.device)
    return None if keys is None else (queries, keys)


@kept(8)
def _along(
    part: Any, first: int, count: int, length: int | None, side: str, dtype: torch.dtype, device: torch.device
) -> Waves | None:
    position = torch.arange(first, first + count, device=device)[None]
    if part.beyond(position, length) is not None:
        return None
    return _waves(part.cos_sin(position, length, side, dtype))


def _given(call: Call, part: Any, p: Tensor | None, r: Tensor | None) -> tuple[Waves, Waves | None] | None:
    """The same of tokens that stand anywhere."""
    p, r = call.position if p is None else p, call.key_position if r is None else r
    if part.beyond(p, call.length) is not None:
        return None
    queries = _waves(part.cos_sin(p, call.length, "query"))
    if queries[0].requires_grad:
        return None
    return queries, _waves(part.cos_sin(r, call.key_length, "key"))


def _waves(waves: Waves) -> Waves:
    """Cosines and sines as [b|1 n width/2]."""
    cos, sin = (each if each.dim() == 3 else each[None] for each in waves)
    return cos, sin


def _fixed(part: Any) -> bool:
    """Whether nothing about the part can change: its cosines may then be kept."""
    if not isinstance(part, Hashable) or not dataclasses.is_dataclass(part) or not part.__dataclass_params__.frozen:  # pyright: ignore
        return False
    values = [getattr(part, field.name) for field in dataclasses.fields(part)]
    inner = [each for each in values if dataclasses.is_dataclass(each)]
    return not any(isinstance(each, nn.Module) for each in values) and all(_fixed(each) for each in inner)


@functools.lru_cache(maxsize=16)
def _ready(device: torch.device) -> bool:
    """Whether the kernel can run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None
