"""Tables of vectors looked up by distance, as the kernels take them: multiplied by queries and keys beforehand.

    score_ij  =  c_i · ( ⟨q_i, k_j⟩ + (q_i + u)·K[e] + k_j·Q[e] ),   e = clamp(i − j, first, last)

All keys from `last` on behind have one row of each table. (q_i + u)·K[last] is then a number that a whole row of scores
has in common, which moves its log-sum-exp and nothing else, and k_j·Q[last] is what a query longer by Q[last] gives.
With these two taken out, far keys have nothing to look up:

    by_row[i, e]  =  (q_i + u)·(K[e] − K[last]),    by_key[j, e]  =  k_j·(Q[e] − Q[last]),    q_i  ←  q_i + Q[last]

Gradients of tables, queries and keys are those of the two products, which torch gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from milepost.backends.triton.attention.biases import by_place, has_facet
from milepost.backends.views import fitting
from milepost.call.call import Call
from milepost.memory.surroundings import has_numbers
from milepost.seams.arguments import spell
from milepost.seams.facets import HasSlopes
from milepost.seams.verbs import Relation, Table

Pair = tuple[Tensor, Tensor]
"""Queries and keys."""
LONGEST = 4096
"""Distances that a product may have: each takes a number of memory a token and head."""
SQUARE = 128
"""Tokens of a square: see GRANULE in `score.py`, which needs triton."""
ROUND = 16
"""Distances come in multiples of it, so that what belongs to a token begins at an even address."""


@dataclass(frozen=True)
class Products:
    """What tables make of one call: queries and keys as the kernels read them, and what they add by distance."""

    q: Tensor
    k: Tensor
    by_row: Tensor | None
    """[b h t n], for the distances first … first + n − 1, or as `diagonal_layout` has them; 0 past them."""
    by_key: Tensor | None
    """[b h s n]."""
    first: int
    common: Tensor | None
    """[b h t], what all scores of a row have more than these say, before their scale; None where nobody asked."""

    @property
    def facets(self) -> dict[str, Any]:
        """Return as `flash` takes them."""
        return {"by_row": self.by_row, "by_key": self.by_key, "first": self.first}


def unrelated(call: Call, few: bool, widest: int) -> str | None:
    """Return why the kernels cannot add what tables of vectors give."""
    for part in call.scheme.answering("relate"):
        if not call.at_index:
            return f"{spell(part)} goes by where tokens stand, and the kernels measure by their indices"
        if call.index_given and not by_place(call):
            return f"{spell(part)} has one place for each distance, and given indices may have two tokens there"
        if call.scheme.answering("place"):
            return f"{spell(part)} with parts that move tokens is unsupported by these kernels"
        if few:
            return f"{spell(part)} is not decoded by these kernels: there are few queries"
        if _longest(call, part) > LONGEST:
            return f"{spell(part)} tells {_longest(call, part)} distances apart, and the kernels take {LONGEST} at most"
        if call.scheme.answering("turn") and 2 * call.q.shape[-1] > widest:
            return f"{spell(part)} reads raw keys and turned ones, too wide together for heads of over {widest // 2}"
    return _beside(call)


def _beside(call: Call) -> str | None:
    """Return why not together with the other parts."""
    related = call.scheme.answering("relate")
    if not related:
        return None
    for part in call.scheme.answering("bend"):
        if has_facet(call, part, "cap"):
            # What a whole row has in common is then no longer nothing to the softmax.
            return f"{spell(part)} caps what {spell(related[0])} adds to, which these kernels do not do"
        slopes = part.slopes(1) if isinstance(part, HasSlopes) and has_facet(call, part, "slopes") else None
        # A step besides is a table of two.
        if slopes is None or slopes.step is not None:
            return f"{spell(part)} adds by distance next to {spell(related[0])}, and these kernels do one of the two"
    for part in call.scheme.answering("sharpen"):
        if isinstance(part, nn.Module) and any(each.requires_grad for each in part.parameters()):
            return f"{spell(part)} learns to sharpen together with {spell(related[0])}, which these kernels do not do"
    return None


def _longest(call: Call, part: object) -> float:
    """Return how many distances a part may tell apart in this call, as far as is known before its tables are made."""
    nearest, furthest = _distances(call)
    reach = getattr(part, "reach", None)
    reach = math.inf if reach is None else reach
    return min(furthest, reach) - max(nearest, -reach) + 1


def _distances(call: Call) -> tuple[int, int]:
    """Return the least and the largest distance between a query and a key that it sees."""
    band = call.scheme.band()
    assert band is not None
    if call.queries.first is not None and call.keys.first is not None:
        nearest, furthest = _offset(call) - call.keys.count + 1, _offset(call) + call.queries.count - 1
    else:
        # Without an index, every index is below the number of keys.
        nearest, furthest = 1 - call.keys.count, call.keys.count - 1
    nearest = max(nearest, -band.ahead)
    return int(nearest), int(max(nearest, furthest if band.sinks else min(furthest, band.behind - 1)))


class Entry(NamedTuple):
    """One table: vectors by distance, and that of all that are further on."""

    of_keys: bool
    """Whether queries meet them, in place of keys; otherwise keys do, in place of queries."""
    near: Tensor
    """[h|1 n d]."""
    far: Tensor
    """[h|1 1 d]."""
    shift: Tensor | None
    """[h|1 1 d], what is added to the queries first."""


class Lookup(NamedTuple):
    """What tables say of the distances of one call, before queries and keys meet them."""

    entries: tuple[Entry, ...]
    first: int
    many: int
    """Distances, from the first on; 0: all are alike."""
    squares: bool
    """Whether each square of tokens has those that it needs, and nothing is further on."""
    even: bool
    """True if products are laid out by `diagonal_layout`."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors in it, in their order."""
        return tuple(each for entry in self.entries for each in entry if isinstance(each, Tensor))

    def with_tensors(self, given: Sequence[Tensor]) -> Lookup:
        """Return the same with other tensors."""
        left = iter(given)
        return self._replace(
            entries=tuple([
                Entry(entry.of_keys, next(left), next(left), None if entry.shift is None else next(left))
                for entry in self.entries
            ])
        )  # fmt: skip

    def of(self, heads: slice) -> Lookup:
        """Return that of some heads."""
        return self._replace(entries=tuple(
            entry._replace(**{name: each[heads] for name, each in entry._asdict().items()
                              if isinstance(each, Tensor) and each.shape[0] > 1})
            for entry in self.entries
        ))  # fmt: skip


