"""Block masks for FlexAttention: which blocks of scores anybody sees."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from milepost.backends.views import View
from milepost.call.call import Call
from milepost.memory.fixed import value_of
from milepost.memory.surroundings import surroundings
from milepost.memory.table import MEMORY
from milepost.seams.parts import Parts
from milepost.seams.verbs import Regime

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def mask_mod(
    scheme: Parts, index: Tensor, key_index: Tensor, documents: Tensor | None = None,
    key_documents: Tensor | None = None, region: tuple[Regime, Tensor, Tensor] | None = None,
) -> MaskMod:  # fmt: skip
    """Return what a scheme hides, as FlexAttention wants it; a region is a regime and the positions it is told by."""
    order_q, order_k = reader(index), reader(key_index)
    own = None if documents is None else reader(documents)
    other = None if key_documents is None else reader(key_documents)
    at, key_at = (None, None) if region is None else (reader(region[1]), reader(region[2]))

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = scheme.see(b, h, order_q(b, i), order_k(b, j))
        seen = (i == i) & (j == j) if seen is None else seen
        if own is not None and other is not None:
            seen = seen & (own(b, i) == other(b, j)) & (own(b, i) >= 0)
        if region is not None and at is not None and key_at is not None:
            inside = region[0].holds(at(b, i), key_at(b, j))
            seen = seen if inside is None else seen & inside
        return seen

    return visible


def block_mask(call: Call, view: View, number: int) -> BlockMask | None:
    """Return the blocks of scores of regime `number` that anybody sees; None where everything is seen."""
    scheme, (b, h, t) = call.scheme, call.q.shape[:3]
    placed = scheme.answering("place")
    if not scheme.answering("see") and call.documents is None and not placed:
        return None
    region = (view.regime, call.position, call.key_position) if placed else None
    mod = mask_mod(scheme, call.index, call.key_index, call.documents, call.key_documents, region)
    tokens = [call.index, call.key_index, call.documents, call.key_documents, call.position, call.key_position]
    by_row = any(each is not None and each.shape[0] > 1 for each in tokens)
    rows = b if by_row or _reads(call, "batch") else None
    heads = (
        h if any(getattr(part, "by_head", False) for part in scheme.answering("see")) or _reads(call, "head") else None
    )

    def make() -> BlockMask:
        return make_block_mask(mod, rows, heads, t, call.k.shape[2], call.q.device)

    # With a layout it follows from the parts that mask, if these cannot change.
    around = surroundings(call.q.device)
    parts = value_of(scheme.answering("see") + placed) if call.layout is not None and call.at_index else None
    if around is None or parts is None:
        return make()
    key = (parts, number, call.layout, rows, heads, t, call.k.shape[2], call.q.device, around)
    found = MEMORY.recall(block_mask, key)
    return MEMORY.keep(block_mask, key, make(), KEPT) if found is None else found


def _reads(call: Call, number: Literal["batch", "head"]) -> bool:
    """Whether what a pair sees may differ by that number, which no part announced."""
    return call.scheme.reader_of(number, "see", call.index, call.key_index, call.length) is not None


KEPT = 64
"""How many block masks are remembered."""


def make_block_mask(
    mod: MaskMod, rows: int | None, heads: int | None, t: int, s: int, device: torch.device | str
) -> BlockMask:
    """create_block_mask, compiled where that pays."""
    if torch.device(device).type != "cuda" or torch.compiler.is_compiling():
        return create_block_mask(mod, rows, heads, t, s, device=str(device))
    with many_graphs():
        return _fused_mask()(mod, rows, heads, t, s, device=str(device))


def reader(values: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Look up values [b|1 n|1] by batch and token."""
    # Indexed by tensors alone: torch 2.9 maps no index that mixes them with numbers.
    if values.shape[1] == 1:
        column = values[:, 0]
        return (lambda b, i: column[0] + 0 * i) if len(column) == 1 else (lambda b, i: column[b] + 0 * i)
    if values.shape[0] == 1:
        row = values[0]
        return lambda b, i: row[i] + 0 * b
    return lambda b, i: values[b, i]


@functools.cache
def _fused_mask() -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask)


def many_graphs() -> contextlib.AbstractContextManager[object]:
    """Every scheme is a graph of its own; past torch's usual limit it would go on unfused without a word."""
    # Imported here, because torch's compiler brings sympy along.
    from torch._dynamo import config

    # A number of a method, such as a factor, is a constant of its graph: left symbolic, it fails in torch 2.11.
    return config.patch(recompile_limit=4096, accumulated_recompile_limit=8192, specialize_float=True)  # pyright: ignore
