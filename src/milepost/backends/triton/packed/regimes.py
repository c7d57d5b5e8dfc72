"""Regimes that divide tokens by more than their distance, told to the kernels as documents and indices.

A kernel knows two things of a token: to which document it belongs, and its index in it. Tokens of one chunk are a
document of their own; tokens that lie at least two chunks back are those whose chunk's number, taken for an index, is
at least two less; and where a region has the first few keys alone, all others are padding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from milepost.backends.sinks import is_of_keys
from milepost.call.call import Call
from milepost.memory.surroundings import has_numbers
from milepost.memory.tape import aside
from milepost.seams.band import Band
from milepost.seams.verbs import Bound, Regime


def measured(regime: Regime) -> list[Bound]:
    """Return the bounds of a regime that measure more than the distance."""
    return [bound for bound in regime.bounds if not bound.by_distance]


def unmeasured(regime: Regime, band: Band) -> bool:
    """True if a regime divides tokens in a way that neither documents nor indices say."""
    found = measured(regime)
    if not found:
        return False
    bound = found[0]
    if len(found) == 1 and is_of_keys(bound):
        return not within_sinks(regime, band) and band.behind < math.inf
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


def within_sinks(regime: Regime, band: Band) -> bool:
    """True if all keys of a regime are sinks, which a window does not hide."""
    return any(is_of_keys(bound) and bound.high <= band.sinks for bound in measured(regime))


def is_empty(call: Call, regime: Regime) -> bool:
    """True if no two tokens of a call can be in a regime, as far as its shapes tell: older chunks of a short text."""
    layout = call.layout
    if layout is None or torch.compiler.is_compiling():
        return False
    # Measures never fall, so that the last query and the first key are furthest apart.
    first, last = layout.key_first, layout.first + call.queries.count - 1
    if last - first < regime.distances()[0]:
        return True
    beyond = first + call.keys.count
    if any(is_of_keys(bound) and (bound.high <= first or bound.low >= beyond) for bound in measured(regime)):
        return True
    others = [bound for bound in measured(regime) if not bound.mirrored]
    if not others or not has_numbers():
        return False
    # These numbers follow from the layout alone; a tape would refuse a tensor on another device than the call's.
    with aside():
        ends = torch.tensor([last, first])
        return any(bool(bound.difference(*ends) < bound.low) for bound in others)


def as_tokens(call: Call, regime: Regime, band: Band) -> dict[str, Any]:
    """Return documents, indices and limits of a regime that `unmeasured` does not refuse, as the kernels take them."""
    bound = measured(regime)[0]
    index, key_index = call.index.long(), call.key_index.long()
    documents, key_documents = call.documents, call.key_documents
    if is_of_keys(bound):
        return _some_keys(call, regime, bound, band)
    low, own, keys = math.ceil(bound.low), bound.measure(index), bound.measure(key_index)
    if not _is_one_value(bound):
        found: dict[str, Any] = {"index": own, "key_index": keys, "ahead": -low, "behind": None}
        return found if documents is None else found | {"documents": documents, "key_documents": key_documents}
    own = own - low
    least, most = regime.distances()
    if documents is not None and key_documents is not None:
        ranks, key_ranks = _ranks((documents, own), (key_documents, keys))
        own = torch.where((documents < 0) | (own < 0), -1, ranks)
        keys = torch.where(key_documents < 0, -1, key_ranks)
    limits = limits_of(min(band.behind, most + 1), min(band.ahead, -least))
    return limits | {"documents": own, "key_documents": keys, "index": index, "key_index": key_index}


def stretch_of_keys(call: Call, regime: Regime, band: Band) -> slice | None:
    """Return the keys of a regime whose bounds, apart from distances, are known; None where tokens have to be read."""
    found = measured(regime)
    if len(found) != 1 or not is_of_keys(found[0]) or call.layout is None or call.documents is not None:
        return None
    if band.sinks or band.behind < math.inf:
        return None
    first, count = call.layout.key_first, call.keys.count
    start, stop = (min(max(each - first, 0), count) for each in (found[0].low, found[0].high))
    return slice(math.ceil(start), math.ceil(stop))


def _some_keys(call: Call, regime: Regime, bound: Bound, band: Band) -> dict[str, Any]:
    """Return the same, where a bound measures keys alone: those outside are nobody's."""
    index, key_index = call.index.long(), call.key_index.long()
    inside = bound.holds(torch.zeros_like(key_index), key_index)
    documents = torch.zeros_like(index) if call.documents is None else call.documents
    own = torch.zeros_like(key_index) if call.key_documents is None else call.key_documents
    least, most = regime.distances()
    behind = math.inf if within_sinks(regime, band) else min(band.behind, most + 1)
    found = {"documents": documents, "key_documents": torch.where(inside, own, -1)}
    return limits_of(behind, min(band.ahead, -least)) | found | {"index": index, "key_index": key_index}


def limits_of(behind: float, ahead: float) -> dict[str, Any]:
    """Return how far back and ahead is seen, as the kernels take it."""
    return {
        "behind": None if behind == math.inf else int(behind),
        "ahead": None if ahead == math.inf else int(ahead),
    }


def _is_one_value(bound: Bound) -> bool:
    """True if the two measures, which are whole numbers, may differ by one number alone."""
    return math.ceil(bound.high) - math.ceil(bound.low) == 1 if bound.high < math.inf else False


def _ranks(queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Pairs of a document and a chunk, [b|1 t] and [b|1 s], numbered from 0 in their order: both may be any numbers."""
    rows = max(each.shape[0] for each in (*queries, *keys))
    documents, chunks = (
        torch.cat([each.long().expand(rows, -1) for each in both], 1) for both in zip(queries, keys, strict=True)
    )
    by_chunk = chunks.argsort(1)
    found, by_document = documents.gather(1, by_chunk).sort(stable=True, dim=1)
    order = by_chunk.gather(1, by_document)
    chunks = chunks.gather(1, order)
    counted = torch.zeros_like(found)
    counted[:, 1:] = ((found.diff(dim=1) != 0) | (chunks.diff(dim=1) != 0)).cumsum(1)
    ranks = torch.empty_like(found).scatter_(1, order, counted)
    count = queries[0].shape[1]
    return ranks[:, :count], ranks[:, count:]