def lookup(call: Call) -> Lookup:
    """Find the vectors of all distances that occur."""
    nearest, furthest = _distances(call)
    relations = fitting(call, _tables(call, max(abs(nearest), abs(furthest))))
    first, last = _ends(relations, nearest, furthest)
    squares = _in_squares(call, nearest, furthest, last - first)
    if squares:
        # Every distance there is and one more, which makes their number twice that of the tokens.
        first, last = nearest, furthest + 1
    entries: list[Entry] = []
    for relation in relations:
        shift = None if relation.shift is None else relation.shift[:, None]
        if relation.keys is not None:
            entries.append(Entry(True, *_split(relation.keys, first, last, call, squares), shift))
        if relation.queries is not None:
            entries.append(Entry(False, *_split(relation.queries, first, last, call, squares), None))
    return Lookup(tuple(entries), first, last - first, squares, squares or _is_diagonal(call, nearest, first))


def products(call: Call, found: Lookup, turned: Pair, raw: Pair, common: bool) -> Products:
    """Multiply vectors by raw queries and keys. common: whether the true log-sum-exp is wanted."""
    (q, k), (queries, keys) = turned, raw
    by_row, by_key, everywhere, longer = None, None, None, None
    for entry in found.entries:
        own = queries if entry.shift is None else _plus(queries, entry.shift)
        x = own if entry.of_keys else _repeated(keys, queries.shape[1])
        made = None if not found.many else _multiplied(call, x, entry, found)
        if entry.of_keys:
            by_row = _sum(by_row, made)
            if common and not found.squares:
                everywhere = _sum(everywhere, (own.float() * entry.far.float()).sum(-1))
        else:
            by_key = _sum(by_key, made)
            longer = longer if found.squares else _sum(longer, entry.far)
    if longer is not None:
        q, k = _longer(turned, raw, longer)
    return Products(q, k, by_row, by_key, found.first, everywhere)


def size(call: Call, found: Lookup) -> int:
    """Return bytes of the products of all heads."""
    tokens = sum(call.queries.count if entry.of_keys else call.keys.count for entry in found.entries)
    columns = call.keys.count + SQUARE if found.squares else found.many + ROUND
    return call.q.shape[0] * call.q.shape[1] * tokens * columns * call.q.itemsize


def distances(*products: Tensor | None) -> int:
    """Return how many distances products tell apart; 0 where there are none."""
    some = next((each for each in products if each is not None), None)
    # In that layout there are a few columns more.
    return 0 if some is None else some.shape[-1] if some.dim() == 4 else some.shape[-1] - ROUND


def _tables(call: Call, span: int) -> tuple[Relation, ...]:
    """Return the tables, multiplied in the dtype of queries and keys where these have two bytes, as the products do.

    As every layer of a model does that runs in it: sums are in float32, and weights get their gradients in their own
    dtype.
    """
    if call.q.itemsize > 2:
        return call.scheme.relate(span)
    # Inside another autocast, weights that were cast would be kept until it ends, though they may change before.
    with torch.autocast(call.q.device.type, call.q.dtype, cache_enabled=False):
        return call.scheme.relate(span)


def _in_squares(call: Call, nearest: int, furthest: int, many: int) -> bool:
    """True if each square of tokens has distances of its own, and fewer: in an encoder no longer than the reach."""
    t = call.queries.count
    if not _is_diagonal(call, nearest, nearest, squares=True) or _offset(call) or t != call.keys.count or t % SQUARE:
        return False
    return furthest - nearest == 2 * t - 2 and many > t + SQUARE


