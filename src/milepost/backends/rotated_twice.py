"""Cosines and sines of queries and keys that are turned in several ways: for near keys, and for far ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from milepost.backends.rotated import (
    DTYPES,
    Waves,
    _counted,  # pyright: ignore[reportPrivateUsage]
    _given,  # pyright: ignore[reportPrivateUsage]
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


def many_ways(call: Call, numbers: Iterable[int]) -> tuple[dict[int, Waves], Waves, bool] | None:
    """Those of the queries in the regimes of these numbers, those of the keys in any of them, as keys stand alike in
    all, and whether pairs neighbour; [1 n width/2] in float32.

    None where no kernel can turn by them.
    """
    part = _rotation(call)
    if part is None or call.keys_turned or call.q.dtype not in DTYPES:
        return None
    found: dict[int, tuple[Waves, Waves]] = {}
    for number in numbers:
        both = _counted(call, part, call.q.dtype, number) or _given(call, part, number)
        if both is None or any(each.shape[0] > 1 or each.dtype != torch.float32 for each in both[0]):
            return None
        found[number] = both[0], both[1] or both[0]
    keys = next(iter(found.values()))[1]
    return {number: queries for number, (queries, _) in found.items()}, keys, part.pairs == "neighbours"
