"""Heads: ranks exchange them, so that each has some of the heads over the whole text (Ulysses)."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.attend import attend
from milepost.choice import CHOICES
from milepost.memory.table import MEMORY
from milepost.parallel.collectives import exchange
from milepost.parallel.shards import assembled
from milepost.parallel.text import Text
from milepost.scheme import Scheme
from milepost.seams.heads import Heads


def refuse(h: int, g: int, ranks: int, rank: int, scheme: Scheme) -> None:
    """Raise where the heads cannot be shared among the ranks."""
    if h % ranks or (g % ranks and ranks % g):
        raise ValueError(
            f'parallel.attend(how="heads"): {h} query heads and {g} key heads cannot be shared evenly by '
            f'{ranks} ranks; use how="gather" or how="ring", or a mesh of another size'
        )
    try:
        some_heads(scheme, rank * (h // ranks), h // ranks)
    except ValueError as error:
        raise ValueError(f'parallel.attend(how="heads"): {error}; use how="gather"') from None


def some_heads(scheme: Scheme, first: int, count: int) -> Scheme:
    """Return scheme.take_heads(first, count), made once, so that calls under it are remembered."""
    found = MEMORY.recall(scheme, (Heads, first, count))
    made = scheme.take_heads(first, count) if found is None else found
    return MEMORY.keep(scheme, (Heads, first, count), made, CHOICES) if found is None else made


def by_heads(q: Tensor, k: Tensor, v: Tensor, text: Text) -> Tensor:
    """Return attention of this rank's queries."""
    whole, each = (0, text.layout.length), q.shape[1] // text.layout.ranks
    scheme = some_heads(text.scheme, text.rank * each, each)
    out = attend(*_to_heads(q, k, v, text), scheme, backend=text.backend, **text.options(whole, whole))
    return _to_tokens(out, text)


def _to_heads(q: Tensor, k: Tensor, v: Tensor, text: Text) -> tuple[Tensor, Tensor, Tensor]:
    """Return the whole text of this rank's heads, from this rank's tokens of all heads."""
    layout, ranks = text.layout, range(text.layout.ranks)
    b, h, _, d = q.shape
    each, g, dv = h // len(ranks), k.shape[1], v.shape[3]
    # Where there are more ranks than key heads, several ranks get the same one.
    keys = [slice(rank * each * g // h, -(-(rank + 1) * each * g // h)) for rank in ranks]
    own = keys[text.rank].stop - keys[text.rank].start
    # One tensor travels, its tokens first.
    sent: list[Tensor] = []
    for rank, some in enumerate(keys):
        parts = q[:, rank * each : (rank + 1) * each], k[:, some], v[:, some]
        sent.append(torch.cat([x.movedim(2, 0).flatten(2) for x in parts], -1))
    shares = exchange(sent, [layout.tokens(rank) for rank in ranks], text.group)
    (found,) = assembled(shares, layout, [(0, layout.length)])
    of_q, of_k, of_v = torch.split(found, [each * d, own * d, own * dv], -1)
    # [t b heads·d] → [b heads t d]
    shapes = (of_q, each), (of_k, own), (of_v, own)
    qq, kk, vv = (x.reshape(len(x), b, n, -1).permute(1, 2, 0, 3).contiguous() for x, n in shapes)
    return qq, kk, vv


def _to_tokens(out: Tensor, text: Text) -> Tensor:
    """Return this rank's tokens of all heads, from the whole text of this rank's heads [b h t d]."""
    layout, ranks = text.layout, range(text.layout.ranks)
    b, each, _, dv = out.shape
    rows, t = out.movedim(2, 0).flatten(2), layout.tokens(text.rank)
    sent = [torch.cat([rows[slice(*span)] for span in layout.spans[rank]] or [rows[:0]]) for rank in ranks]
    # [rank t b heads d]: the heads of all ranks, in order.
    found = torch.stack(exchange(sent, [t] * len(ranks), text.group)).view(len(ranks), t, b, each, dv)
    return found.permute(2, 0, 3, 1, 4).reshape(b, each * len(ranks), t, dv)
