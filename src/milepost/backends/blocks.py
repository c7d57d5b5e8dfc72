"""Blocks of rows with the keys that they may see, where the layout or the documents tell which."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.backends.estimate import keys_of
from milepost.backends.views import mask
from milepost.call.call import Call, Layout
from milepost.memory.surroundings import surroundings
from milepost.memory.table import kept
from milepost.seams.band import Band

ROWS = 256
"""Rows of a block where nothing says otherwise."""
LEAST_ROWS = 64
MOST_BLOCKS = 512
KEPT = 32
"""How many lists of blocks are remembered."""


@dataclass(frozen=True)
class Block:
    """Some rows and the keys that any of them sees."""

    rows: slice
    sinks: int
    """How many of the first keys are seen besides; they lie before `keys`."""
    keys: slice
    added: Tensor | None = None
    """0 where a key is seen and −∞ where not, [b|1 h|1 rows keys]; None where all are."""
    alive: Tensor | None = None
    """Which rows see any key at all, [b|1 h|1 rows 1]; None where all do."""


def blocks(call: Call) -> tuple[Block, ...] | None:
    """Return the blocks of a call, or None where nothing can be left out, or it cannot be told."""
    # A compiled graph would be made for one length alone; and there may be no values to look at.
    if surroundings(call.q.device) is None:
        return None
    layout, t, s = call.layout, call.queries.count, call.keys.count
    if layout is not None:
        band = call.scheme.band()
        return None if band is None else _of_band(band, layout, t, s, call.q.dtype, call.q.device)
    if call.documents is not None and call.q.device.type == "cpu":
        return _of_documents(call)
    return None


def formed_pairs(made: tuple[Block, ...]) -> int:
    """Return how many scores the blocks form."""
    return sum((block.rows.stop - block.rows.start) * _width(block) for block in made)


@kept(KEPT)
def _of_band(
    band: Band, layout: Layout, t: int, s: int, dtype: torch.dtype, device: torch.device
) -> tuple[Block, ...] | None:
    """Return blocks that follow from the layout alone: made once, and kept."""
    width = band.behind + band.ahead if band.chunk is None else min(band.behind + band.ahead, 2 * band.chunk)
    if not width < s / 2:
        return None
    # Where the first keys alone are seen, the width is −∞.
    step = max(LEAST_ROWS, min(ROWS, math.ceil(max(width, 0) / 2 / LEAST_ROWS) * LEAST_ROWS))
    if t > step * MOST_BLOCKS:
        step = math.ceil(t / MOST_BLOCKS)
    made: list[Block] = []
    masks: dict[tuple[int, int, int, int], tuple[Tensor | None, Tensor | None]] = {}
    for first in range(0, t, step):
        rows = slice(first, min(first + step, t))
        sinks, keys = keys_of(band, layout, rows.start, rows.stop - 1, s)
        # Inside a long text every block looks like the one before it.
        key = (rows.stop - rows.start, sinks, keys.stop - keys.start, layout.offset + rows.start - keys.start)
        if key not in masks or band.chunk is not None:
            masks[key] = _seen(band, layout, rows, sinks, keys, dtype, device)
        made.append(Block(rows, sinks, keys, *masks[key]))
    # Where nobody sees anything there is nothing to cut, and zeros made from nothing would have no gradient.
    return tuple(made) if any(map(_width, made)) else None


def _seen(
    band: Band, layout: Layout, rows: slice, sinks: int, keys: slice, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return what is added to the scores of a block, and which of its rows see anything."""
    i = torch.arange(rows.start, rows.stop, device=device)[:, None] + layout.first
    j = torch.cat((torch.arange(sinks, device=device), torch.arange(keys.start, keys.stop, device=device)))
    j = j + layout.key_first
    seen = (j - i <= band.ahead) & ((i - j < band.behind) | (j < band.sinks))
    if band.chunk is not None:
        seen = seen & (i // band.chunk == j // band.chunk)
    return (None, None) if bool(seen.all()) else _added(seen[None, None], dtype)


def _of_documents(call: Call) -> tuple[Block, ...] | None:
    """Return blocks against the keys of the documents that their rows belong to."""
    assert call.documents is not None
    assert call.key_documents is not None
    t, s = call.queries.count, call.keys.count
    if t <= ROWS:
        return None
    made: list[Block] = []
    for first in range(0, t, ROWS):
        rows = slice(first, min(first + ROWS, t))
        own = call.documents[:, rows]
        found = torch.isin(call.key_documents, own[own >= 0]).any(0).nonzero()[:, 0]
        keys = slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 0)
        seen = mask(call, rows, keys)
        assert seen is not None
        made.append(Block(rows, 0, keys, *_added(seen, call.q.dtype)))
    return tuple(made) if formed_pairs(tuple(made)) < t * s / 2 else None


def _added(seen: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """0 where seen and −∞ elsewhere: torch's function adds it, and would make it from a boolean at every call.

    A row that sees nothing is left even, so that its softmax is finite; the second answer takes it away again.
    """
    alive = seen.any(-1, keepdim=True)
    hidden = ~seen & alive
    added = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(hidden, -torch.inf)
    return added, None if bool(alive.all()) else alive


def _width(block: Block) -> int:
    return block.sinks + block.keys.stop - block.keys.start
