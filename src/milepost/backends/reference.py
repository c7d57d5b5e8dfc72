"""The specification: the equation over whole tensors, line by line. Any scheme runs here; the others must agree.

It reads verbs and nothing else, and shares no code with the backends that are judged by it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.backends.dropout import keep
from milepost.call.call import Call, span_of
from milepost.seams.verbs import Regime, Relation, Table

PLAYED = False
CANNOT: dict[str, str] = {}


def refuses(call: Call) -> str | None:
    """Nothing: what this cannot run, nothing can."""
    return None


def cost(call: Call) -> float:
    """Return more than anything else's: it is there to be right."""
    return float("inf")


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return the equation."""
    scheme, dtype = call.scheme, call.score_dtype
    v = _repeated(call, scheme.turn(call.v.to(dtype), call.key_position, "value", call.key_length))
    regimes = scheme.place()
    relations = scheme.relate(_span(call, regimes)) if scheme.answering("relate") else ()
    scores = whole_scores(call, regimes, relations)

    rest = scheme.rest()
    lse = _log_sum(scores, empty=-torch.inf)
    if rest is not None:
        lse = torch.logaddexp(lse, rest.to(lse)[:, None, None])
    weights = torch.where(scores == -torch.inf, scores, scores - lse).exp()
    if call.seed is not None:
        weights = weights * keep(call.seed, call.dropout, *_numbers(call)) / (1 - call.dropout)
    out = weights @ v
    for relation in relations:
        if relation.values is not None:
            out = out + _related_values(call, regimes, relation.values, weights)
    return out.to(call.v.dtype), lse[..., 0] if call.return_lse else None


def whole_scores(call: Call, regimes: tuple[Regime, ...], relations: tuple[Relation, ...]) -> Tensor:
    """Return what the softmax is taken of, [b h t s], −∞ where a key is hidden."""
    dtype = call.score_dtype
    q, k = call.q.to(dtype), call.k.to(dtype)
    visible = _visible(call)
    scores, near = q.new_full((), -torch.inf), None
    for regime in regimes:
        score = _scores(call, regime, relations, q, k)
        region = _region(call, regime)
        if regime.contrast is not None and scores.dim():
            near = _log_sum(scores.masked_fill(~visible, -torch.inf), empty=0.0) if near is None else near
            score = score + regime.contrast(call.index, call.length).to(dtype)[:, None, :, None] * (score - near)
        if regime.shift is not None:
            score = score + regime.shift(call.index, call.length).to(dtype)[:, None, :, None]
        scores = torch.where(region, score, scores)
    scores = scores.masked_fill(~visible, -torch.inf)
    if call.scheme.answering("bend_rows"):
        scores = call.scheme.bend_rows(scores, q, call.k, call.v, call.x, **call.of_rows())
    return scores


def _scores(call: Call, regime: Regime, relations: tuple[Relation, ...], q: Tensor, k: Tensor) -> Tensor:
    """place → turn → dot, plus relate → × scale × sharpen → bend: [b h t s], as if all pairs were in the regime."""
    scheme, dtype = call.scheme, call.score_dtype
    p, r = call.places(regime)
    turned = k if call.keys_turned else scheme.turn(k, r, "key", call.key_length)
    score = scheme.turn(q, p, "query", call.length) @ _repeated(call, turned).mT
    distance = _pairwise(p, 2) - _pairwise(r, 3)
    for relation in relations:
        if relation.keys is not None:
            rows = relation.keys.rows.to(q)[:, relation.keys.find(distance)]
            shifted = q if relation.shift is None else q + relation.shift.to(q)[:, None]
            score = score + torch.einsum("bhtd,hbtsd->bhts", shifted, _by_head(rows, q))
        if relation.queries is not None:
            rows = relation.queries.rows.to(k)[:, relation.queries.find(distance)]
            score = score + torch.einsum("bhsd,hbtsd->bhts", _repeated(call, k), _by_head(rows, q))
    score = score * scheme.scale(q.shape[-1])
    sharpness = call.sharpness()
    score = score if sharpness is None else score * sharpness.to(dtype)[..., None]
    batch, head, _, _ = _numbers(call)
    return scheme.bend(score, batch, head, _pairwise(p, 2), _pairwise(r, 3), call.length[:, None, :, None])


def _related_values(call: Call, regimes: tuple[Regime, ...], values: Table, weights: Tensor) -> Tensor:
    """Σ_j weight_ij · values[p_i − r_j], by the distance that each pair has in its own regime."""
    found = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=weights.device)
    for regime in regimes:
        p, r = call.places(regime)
        distance = _pairwise(p, 2) - _pairwise(r, 3)
        found = torch.where(_region(call, regime), values.find(distance), found)
    rows = values.rows.to(weights)[:, found]
    return torch.einsum("bhts,hbtsd->bhtd", weights, _by_head(rows, weights))


def _visible(call: Call) -> Tensor:
    """see: which keys each query may see, of its own document only; [b|1 h|1 t s]."""
    i, j = _pairwise(call.index, 2), _pairwise(call.key_index, 3)
    batch, head, _, _ = _numbers(call)
    seen = (i == i) & (j == j)
    shown = call.scheme.see(batch, head, i, j)
    seen = seen if shown is None else seen & shown
    if call.documents is not None and call.key_documents is not None:
        own, other = _pairwise(call.documents, 2), _pairwise(call.key_documents, 3)
        seen = seen & (own == other) & (own >= 0)
    return seen


def _region(call: Call, regime: Regime) -> Tensor:
    """Return the pairs of a regime, by the positions and indices of the call: [b|1 1 t s]."""
    p, r = _pairwise(call.position, 2), _pairwise(call.key_position, 3)
    region = regime.holds(p, r, _pairwise(call.index, 2), _pairwise(call.key_index, 3))
    return (p == p) & (r == r) if region is None else region


def _log_sum(scores: Tensor, empty: float) -> Tensor:
    """ln Σ_j e^score, [b h t 1]; `empty` where no key is seen, with a gradient that is zero there."""
    alive = (scores != -torch.inf).any(-1, keepdim=True)
    return torch.where(alive, scores.masked_fill(~alive, 0.0).logsumexp(-1, keepdim=True), empty)


def _repeated(call: Call, keys: Tensor) -> Tensor:
    """Every key head, [b g s d], for each of the query heads that it serves, [b h s d]."""
    return keys.repeat_interleave(call.q.shape[1] // keys.shape[1], 1)


def _pairwise(values: Tensor, axis: int) -> Tensor:
    """Values of tokens [b|1 n] along the rows (2) or the columns (3) of scores; of several coordinates the first."""
    values = values[..., 0] if values.dim() == 3 else values
    return values[:, None, :, None] if axis == 2 else values[:, None, None, :]


def _by_head(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows found for every pair, [h|1 b|1 1 t s d], as [h b t s d]."""
    return rows.squeeze(2).expand(like.shape[1], like.shape[0], *rows.shape[3:])


def _numbers(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch, head, row and key numbers of every score."""
    sizes = (*call.q.shape[:3], call.k.shape[2])
    b, h, t, s = (torch.arange(size, device=call.q.device) for size in sizes)
    return b.view(-1, 1, 1, 1), h.view(-1, 1, 1), t[:, None], s


def _span(call: Call, regimes: tuple[Regime, ...]) -> int:
    """Return how far apart tokens can stand."""
    if call.span is not None:
        return call.span * max(regime.growth for regime in regimes)
    return max(span_of(*call.places(regime)) for regime in regimes)
