"""What is known of a text without a model: what a byte costs by how often it comes, or follows the one before it, and
how much of what is judged stands in what is trained on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTED = 1 << 24
"""Bytes of training text that pairs are counted in; more change nothing."""


def by_frequency(text: Tensor) -> float:
    """Return the entropy of single bytes, in bits."""
    shares = torch.bincount(text.long(), minlength=256).double() / max(1, len(text))
    return float(-torch.xlogy(shares, shares).sum() / math.log(2))


def by_pairs(train: Tensor, test: Tensor) -> float:
    """Return the bits of a byte of the test text to a table of byte pairs, counted in the training text.

    p(b | a) = (n_ab + p(b)) / (n_a + 1),   p(b) = (n_b + 1) / (n + 256)
    """
    seen = train[:COUNTED].cpu().long()
    counts = torch.bincount(seen[:-1] * 256 + seen[1:], minlength=256 * 256).view(256, 256).double()
    alone = (torch.bincount(seen, minlength=256).double() + 1) / (len(seen) + 256)
    table = (counts + alone) / (counts.sum(1, keepdim=True) + 1)
    judged = test[:COUNTED].long()
    return float(-table[judged[:-1], judged[1:]].log2().mean()) if len(judged) > 1 else math.nan


DOUBLED = 5
"""Stretches of 2⁵ = 32 bytes are looked for."""
LOOKED_AT = 1 << 18
"""Bytes of the judged text in which they are."""
AT_ONCE = 1 << 20
"""Bytes of the training text that are looked through at once: what is made of them fits into a processor's cache."""


def shared_with(train: Tensor, test: Tensor) -> float:
    """Return which share of the stretches of 32 bytes in the judged text stand in the training text, too.

    Of a text by many hands a few per cent do, of files that were made from one another most.
    """
    known, judged = train[:COUNTED].cpu().numpy(), _hashes(test[:LOOKED_AT].cpu().numpy())
    if not len(judged):
        return math.nan
    wanted, places = np.unique(judged, return_inverse=True)
    # Most stretches of a long text are told apart by their last bits from all that are looked for.
    ends = np.zeros(1 << 24, dtype=bool)
    ends[wanted & (len(ends) - 1)] = True
    found = np.zeros(len(wanted), dtype=bool)
    for start in range(0, len(known), AT_ONCE):
        some = _hashes(known[start : start + AT_ONCE + (1 << DOUBLED) - 1])
        some = some[ends[some & (len(ends) - 1)]]
        at = np.minimum(np.searchsorted(wanted, some), len(wanted) - 1)
        found[at[wanted[at] == some]] = True
    return float(found[places].mean())


def _hashes(text: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a number for every stretch of 32 bytes, put together from those of its halves."""
    made = text.astype(np.uint64) + np.uint64(1)
    for n in range(DOUBLED):
        half = 1 << n
        # Odd, so that nothing is lost modulo 2⁶⁴, and another for each size.
        odd = np.uint64(0x9E3779B97F4A7C15 + 2 * n)
        made = made[:-half] * odd + (made[half:] ^ (made[half:] >> np.uint64(29)))
    return made
