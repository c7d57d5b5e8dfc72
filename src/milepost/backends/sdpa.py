"""torch's own fused attention, for schemes that do their work before the scores: turning, sharpening, hiding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from milepost.backends.blocks import Block, blocks, formed_pairs
from milepost.backends.estimate import all_pairs, seconds, seen_pairs
from milepost.backends.fused import fused
from milepost.backends.rotary.by_table import steps_turned
from milepost.backends.views import beyond_grid, mask, refusal, sharpened, values
from milepost.call.call import Call
from milepost.memory.fixed import is_fixed
from milepost.seams.visible import causal

PLAYED = True
CANNOT: dict[str, str] = {
    "place": "turns near and far keys differently, which takes two softmaxes merged",
    "relate": "adds tables looked up by distance to the scores",
    "bend": "modifies the scores, for which it needs an n × n mask",
    "bend_rows": "modifies whole rows of scores",
    "rest": "adds a logit of rest to the softmax",
}


def refuses(call: Call) -> str | None:
    """Return why torch's kernels cannot run this."""
    if call.return_lse:
        return "return_lse was asked for, which torch's function does not give"
    return refusal(call, CANNOT) or beyond_grid(call)


def cost(call: Call) -> float:
    """Return plain attention; with a mask of its own for every pair, or block by block, a little more."""
    on_cpu = call.q.device.type == "cpu"
    if _is_plain(call) or _is_causal(call):
        return seconds(call, seen_pairs(call), launches=12)
    if on_cpu and call.documents is not None:
        # Which keys a block of rows can see is found when it runs; as a rule that leaves out half of them.
        return seconds(call, all_pairs(call) / 2, each=1.3, launches=60)
    made = blocks(call) if on_cpu else None
    if made is not None:
        return seconds(call, formed_pairs(made), each=1.3, launches=12 + 6 * len(made))
    return seconds(call, all_pairs(call), each=1.5 if on_cpu else 7, launches=30)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Turn, fold the sharpening into the queries, and hand over."""
    q, k, v, scale = sharpened(call)
    # Two branches: in a graph of torch 2.15 the condition is symbolic, and what is handed over must be a bool.
    if _is_plain(call):
        return fused(q, k, v, scale, call.dropout), None
    if _is_causal(call):
        return fused(q, k, v, scale, call.dropout, is_causal=True), None
    made = blocks(call) if call.q.device.type == "cpu" else None
    if made is not None:
        return torch.cat([_block(q, k, v, scale, call.dropout, block) for block in made], 2), None
    seen = mask(call)
    assert seen is not None
    alive = seen.any(-1, keepdim=True)
    return fused(q, k, v, scale, call.dropout, seen | ~alive) * alive, None


def stepper(call: Call) -> Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, None] | None] | None:
    """Return what runs steps like this one, with any number of keys; None where each has to be looked at."""
    if not all(map(is_fixed, call.scheme.parts)) or not _is_plain(call):
        return None
    factor, turn = call.factor(), steps_turned(call)
    if turn is None or isinstance(factor, Tensor) or values(call, call.v.dtype) is not call.v:
        return None

    def step(q: Tensor, k: Tensor, v: Tensor, first: int) -> tuple[Tensor, None] | None:
        q_turned = turn(q, first + k.shape[2] - q.shape[2])
        return None if q_turned is None else (fused(q_turned, k, v, factor), None)

    return step


def _block(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, block: Block) -> Tensor:
    """Return some rows against the keys that they may see."""
    rows = q[:, :, block.rows]
    k, v = (_picked(each, block) for each in (k, v))
    if not k.shape[2]:
        return rows.new_zeros(*rows.shape[:3], v.shape[-1])
    out = fused(rows, k, v, scale, dropout, block.added)
    return out if block.alive is None else out * block.alive


def _picked(each: Tensor, block: Block) -> Tensor:
    keys = each[:, :, block.keys]
    return torch.cat((each[:, :, : block.sinks], keys), 2) if block.sinks else keys


def _is_plain(call: Call) -> bool:
    """True if every query sees every key there is."""
    if not call.scheme.answering("see"):
        return call.documents is None
    if call.layout is None:
        return False
    last = call.layout.first == call.layout.key_first + call.keys.count - 1
    return call.queries.count == 1 and last and _hides_only_ahead(call)


def _is_causal(call: Call) -> bool:
    """True if the mask is the one that torch's function knows by name."""
    square = call.layout is not None and call.layout.offset == 0 and call.queries.count == call.keys.count
    return square and _hides_only_ahead(call)


def _hides_only_ahead(call: Call) -> bool:
    return all(part == causal for part in call.scheme.answering("see"))