def _is_diagonal(call: Call, nearest: int, first: int, squares: bool = False) -> bool:
    """True if products are laid out for tiles to be read in whole lines: where tokens count up, none is ahead of the
    first distance, and a row sees every distance that its tiles hold: a number that is none would spread along the row.
    """
    band = call.scheme.band()
    hidden = call.documents is not None or band is None or band.sinks
    if torch.compiler.is_compiling() or hidden or not by_place(call) or not has_numbers() or first > nearest:
        return False
    return squares or (_offset(call) - first) % ROUND == 0


def _multiplied(call: Call, x: Tensor, entry: Entry, found: Lookup) -> Tensor:
    if not found.even:
        return _product(x, entry.near)
    # Loaded here, because it needs triton.
    from milepost.backends.triton.relative.diagonal_layout import diagonal_products, layout_of

    tokens, others = call.queries.count, call.keys.count
    if not entry.of_keys:
        tokens, others = others, tokens
    many, offset = entry.near.shape[1], _offset(call)
    layout = layout_of(entry.of_keys, tokens, others, many, found.first, offset, found.squares)
    return diagonal_products(x, entry.near, layout)


def _offset(call: Call) -> int:
    """Return how far the first query is behind the first key, where they count up."""
    assert call.queries.first is not None
    assert call.keys.first is not None
    return call.queries.first - call.keys.first


def _ends(relations: tuple[Relation, ...], nearest: int, furthest: int) -> tuple[int, int]:
    """Return the first and the last distance that tables tell from those past it, among the distances that occur."""
    tables = [each for relation in relations for each in (relation.keys, relation.queries) if each is not None]
    if not tables:
        return nearest, nearest
    first = max(nearest, min([each.first for each in tables]))
    return first, max(first, min(furthest, max([each.first + len(each.row) - 1 for each in tables])))


def _split(table: Table, first: int, last: int, call: Call, whole: bool) -> tuple[Tensor, Tensor]:
    """Return rows of all distances but the last, less the last one's, [h|1 n d], and that, [h|1 1 d]; zeros round n up.

    whole: there is none further on, and nothing is taken from them, nor is the last left out: their number is even.
    """
    device = call.q.device
    begin, end = first - table.first, last + 1 - table.first
    if begin >= 0 and end <= len(table.row):
        numbers = table.row.to(device)[begin:end]
    else:
        numbers = table.find(torch.arange(first, last + 1, device=device))
    # An index, whose gradient is summed in one order, and not index_select, whose is not.
    rows = table.rows.to(device)[:, numbers.long()]
    far = rows[:, -1:]
    near = rows if whole else rows[:, :-1] - far
    if torch.compiler.is_compiling() or near.shape[1] % ROUND:
        near = pad(near, (0, 0, 0, -near.shape[1] % ROUND))
    return near.to(call.q.dtype), far.to(call.q.dtype)


def _plus(q: Tensor, shift: Tensor) -> Tensor:
    # Loaded here, because it needs triton.
    from milepost.backends.triton.relative.shifts import shifted

    return shifted(q, shift)


def _product(x: Tensor, rows: Tensor) -> Tensor:
    """x [b h t d] with rows [h|1 n d] → [b h t n], heads first in memory where that copies less."""
    (b, h, t, d), n = x.shape, rows.shape[1]
    eager = not torch.compiler.is_compiling()
    if eager and rows.shape[0] == 1 and x.is_contiguous():
        # One product for all heads, and one sum for the gradient of what they share.
        return x @ rows[0].mT
    rows = rows.expand(h, -1, -1)
    if eager and b > 1 and (x.stride(1) < x.stride(2) or n > t):
        found = x.transpose(0, 1).reshape(h, b * t, d) @ rows.mT
        return found.view(h, b, t, -1).transpose(0, 1)
    # Repeated as they lie: torch would repeat them transposed, against the order of memory.
    found = x.reshape(b * h, t, d) @ rows.expand(b, -1, -1, -1).reshape(b * h, n, d).mT
    return found.view(b, h, t, n)


def _repeated(keys: Tensor, heads: int) -> Tensor:
    """Return raw keys, each for all the query heads that it serves."""
    group = heads // keys.shape[1]
    return keys if group == 1 else keys.repeat_interleave(group, 1)


def _sum(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    return total if more is None else more if total is None else total + more


def _longer(turned: Pair, raw: Pair, far: Tensor) -> Pair:
    """Return queries and keys whose product has k_j·far besides, of raw keys; far: [h|1 1 d].

    Where keys were turned, their raw channels stand beside the turned ones.
    """
    (q, k), (queries, keys) = turned, raw
    if k is keys:
        return _plus(q, far), k
    return torch.cat((q, far.expand_as(queries)), -1), torch.cat((k, keys), -1)
