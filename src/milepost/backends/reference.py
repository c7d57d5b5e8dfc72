"""The specification: every score at once, in plain torch. Any scheme runs here; the others must agree with it."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.backends.dropout import keep
from milepost.backends.scores import Material, add_related_values, bent, prepare, weigh
from milepost.backends.views import mask, values
from milepost.call.call import Call

CANNOT: dict[str, str] = {}
FAST_ON = ("cpu", "cuda")


def refuses(call: Call) -> str | None:
    """Nothing: what this cannot run, nothing can."""
    return None


def worth(call: Call) -> bool:
    """Whenever it can run."""
    return True


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """The equation, line by line."""
    made = prepare(call)
    scores = bent(made)
    seen = mask(call)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    scores = call.scheme.bend_rows(scores, call.q.to(call.score_dtype), call.k, call.v, call.x)
    out, lse = settle(made, scores, values(call, call.score_dtype))
    return out.to(call.v.dtype), lse


def settle(
    made: Material,
    scores: Tensor,
    v: Tensor,
    rows: slice = slice(None),
    keys: slice = slice(None),
    sure: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Softmax over masked scores [b h t s], with the logit of rest, and the sums of values.

    A row that sees nothing gives zeros and a log-sum-exp of −∞; `sure` promises that there is none.
    """
    call = made.call
    alive = None if sure else (scores > -torch.inf).any(-1, keepdim=True)
    if alive is not None:
        # An even row in place of a dead one keeps softmax and its gradient finite.
        scores = scores.masked_fill(~alive, 0.0)
    rest = call.scheme.rest()
    lse = torch.logsumexp(scores, -1, keepdim=True) if call.return_lse or rest is not None else None
    weights = torch.softmax(scores, -1)
    if call.seed is not None:
        kept = keep(call.seed, call.dropout, *_coordinates(call, rows, keys))
        weights = weights * kept / (1 - call.dropout)
    out = add_related_values(weigh(weights, v), weights, made, rows, keys)
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
    b, h, t, s = *call.q.shape[:3], call.k.shape[2]
    device = call.q.device
    row, key = torch.arange(t, device=device)[rows], torch.arange(s, device=device)[keys]
    return (
        torch.arange(b, device=device).view(-1, 1, 1, 1),
        torch.arange(h, device=device).view(-1, 1, 1),
        row[:, None],
        key,
    )
