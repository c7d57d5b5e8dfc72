"""What a byte costs without a model: by how often it comes, and by how often it follows the one before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

COUNTED = 1 << 24
"""Bytes of training text that pairs are counted in; more change nothing."""


def by_frequency(text: Tensor) -> float:
    """The entropy of single bytes, in bits."""
    shares = torch.bincount(text.long(), minlength=256).double() / max(1, len(text))
    return float(-torch.xlogy(shares, shares).sum() / math.log(2))


def by_pairs(train: Tensor, test: Tensor) -> float:
    """The bits of a byte of the test text to a table of byte pairs, counted in the training text.

    p(b | a) = (n_ab + p(b)) / (n_a + 1),   p(b) = (n_b + 1) / (n + 256)
    """
    seen = train[:COUNTED].cpu().long()
    counts = torch.bincount(seen[:-1] * 256 + seen[1:], minlength=256 * 256).view(256, 256).double()
    alone = (torch.bincount(seen, minlength=256).double() + 1) / (len(seen) + 256)
    table = (counts + alone) / (counts.sum(1, keepdim=True) + 1)
    judged = test[:COUNTED].long()
    return float(-table[judged[:-1], judged[1:]].log2().mean()) if len(judged) > 1 else math.nan
