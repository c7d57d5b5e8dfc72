"""Scores of any block of rows and keys: the equation up to the softmax. What `chunked` and `mp.scores` compute."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.backends.dropout import keep
from milepost.backends.views import View, batch_and_head, mask, relations, views
from milepost.call.call import Call
from milepost.seams.parts import Parts
from milepost.seams.verbs import Relation, Table

ALL = slice(None)
NO_KEYS = slice(0, 0)


@dataclass(frozen=True)
class Prepared:
    """What is made once a call, in time and memory linear in the number of tokens."""

    call: Call
    views: list[View]
    """Queries carry the softmax scale already."""
    relations: tuple[Relation, ...]
    q: Tensor
    """Raw queries times the softmax scale."""
    factor: Tensor | float
    to_queries: tuple[Tensor | None, ...]
    """For each relation the products of raw keys with its table of queries, [b h s n]."""


def prepare(call: Call, only: Tensor | None = None) -> Prepared:
    """Turn queries and keys, and scale the queries, in the wide dtype.

    only: the whole distances [n] that occur, where they are few and known: no table needs rows for others.
    """
    factor = call.factor()
    seen = views(call, call.score_dtype)
    related = relations(call, seen, only)
    scaled = [View(call, view.regime, view.q * factor, view.k) for view in seen]
    keys = call.k.to(call.score_dtype).repeat_interleave(call.q.shape[1] // call.k.shape[1], 1) if related else call.k
    products = tuple(None if each.queries is None else keys @ _rows(each.queries, call).mT for each in related)
    return Prepared(call, scaled, related, call.q.to(call.score_dtype) * factor, factor, products)


def no_values(scheme: Parts, k: Tensor) -> Tensor:
    """Return values that nobody reads, for keys [b g s d]: as wide as the tables that would be added to them."""
    if not isinstance(k, Tensor) or k.dim() != 4:
        return k
    tables = (relation.values for relation in scheme.relate(1))
    width = next((table.rows.shape[-1] for table in tables if table is not None), 0)
    return k.new_empty(()).expand(*k.shape[:3], width)


def dot(q: Tensor, k: Tensor) -> Tensor:
    """Scores of grouped queries: q [b h t d], k [b g s d] → [b h t s], without repeating a key."""
    b, h, t, d = q.shape
    g, s = k.shape[1], k.shape[2]
    return (q.reshape(b, g, h // g * t, d) @ k.mT).view(b, h, t, s)


def weigh(weights: Tensor, v: Tensor) -> Tensor:
    """Return sums of values under grouped queries: weights [b h t s], v [b g s d] → [b h t d]."""
    b, h, t, s = weights.shape
    g, d = v.shape[1], v.shape[3]
    return (weights.reshape(b, g, h // g * t, s) @ v).view(b, h, t, d)


def bent(made: Prepared, rows: slice = ALL, keys: slice = ALL) -> Tensor:
    """Scores [b h t s] of some rows and keys, bent but not masked; −∞ where no regime claims the pair."""
    call = made.call
    batch, head = batch_and_head(call)
    length = call.length[:, None, rows if call.length.shape[1] > 1 else ALL, None]
    total: Tensor | None = None
    near: Tensor | None = None
    for view in made.views:
        columns = _keys_of(call, view, rows, keys)
        p, r = _grid(view.p, view.r, rows, columns)
        score = dot(view.q[:, :, rows], view.k[:, :, columns])
        for relation, to_queries in zip(made.relations, made.to_queries, strict=True):
            score = score + _related(made, relation, to_queries, p - r, rows, columns)
        score = call.scheme.bend(score, batch, head, p, r, length)
        if view.regime.contrast is not None and total is not None:
            near = _log_sum(call, total, rows, keys) if near is None else near
            strength = view.regime.contrast(call.index, call.length).to(score.dtype)[:, None, :, None]
            score = score + _of_rows(strength, rows) * (score - near)
        if view.regime.shift is not None:
            score = score + _of_rows(view.regime.shift(call.index, call.length).to(score.dtype)[:, None, :, None], rows)
        region = _region(call, view, rows, columns)
        total = _joined(total, score, region, columns, keys, call)
    assert total is not None
    return total


def masked(made: Prepared, rows: slice = ALL, keys: slice = ALL, sure: slice = NO_KEYS) -> Tensor:
    """Return final scores [b h t s] of some rows and keys: −∞ where a key is hidden, whole rows bent.

    sure: keys that all of the rows see.
    """
    call = made.call
    scores = bent(made, rows, keys)
    if sure.start < sure.stop and not call.needs_grad:
        # Only the keys beside the sure ones need a mask.
        for edge in (slice(keys.start, sure.start), slice(sure.stop, keys.stop)):
            seen = mask(call, rows, edge) if edge.start < edge.stop else None
            if seen is not None:
                scores[..., edge.start - keys.start : edge.stop - keys.start].masked_fill_(~seen, -torch.inf)
    else:
        seen = mask(call, rows, keys)
        scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    if not call.scheme.answering("bend_rows"):
        return scores
    x = call.x if call.x is None else call.x[:, keys]
    q, k, v = call.q[:, :, rows].to(call.score_dtype), call.k[:, :, keys], call.v[:, :, keys]
    return call.scheme.bend_rows(scores, q, k, v, x, **call.of_rows(rows, keys))


def _keys_of(call: Call, view: View, rows: slice, keys: slice) -> slice:
    """Return the keys that a regime can claim for some rows, where shapes alone tell where tokens stand."""
    layout = call.layout
    if layout is None or not call.at_index or torch.compiler.is_compiling():
        return keys
    first, last, _ = rows.indices(call.queries.count)
    start, stop, _ = keys.indices(call.keys.count)
    # Distances grow towards the first keys: the last row is furthest from them.
    least, most = view.regime.distances()
    low = max(start, layout.offset + first - most)
    high = min(stop, layout.offset + last - least)
    return slice(math.floor(low), math.ceil(high)) if low < high else slice(start, start)


def _joined(
    total: Tensor | None, score: Tensor, region: Tensor | None, columns: slice, keys: slice, call: Call
) -> Tensor:
    """Return what regimes so far made of the scores of `keys`, with another's scores of `columns` in its region."""
    if columns == keys:
        return score if region is None else torch.where(region, score, -torch.inf if total is None else total)
    start, stop, _ = keys.indices(call.k.shape[2])
    if total is None:
        total = score.new_full((*score.shape[:3], stop - start), -torch.inf)
    a, b = columns.start - start, columns.stop - start
    inside = score if region is None else torch.where(region, score, total[..., a:b])
    return torch.cat((total[..., :a], inside, total[..., b:]), -1)


