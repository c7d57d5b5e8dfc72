"""FlexAttention: bends and masks compiled into a fused kernel on the GPU, run plainly on the CPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, cast

import torch
import torch.nn.attention.flex_attention as flex_module
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import pad

from milepost.backends.block_masks import block_mask, many_graphs, reader
from milepost.backends.dropout import keep
from milepost.backends.estimate import all_pairs, seconds, seen_pairs
from milepost.backends.views import View, beyond_grid, refusal, relations, values, views
from milepost.call.call import Call
from milepost.call.merge import merge
from milepost.seams.arguments import spell
from milepost.seams.parts import Parts
from milepost.seams.verbs import Relation, Table, answers

PLAYED = False
CANNOT: dict[str, str] = {
    "bend_rows": "modifies whole rows of scores, and FlexAttention shows one at a time",
    "adds_values": "adds to the values, and FlexAttention shows only the scores",
}
# Narrower heads than its kernels take are filled up with zeros, which change nothing.
LEAST_WIDTH = 16
WIDEST = 256

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def refuses(call: Call) -> str | None:
    """Return why FlexAttention cannot run this: first what lasts, then what another call could change."""
    reason = refusal(call, CANNOT)
    if reason is not None:
        return reason
    if call.q.device.type not in ("cpu", "cuda"):
        return f"FlexAttention is used on CPU and CUDA devices, and the tensors are on {call.q.device.type}"
    if call.q.device.type == "cpu" and call.needs_grad:
        return "FlexAttention has no gradient on the CPU"
    if call.q.device.type == "cpu" and torch.compiler.is_compiling():
        return "FlexAttention does not compile on this CPU"
    for part in call.scheme.answering("contrasts") if call.needs_grad else ():
        return f"{spell(part)} weighs far keys against near ones, which FlexAttention cannot differentiate"
    for part in call.scheme.answering("reads_weights_often") if call.needs_grad else ():
        return f"{spell(part)} reads a weight several times for one score, which FlexAttention cannot differentiate"
    for part in call.scheme.answering("place"):
        by_index = any(bound.by_index for regime in call.scheme.place() for bound in regime.bounds)
        if by_index and not call.position_is_index:
            return f"{spell(part)} goes by the order of tokens, and FlexAttention is given their positions"
    if call.q.device.type != "cpu" and call.q.dtype == torch.float64:
        return "FlexAttention's kernels do not take float64"
    widest = max(call.q.shape[-1], call.v.shape[-1])
    if call.q.device.type != "cpu" and widest > WIDEST:
        return f"heads of {widest} channels are wider than {WIDEST}, which FlexAttention's kernels have no room for"
    return beyond_grid(call, together=True)


def cost(call: Call) -> float:
    """Fused where it is compiled, and only over blocks that somebody sees."""
    if call.q.device.type == "cpu":
        return seconds(call, all_pairs(call), each=200, launches=200)
    each = 1.6
    if call.learns("bend"):
        # It adds the gradient of every score to a few weights, one at a time.
        each = 500
    elif any(answers(part, "costly") for part in call.scheme.answering("bend")):
        each = 60
    # Of several documents about half of all pairs are never looked at, or more.
    pairs = seen_pairs(call) / (1 if call.documents is None else 2)
    return seconds(call, pairs, each, launches=15 * len(call.scheme.place()))


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return one pass a regime, merged by log-sum-exp."""
    seen = views(call, call.q.dtype)
    v = values(call, call.v.dtype)
    related = relations(call, seen)
    found: list[Tensor] = []
    near: Tensor | None = None
    for number, view in enumerate(seen):
        if view.regime.contrast is not None and found and near is None:
            near = found[1] if len(found) == 2 else merge(*found)[1]
        found += _attend(call, view, number, v, related, near)
    out, lse = (found[0], found[1]) if len(found) == 2 else merge(*found)
    rest = call.scheme.rest()
    if rest is not None:
        rest = rest.to(lse)[:, None]
        out, lse = out * torch.sigmoid(lse - rest)[..., None], torch.logaddexp(lse, rest)
    return out.to(call.v.dtype), lse if call.return_lse else None


