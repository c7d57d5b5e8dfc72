"""Queries and keys rotated by where they stand: angles are made as they are turned, and no table is built."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost.call.call import Call
from milepost.memory.fixed import is_fixed
from milepost.memory.table import kept

WHOLE = (torch.int64, torch.int32)


def rotated_at(call: Call, part: Any, q: Tensor, k: Tensor, number: int = 0) -> tuple[Tensor, Tensor] | None:
    """q and k rotated where the tokens stand in the regime of that number, by our own kernel.

    None where an angle is not the position times a number, or positions are not whole.
    """
    turns = _turns(part, q.device) if hasattr(part, "steps") and is_fixed(part) else None
    regime = call.scheme.place()[number]
    keys = call.key_position
    p, r = regime.query(keys if call.over_itself else call.position), regime.key(keys)
    if turns is None or p.dtype not in WHOLE or r.dtype not in WHOLE or p.dim() != 2 or r.dim() != 2:
        return None
    if part.beyond(p, None) is not None:
        return None
    # Loaded here, because it needs triton.
    from milepost.backends.triton.rotary.rotate import rotate_qk_at

    by_twos = part.pairs == "neighbours"
    return rotate_qk_at(q, k, turns[0], p, None if p is r else r, size=turns[1], neighbours=by_twos)


@kept(16)
def _turns(part: Any, device: torch.device) -> tuple[Tensor, float] | None:
    """Return the turns of one step, and how long they make a pair."""
    steps = part.steps(device)
    if steps is None:
        return None
    # Loaded here, because it needs triton.
    from milepost.backends.triton.rotary.rotate import turns_of

    return turns_of(steps[0]), steps[1]
