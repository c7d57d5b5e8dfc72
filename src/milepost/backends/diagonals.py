"""Biases of distance alone, laid out along diagonals and handed to torch's fused attention.

A bias that reads only p − r has one number a distance and head: t + s − 1 of them, where a dense bias has t · s. Made
once and unrolled, its gradient is a sum over each diagonal, not a scatter of every score into a few weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.backends.estimate import all_pairs, seconds
from milepost.backends.fused import fused
from milepost.backends.views import batch_and_head, beyond_grid, mask, refusal, sharpened
from milepost.call.call import Call
from milepost.memory.internals import transformed

PLAYED = True
CANNOT: dict[str, str] = {
    "place": "turns near and far keys differently, which takes two softmaxes merged",
    "relate": "adds tables looked up by distance to the scores",
    "bends_freely": "does more to a score than add a number for its distance",
    "bend_rows": "modifies whole rows of scores",
    "rest": "adds a logit of rest to the softmax",
}
# Numbers of a bias laid out in full; beyond, what it costs is no longer small beside the attention.
MOST = 1 << 27


def refuses(call: Call) -> str | None:
    """Return why a bias along diagonals cannot stand for this scheme."""
    reason = refusal(call, CANNOT) or beyond_grid(call)
    if reason is not None:
        return reason
    if call.layout is None or not call.at_index:
        return "indices, positions or documents were given, so that distances do not run along diagonals"
    if call.given_length is not None and call.given_length.shape[1] > 1 and _follows_length(call):
        return "a length was given for each token, so that a bias that follows it differs along a diagonal"
    if not torch.compiler.is_compiling() and transformed() and call.learns("bend"):
        return "torch's function gives a bias that learns no gradient under torch.func"
    if call.return_lse:
        return "return_lse was asked for, which torch's function does not give"
    # A class that is not milepost's may bend each row of the batch differently.
    rows = call.q.shape[0] if call.scheme.foreign["bend"] else 1
    size = rows * call.q.shape[1] * call.q.shape[2] * call.k.shape[2]
    if size > MOST:
        return f"the bias would hold {size:,} numbers, more than {MOST:,}"
    return None


def _follows_length(call: Call) -> bool:
    return any(getattr(part, "by_length", False) for part in call.scheme.answering("bend"))


def cost(call: Call) -> float:
    """Return the seconds of attention over every pair with a bias in memory, which is laid out once for the batch."""
    return seconds(call, all_pairs(call), each=2 if call.q.device.type == "cpu" else 5, launches=24)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Lay the bias out, hide what is hidden, and hand over."""
    q, k, v, scale = sharpened(call)
    bias, seen = _bias(call).to(call.q.dtype), None if _sees_all(call) else mask(call)
    alive = None if seen is None else seen.any(-1, keepdim=True)
    if seen is not None and alive is not None:
        bias = bias.masked_fill(~(seen | ~alive), -torch.inf)
    out = fused(q, k, v, scale, call.dropout, bias)
    return (out if alive is None else out * alive), None


def _bias(call: Call) -> Tensor:
    """Return the bias of every pair, [b|1 h t s], from one line of distances; one a row where rows differ."""
    h, t, s = call.q.shape[1], call.q.shape[2], call.k.shape[2]
    device = call.q.device
    batch, head = batch_and_head(call)
    assert call.layout is not None
    # From the key furthest behind the last query to the key furthest ahead of the first.
    distance = call.layout.offset + t - 1 - torch.arange(t + s - 1, device=device)
    length = call.length[:, None, :, None]
    line = call.scheme.bend(
        torch.zeros(length.shape[0], h, 1, t + s - 1, dtype=call.score_dtype, device=device),
        batch,
        head,
        distance,
        torch.zeros_like(distance),
        length,
    )
    return _rows(line[:, :, 0], t, s)


def _rows(line: Tensor, t: int, s: int) -> Tensor:
    """Row i of t is line[t − 1 − i : t − 1 − i + s], one row a query."""
    if not torch.compiler.is_compiling():
        return line.unfold(-1, s, 1).flip(2)
    # Unfolding takes a size that is fixed when it is traced: a graph for every number of keys. Here the line and one
    # number more is written t times end to end and read in pieces as long as the line, so that each begins one earlier.
    n = t + s - 1
    ends = torch.nn.functional.pad(line, (0, 1)).unsqueeze(2).expand(-1, -1, t, -1).flatten(2)
    return ends[..., t - 1 : t - 1 + t * n].view(*line.shape[:2], t, n)[..., :s]


def _sees_all(call: Call) -> bool:
    """True if the layout shows that no key is hidden, as when one token is decoded after all the others."""
    layout, band = call.layout, call.scheme.band()
    if layout is None or band is None or band.chunk is not None:
        return False
    furthest, nearest = layout.offset + call.queries.count - 1, layout.offset - call.keys.count + 1
    return furthest < band.behind and -nearest <= band.ahead