def _attend(
    call: Call, view: View, number: int, v: Tensor, related: tuple[Relation, ...], near: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return one regime: its output and log-sum-exp, with dropout as a second pass over the kept weights.

    near: the log-sum-exp of the regimes without a contrast, [b h t], which the scores of others may be turned about.
    """
    sharpness = call.sharpness()
    score = score_mod(call.scheme, view.p, view.r, call.length, sharpness, _products(call, related))
    if view.regime.contrast is not None and near is not None:
        score = _contrasted(score, view.regime.contrast(call.index, call.length), near)
    if view.regime.shift is not None:
        score = _shifted(score, view.regime.shift(call.index, call.length))
    visible = block_mask(call, view, number)
    scale = call.scheme.scale(call.q.shape[-1])
    # Tables read inside the kernel are fetched ahead, stage by stage, and more than one stage can outgrow the chip.
    reads = any(isinstance(part, nn.Module) for part in call.scheme.answering("bend")) or bool(related)
    options: dict[str, Any] = {"num_stages": 1} if reads else {}
    out, lse = _flex(view.q, view.k, v, score, visible, scale, options)
    if call.seed is None:
        return out, lse
    seed, share = call.seed, call.dropout

    def dropped(score_: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(keep(seed, share, b, h, i, j), score(score_, b, h, i, j), -torch.inf)

    out, kept = _flex(view.q, view.k, v, dropped, visible, scale, options)
    # The kept weights sum to exp(kept − lse) of the whole; dead rows have both at −∞.
    gain = torch.where(kept > -torch.inf, kept - lse, -torch.inf).exp() / (1 - share)
    return out * gain[..., None], lse


def _contrasted(score: ScoreMod, strength: Tensor, near: Tensor) -> ScoreMod:
    """Scores turned about what near keys offer: strength [b|1 t|1], near [b h t]."""
    strong, level = reader(strength), torch.where(near > -torch.inf, near, 0.0)
    if torch.compiler.is_compiling():
        # Otherwise Inductor would make it again inside the kernel, from an answer that lies nowhere yet.
        level = _written(level)

    def turned(score_: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        bent = score(score_, b, h, i, j)
        return bent + strong(b, i).to(bent.dtype) * (bent - level[b, h, i])

    return turned


def _shifted(score: ScoreMod, shift: Tensor) -> ScoreMod:
    """Scores of a row with one number added: shift [b|1 t|1]."""
    more = reader(shift)

    def changed(score_: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        bent = score(score_, b, h, i, j)
        return bent + more(b, i).to(bent.dtype)

    return changed


_written = torch.library.custom_op("milepost::written", torch.clone, mutates_args=(), schema="(Tensor x) -> Tensor")
"""The same numbers in memory of their own, whatever a compiler would rather fuse."""
_written.register_fake(torch.empty_like)

Product = tuple[Tensor, bool, Callable[[Tensor], Tensor]]
"""Queries or keys times the rows of a table, [b h n m]; whether it is by query; the row of a distance."""


def _products(call: Call, related: tuple[Relation, ...]) -> list[Product]:
    """Return queries and keys times the tables, scaled as the scores are."""
    made: list[Product] = []
    scale = call.scheme.scale(call.q.shape[-1])
    for relation in related:
        if relation.keys is not None:
            q = call.q if relation.shift is None else call.q + relation.shift.to(call.q.dtype)[:, None]
            made.append((q @ relation.keys.rows.to(q).mT * scale, True, _row_reader(relation.keys, q.device)))
        if relation.queries is not None:
            k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
            made.append((k @ relation.queries.rows.to(k).mT * scale, False, _row_reader(relation.queries, k.device)))
    return made


def _row_reader(table: Table, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the row of each distance."""
    # The ends are tensors, because a kernel made for one span of distances must serve another.
    row = table.row.to(device)
    first = torch.full((), table.first, device=device)
    last = first + len(row) - 1
    return lambda distance: row[torch.minimum(torch.maximum(distance.round().long(), first), last) - first].long()


def score_mod(
    scheme: Parts, p: Tensor, r: Tensor, length: Tensor, sharpness: Tensor | None = None,
    related: list[Product] | None = None,
) -> ScoreMod:  # fmt: skip
    """Return all that a scheme does to a scaled score, as FlexAttention calls it.

    p [b|1 t], r [b|1 s] are positions, sharpness is [b|1 h|1 t|1].
    """
    where_q, where_k = reader(p), reader(r)
    reach = reader(length) if any(answers(part, "by_length") for part in scheme.answering("bend")) else None
    sharp = None if sharpness is None else _factor_reader(sharpness)

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        here, there = where_q(b, i), where_k(b, j)
        for product, by_query, row in related or ():
            score = score + product[b, h, i if by_query else j, row(here - there)]
        if sharp is not None:
            score = score * sharp(b, h, i).to(score.dtype)
        return scheme.bend(score, b, h, here, there, None if reach is None else reach(b, i))

    return change


def _factor_reader(values: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Look up values [b|1 h|1 t|1] by batch, head and token."""
    rows, heads, tokens = values.shape
    if heads == 1:
        read = reader(values[:, 0])
        return lambda b, h, i: read(b, i)
    return lambda b, h, i: values[b if rows > 1 else 0 * b, h, i if tokens > 1 else 0 * i]


@functools.cache
def _fused() -> Callable[..., Any]:
    return torch.compile(flex_attention, fullgraph=True)


def _flex(
    q: Tensor, k: Tensor, v: Tensor, score: ScoreMod, visible: BlockMask | None, scale: float, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """FlexAttention with its log-sum-exp."""
    run, width = flex_attention, v.shape[-1]
    if q.device.type == "cpu":
        # No gradient is wanted, or this would have refused; FlexAttention asks the tensors all the same.
        q, k, v = q.detach(), k.detach(), v.detach()
        around = _plain()
    else:
        q, k, v = (pad(each, (0, max(0, LEAST_WIDTH - each.shape[-1]))) for each in (q, k, v))
        run = flex_attention if torch.compiler.is_compiling() else _fused()
        around = contextlib.nullcontext() if torch.compiler.is_compiling() else many_graphs()
    with around:
        out, aux = run(
            q, k, v, score_mod=score, block_mask=visible, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True), kernel_options=cast("Any", options or None),
        )  # fmt: skip
    assert aux.lse is not None
    return out[..., :width], aux.lse


@contextlib.contextmanager
def _plain() -> Generator[None]:
    """Run FlexAttention line by line: on the CPU it would otherwise trace every call anew, and fuse nothing."""
    name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = getattr(flex_module, name)
    setattr(flex_module, name, True)
    try:
        yield
    finally:
        setattr(flex_module, name, before)
