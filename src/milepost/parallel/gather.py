"""Gather: every rank fetches the keys that its queries see. Right for every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from milepost.attend import attend
from milepost.call.merge import merge
from milepost.parallel.heads import some_heads
from milepost.parallel.layout import Span, joined
from milepost.parallel.shards import fetch
from milepost.parallel.text import Text

SHARE = 0.5
"""The share of the others' keys up to which neighbours are fetched by themselves."""

FEW = 16
"""The spans of a rank up to which it is worked out who sends which neighbours."""


class Keys(NamedTuple):
    """Keys and values of a span of the text, [b g s d]."""

    span: Span
    k: Tensor
    v: Tensor


def by_gather(q: Tensor, k: Tensor, v: Tensor, x: Tensor | None, text: Text, key_heads: int | None) -> Tensor:
    """Return attention of this rank's queries. key_heads: how many are fetched at once, and again for gradients."""
    wanted = wanted_spans(text)
    if key_heads is None:
        return _attended(q, k, v, x, text, wanted)
    each, outs = q.shape[1] // k.shape[1], list[Tensor]()
    for first in range(0, k.shape[1], key_heads):
        heads = slice(first, min(first + key_heads, k.shape[1]))
        queries = slice(heads.start * each, heads.stop * each)
        some = text.under(some_heads(text.scheme, queries.start, queries.stop - queries.start))
        given = q[:, queries], k[:, heads], v[:, heads], x, some, wanted
        outs.append(checkpoint(_attended, *given, use_reentrant=False, preserve_rng_state=False))  # pyright: ignore
    return torch.cat(outs, 1)


def wanted_spans(text: Text) -> list[list[Span]] | None:
    """Return the spans that each rank fetches, those its queries see; None where it is best to fetch the whole text."""
    layout = text.layout
    if max(map(len, layout.spans)) > FEW:
        return None
    near = [[text.near(span) for span in spans] for spans in layout.spans]
    if all(each is not None for rank in near for each in rank):
        found = [joined(span for spans in rank for span in spans or ()) or [(0, 0)] for rank in near]
        if fetched_tokens(text, found) <= SHARE * (layout.ranks - 1) * layout.length:
            return found
    return None


def fetched_tokens(text: Text, wanted: Sequence[Sequence[Span]]) -> int:
    """Return how many tokens of others all ranks fetch together."""
    of = text.layout.within
    pairs = [(rank, other) for rank in range(text.layout.ranks) for other in range(text.layout.ranks) if rank != other]
    return sum(stop - start for rank, other in pairs for span in wanted[rank] for (start, stop), _ in of(other, span))


def _fetched(k: Tensor, v: Tensor, text: Text, wanted: Sequence[Sequence[Span]]) -> list[Keys]:
    """Return the keys and values of the spans that this rank wants."""
    # One tensor travels, its tokens first.
    fetched = fetch(torch.cat([k, v], -1).movedim(2, 0), text.layout, text.group, wanted)
    widths = [k.shape[-1], v.shape[-1]]
    return [
        Keys(span, *(each.movedim(0, 2).contiguous() for each in torch.split(kv, widths, -1))) for span, kv in fetched
    ]


def _attended(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor | None, text: Text, wanted: Sequence[Sequence[Span]] | None
) -> Tensor:
    """Return attention of some heads; wanted: the spans that each rank fetches, or None for the whole text."""
    layout = text.layout
    whole = [[(0, layout.length)]] * layout.ranks
    found = _fetched(k, v, text, wanted or whole)
    inputs = None
    if x is not None:
        inputs = fetch(x.movedim(1, 0), layout, text.group, whole)[0][1].movedim(0, 1)
    outs: list[Tensor] = []
    for rows, place in layout.local(text.rank):
        spans = [text.sees(rows)] if wanted is None else text.near(rows) or []
        parts: list[Tensor] = []
        for span in spans:
            near = next(each for each in found if each.span[0] <= span[0] and span[1] <= each.span[1])
            seen = slice(span[0] - near.span[0], span[1] - near.span[0])
            given = q[:, :, place], near.k[:, :, seen], near.v[:, :, seen], text.scheme
            options = text.options(rows, span)
            if inputs is not None:
                options["x"] = inputs[:, slice(*span)]
            if len(spans) == 1:
                parts.append(attend(*given, backend=text.backend, **options))
            else:
                # The first keys of a text lie apart from a window.
                parts += attend(*given, backend=text.backend, return_lse=True, **options)
        outs.append(parts[0] if len(spans) == 1 else merge(*parts, rest=text.scheme.rest())[0])
    if outs:
        return torch.cat(outs, 2)
    # A rank without tokens takes its part in the backward pass, too.
    nothing = q.new_zeros(*q.shape[:3], v.shape[-1])
    for each in (q, *(one for keys in found for one in (keys.k, keys.v)), *([] if inputs is None else [inputs])):
        nothing = nothing + each.flatten()[:0].sum()
    return nothing
