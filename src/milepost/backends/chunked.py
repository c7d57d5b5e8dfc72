"""Any scheme, a few rows at a time: memory O(t · chunk) forward and backward, and keys nobody sees left out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from milepost.backends.as_before import as_before
from milepost.backends.estimate import seconds, seen_pairs
from milepost.backends.joined import fields_of, in_fields
from milepost.backends.scores import Prepared, masked, prepare, softmax_rows
from milepost.backends.views import possible_keys, sure_keys, values
from milepost.call.call import Call
from milepost.memory.internals import transformed

PLAYED = True
CANNOT: dict[str, str] = {}

# Scores held at once. Larger blocks leave the cache, smaller ones waste the matrix product.
BLOCK = 1 << 23
LEAST_ROWS = 16


def refuses(call: Call) -> str | None:
    """Nothing: any scheme can be cut into rows."""
    return None


def cost(call: Call) -> float:
    """Return plain products, and several passes over every score."""
    return seconds(call, seen_pairs(call), each=4 if call.q.device.type == "cpu" else 40, launches=30)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return blocks of rows, each against all the keys that it may see; the backward pass makes each block again."""
    v, apart = values(call, call.score_dtype), fields_of(call)
    if apart is not None:
        return in_fields(call, apart, v)
    made = prepare(call)
    t = call.q.shape[2]
    # A GPU has no cache to stay in, and wants fewer and larger products.
    largest = BLOCK * (8 if call.q.device.type == "cuda" else 1)
    if call.q.shape[0] * call.q.shape[1] * t * call.k.shape[2] <= largest:
        out, lse = _block(made, v, 0, t)
        return out.to(call.v.dtype), lse
    # The backward pass holds a few more blocks at once, so each is smaller.
    block = largest * 3 // 4 if call.needs_grad else largest
    step = max(LEAST_ROWS, block // (call.q.shape[0] * call.q.shape[1] * call.k.shape[2]))
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    # What a call finds out once, it finds out here: a graph that is compiled allows no such thing within a checkpoint.
    _ = call.length, call.index, call.key_index
    # torch.func allows no checkpoint, and gradients that it takes keep all blocks.
    makes_again = call.needs_grad and (torch.compiler.is_compiling() or not transformed())
    again = as_before(made, _block) if makes_again else None
    for first in range(0, t, step):
        last = min(first + step, t)
        if again is not None:
            out, lse = checkpoint(again(), v, first, last, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore
        else:
            out, lse = _block(made, v, first, last)
        outs.append(out.to(call.v.dtype))  # pyright: ignore
        sums.extend([] if lse is None else [lse])  # pyright: ignore
    return torch.cat(outs, 2), torch.cat(sums, 2) if sums else None


def _block(made: Prepared, v: Tensor, first: int, last: int) -> tuple[Tensor, Tensor | None]:
    """Return attention of the rows first … last − 1."""
    call = made.call
    rows, keys, sure = slice(first, last), slice(None), slice(0, 0)
    if call.layout is not None and not torch.compiler.is_compiling():
        keys, sure = possible_keys(call, first, last - 1), sure_keys(call, first, last - 1)
    scores = masked(made, rows, keys, sure)
    all_see = sure.start < sure.stop and not call.scheme.answering("place")
    return softmax_rows(made, scores, v[:, :, keys], rows, keys, all_see)
