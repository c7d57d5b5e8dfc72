"""Regimes that divide tokens by more than their distance, told to the kernels as documents and indices.

A kernel knows two things of a token: to which document it belongs, and its index in it. Tokens of one chunk are a
document of their own; tokens that lie at least two chunks back are those whose chunk's number, taken for an index, is
at least two less.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from milepost.call.call import Call
from milepost.seams.band import Band
from milepost.seams.verbs import Bound, Regime

MANY = 1 << 31
"""More than there are chunks of a document."""


def measured(regime: Regime) -> list[Bound]:
    """The bounds of a regime that measure more than the distance."""
    return [bound for bound in regime.bounds if not bound.by_distance]


def unmeasured(call: Call, regime: Regime, band: Band) -> bool:
    """Whether a regime divides tokens in a way that neither documents nor indices say."""
    found = measured(regime)
    if not found:
        return False
    bound = found[0]
    if len(found) > 1 or bound.mirrored or bound.key_measure is not None or bound.low == -math.inf:
        return True
    if _is_one_value(bound):
        return False
    # The kernels then know where tokens stand by this measure alone: all that is visible must follow from it.
    others = (each for each in regime.bounds if each is not bound)
    return not (
        bound.high == math.inf
        and bound.low > 0
        and all(each.implied for each in others)
        and (band.behind, band.sinks) == (math.inf, 0)
        and band.ahead >= 0
    )


def is_empty(call: Call, regime: Regime) -> bool:
    """Whether no two tokens of a call can be in a regime, as far as its shapes tell: older chunks of a short text."""
    layout, found = call.layout, measured(regime)
    if layout is None or not found or torch.compiler.is_compiling():
        return False
    first, last = torch.tensor([layout.key_first, layout.first + call.queries.count - 1])
    # Measures never fall, so that the last query and the first key are furthest apart.
    return bool(found[0].measure(last) - found[0].measure(first) < found[0].low)


def as_tokens(call: Call, regime: Regime, band: Band) -> dict[str, Any]:
    """Documents, indices and limits of a regime that `unmeasured` does not refuse, as the kernels take them."""
    bound = measured(regime)[0]
    low, index, key_index = math.ceil(bound.low), call.index.long(), call.key_index.long()
    own, keys = bound.measure(index), bound.measure(key_index)
    documents, key_documents = call.documents, call.key_documents
    if not _is_one_value(bound):
        found: dict[str, Any] = {"index": own, "key_index": keys, "ahead": -low, "behind": None}
        return found if documents is None else found | {"documents": documents, "key_documents": key_documents}
    own = own - low
    least, most = regime.distances()
    if documents is not None and key_documents is not None:
        ranks, key_ranks = _ranks(documents, key_documents)
        own = torch.where((documents < 0) | (own < 0), -1, ranks * MANY + own)
        keys = torch.where(key_documents < 0, -1, key_ranks * MANY + keys)
    behind, ahead = min(band.behind, most + 1), min(band.ahead, -least)
    return {
        "documents": own, "key_documents": keys, "index": index, "key_index": key_index,
        "behind": None if behind == math.inf else int(behind), "ahead": None if ahead == math.inf else int(ahead),
    }  # fmt: skip


def _is_one_value(bound: Bound) -> bool:
    """Whether the two measures, which are whole numbers, may differ by one number alone."""
    return math.ceil(bound.high) - math.ceil(bound.low) == 1 if bound.high < math.inf else False


def _ranks(documents: Tensor, key_documents: Tensor) -> tuple[Tensor, Tensor]:
    """Documents numbered from 0 in their order, since theirs may be any: [b|1 t] and [b|1 s], in int64."""
    rows = max(documents.shape[0], key_documents.shape[0])
    both = torch.cat((documents.long().expand(rows, -1), key_documents.long().expand(rows, -1)), 1)
    found, order = both.sort(1)
    counted = torch.zeros_like(found)
    counted[:, 1:] = (found[:, 1:] != found[:, :-1]).cumsum(1)
    ranks = torch.empty_like(found).scatter_(1, order, counted)
    return ranks[:, : documents.shape[1]], ranks[:, documents.shape[1] :]