def _log_sum(call: Call, scores: Tensor, rows: slice, keys: slice) -> Tensor:
    """Return the logarithm of the summed weights so far, [b h t 1]; 0 where none is seen, and none to compare with."""
    shown = mask(call, rows, keys)
    scores = scores if shown is None else scores.masked_fill(~shown, -torch.inf)
    alive = (scores != -torch.inf).any(-1, keepdim=True)
    return torch.where(alive, scores.masked_fill(~alive, 0.0).logsumexp(-1, keepdim=True), 0.0)


def softmax_rows(
    made: Prepared, scores: Tensor, v: Tensor, rows: slice = ALL, keys: slice = ALL, all_see: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Softmax over masked scores [b h t s], with the logit of rest, and the sums of values.

    A row that sees nothing gives zeros and a log-sum-exp of −∞; `all_see` promises that there is none.
    """
    call = made.call
    alive = None if all_see else (scores != -torch.inf).any(-1, keepdim=True)
    if alive is not None:
        # An even row in place of a dead one keeps softmax and its gradient finite.
        scores = scores.masked_fill(~alive, 0.0)
    rest = call.scheme.rest()
    lse = torch.logsumexp(scores, -1, keepdim=True) if call.return_lse or rest is not None else None
    weights = torch.softmax(scores, -1)
    if call.seed is not None:
        weights = weights * keep(call.seed, call.dropout, *_coordinates(call, rows, keys)) / (1 - call.dropout)
    out = _add_related_values(weigh(weights, v), weights, made, rows, keys)
    if alive is not None:
        out = out * alive
        lse = lse if lse is None else lse.masked_fill(~alive, -torch.inf)
    if rest is not None and lse is not None:
        rest = rest.to(scores)[:, None, None]
        out = out * torch.sigmoid(lse - rest)
        lse = torch.logaddexp(lse, rest)
    return out, None if lse is None or not call.return_lse else lse[..., 0]


def _coordinates(call: Call, rows: slice, keys: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch, head, row and key numbers of a block of scores."""
    row, key = (torch.arange(count, device=call.q.device) for count in (call.q.shape[2], call.k.shape[2]))
    return *batch_and_head(call), row[rows, None], key[keys]


def _add_related_values(out: Tensor, weights: Tensor, made: Prepared, rows: slice = ALL, keys: slice = ALL) -> Tensor:
    """Add what relations give to the values: Σ_j weights_ij · table[p_i − r_j]."""
    for relation in made.relations:
        if relation.values is None:
            continue
        bucket: Tensor | None = None
        for view in made.views:
            p, r = _grid(view.p, view.r, rows, keys)
            region = _region(made.call, view, rows, keys)
            here = relation.values.find(p - r)
            bucket = here if bucket is None or region is None else torch.where(region, here, bucket)
        assert bucket is not None
        table = _rows(relation.values, made.call)
        summed = weights.new_zeros(*weights.shape[:3], table.shape[1])
        out = out + summed.scatter_add(-1, bucket.expand_as(weights), weights) @ table
    return out


def _region(call: Call, view: View, rows: slice, keys: slice) -> Tensor | None:
    """Return the pairs of a regime, [b|1 1 t s], or None for all."""
    if not view.regime.bounds:
        return None
    at = _grid(call.position, call.key_position, rows, keys)
    by_index = any(bound.by_index for bound in view.regime.bounds)
    return view.regime.holds(*at, *(_grid(call.index, call.key_index, rows, keys) if by_index else ()))


def _grid(p: Tensor, r: Tensor, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
    """Positions as they broadcast over scores: [b|1 1 t 1] and [b|1 1 1 s]."""
    return p[:, None, rows, None], r[:, None, None, keys]


def _rows(table: Table, call: Call) -> Tensor:
    return table.rows.to(call.q.device, call.score_dtype)


def _of_rows(factor: Tensor | float, rows: slice) -> Tensor | float:
    """Return the scale of some rows; one that all rows share stays as it is."""
    return factor[:, :, rows] if isinstance(factor, Tensor) and factor.shape[2] > 1 else factor


def _related(
    made: Prepared, relation: Relation, to_queries: Tensor | None, distance: Tensor, rows: slice, keys: slice
) -> Tensor:
    """Return what one relation adds to the scaled dot product, [b h t s]."""
    call = made.call
    b, h = call.q.shape[:2]
    total: Tensor | None = None
    if relation.keys is not None:
        q = made.q[:, :, rows]
        if relation.shift is not None:
            q = q + relation.shift.to(call.score_dtype)[:, None] * _of_rows(made.factor, rows)
        bucket = relation.keys.find(distance).expand(b, h, -1, -1)
        total = (q @ _rows(relation.keys, call).mT).gather(-1, bucket)
    if relation.queries is not None and to_queries is not None:
        bucket = relation.queries.find(distance).expand(b, h, -1, -1)
        found = to_queries[:, :, keys].gather(-1, bucket.mT).mT
        found = found * _of_rows(made.factor, rows)
        total = found if total is None else total + found
    assert total is not None
    return total
