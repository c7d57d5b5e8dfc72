"""Cosines and sines of queries and keys that are turned in two ways: for near keys, and for far ones."""

from __future__ import annotations

from milepost.backends.rotated import (
    DTYPES,
    Waves,
    _counted,  # pyright: ignore[reportPrivateUsage]
    _ready,  # pyright: ignore[reportPrivateUsage]
    _rotation,  # pyright: ignore[reportPrivateUsage]
    _unturned,  # pyright: ignore[reportPrivateUsage]
)
from milepost.call.call import Call

Ways = tuple[tuple[Waves, Waves], tuple[Waves, Waves | None], bool]


def both_ways(call: Call, near: int, far: int, contrasted: bool) -> Ways | None:
    """Those of queries and of keys, each in the regimes of these numbers, and whether pairs neighbour.

    None for far keys that stay as they are. contrasted: as for `rotated`. None for all where our kernel cannot do it.
    """
    part = _rotation(call)
    if part is None or call.keys_turned or call.q.dtype not in DTYPES or not _ready(call.q.device):
        return None
    beside = _counted(call, part, call.q.dtype, near)
    apart = _counted(call, part, call.q.dtype, far, contrasted=contrasted)
    if beside is None or apart is None:
        return None
    keys, far_keys = beside[1] or beside[0], None if _unturned(call, part, far) else apart[1] or apart[0]
    return (beside[0], apart[0]), (keys, far_keys), part.pairs == "neighbours"
