"""Dropout as a pure function of (seed, batch, head, row, key): every backend drops the same weights."""

from __future__ import annotations

from torch import Tensor

_LOW = 0xFFFFFFFF


def keep(seed: Tensor, share: float, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    """True if a weight is kept; `share` is the share dropped. Arguments broadcast, so this serves tiles and scalars."""
    mixed = _mix(_mix(_mix(_mix(seed + batch) + head) + row) + key)
    return mixed >= int(share * 2**32)


def _mix(x: Tensor) -> Tensor:
    """Scramble 32 bits, held in int64: two rounds of multiply and shift, after the integer hashes of C. Wellons."""
    x = x & _LOW
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW
    return x ^ (x >> 15)
