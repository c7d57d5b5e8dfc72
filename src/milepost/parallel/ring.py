"""Ring: keys go round, and what each rank has made of them so far is merged. No rank holds more than two shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from milepost.attend import attend
from milepost.call.merge import merge
from milepost.choice import CHOICES
from milepost.memory.surroundings import without_autocast
from milepost.memory.table import MEMORY
from milepost.parallel.collectives import around
from milepost.parallel.layout import Span
from milepost.parallel.text import Text
from milepost.scheme import Scheme
from milepost.seams.arguments import spell
from milepost.seams.verbs import Regime, answers, verbs_of


@dataclass(frozen=True)
class Regimes:
    """Some of the regimes of a part that places tokens, without what sets them off against each other."""

    part: Any
    first: int
    last: int

    def place(self) -> tuple[Regime, ...]:
        return tuple(replace(regime, contrast=None) for regime in self.part.place()[self.first : self.last])

    @property
    def relative(self) -> bool:
        """As of the part."""
        return getattr(self.part, "relative", False)

    @property
    def needs_causal(self) -> bool:
        """As of the part."""
        return getattr(self.part, "needs_causal", False)

    @property
    def by_length(self) -> bool:
        """As of the part."""
        return getattr(self.part, "by_length", False)


@dataclass(frozen=True)
class Contrasted:
    """Raise scores by as much as a contrast of strength c does before it takes c times the near ones away: 1 + c."""

    part: Any
    number: int
    relative = True

    @property
    def by_length(self) -> bool:
        """As of the part."""
        return getattr(self.part, "by_length", False)

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        return 1 + self.part.place()[self.number].contrast(index, length)


class Split(NamedTuple):
    """A scheme as schemes whose results over some of the keys can be merged, and what joins them."""

    schemes: tuple[Scheme, ...]
    """Near and far keys where these are set off against each other, else one scheme; without the logit of rest."""
    contrast: Callable[[Tensor, Tensor], Tensor] | None


def refuse(scheme: Scheme, text: Text) -> None:
    """Raise where results over some of the keys cannot be merged."""

    def no(part: object, why: str) -> ValueError:
        return ValueError(f'parallel.attend(how="ring"): {spell(part)} {why}; use how="gather"')

    for part in scheme.answering("bend_rows"):
        raise no(part, "needs whole rows of scores")
    for part in scheme.answering("rest"):
        if verbs_of(part) != ("rest",):
            raise no(part, "does more than rest, and rest is counted once, at the end")
    contrasts = {regime.contrast for regime in scheme.place()} - {None}
    for part in scheme.answering("place") if contrasts else ():
        first = next(number for number, regime in enumerate(scheme.place()) if regime.contrast is not None)
        if len(contrasts) > 1 or any(regime.contrast is None for regime in scheme.place()[first:]):
            raise no(part, "sets regimes off against each other in more than one way")
        if verbs_of(part) != ("place",):
            raise no(part, "sets regimes off against each other, and does more than that")
        for other in scheme.answering("bend"):
            raise no(part, f"sets far scores off against near ones, after {spell(other)} has changed them")
    if text.counts_by_document:
        raise ValueError(
            'parallel.attend(how="ring"): the scheme goes by the length of each document, which only all keys tell; '
            'give length, or use how="gather"'
        )


def split(scheme: Scheme) -> Split:
    """Return a scheme in parts that can be merged; it is made once."""
    found = MEMORY.recall(scheme, Split)
    return MEMORY.keep(scheme, Split, _split(scheme), CHOICES) if found is None else found


def _split(scheme: Scheme) -> Split:
    parts = [part for part in scheme.parts if not answers(part, "rest")]
    regimes = scheme.place()
    first = next((number for number, regime in enumerate(regimes) if regime.contrast is not None), None)
    if first is None:
        return Split((Scheme(*parts),), None)
    (placed,) = scheme.answering("place")
    others = [part for part in parts if part is not placed]
    near = Scheme(Regimes(placed, 0, first), *others)
    far = Scheme(Regimes(placed, first, len(regimes)), Contrasted(placed, first), *others)
    for each in (near, far):
        # What moves tokens does something here even where nothing reads positions.
        each.unread_place = None
    return Split((near, far), regimes[first].contrast)


def by_ring(q: Tensor, k: Tensor, v: Tensor, text: Text) -> Tensor:
    """Return attention of this rank's queries."""
    schemes, contrast = split(text.scheme)
    texts = tuple(text.under(scheme) for scheme in schemes)
    with without_autocast(q.device):
        found = cast("tuple[Tensor, ...]", _Ring.apply(texts, q, k, v, *text.scheme.weights()))
        out, lse, *far = found
        if contrast is not None:
            strength = contrast(text.own_index(q.device), text.own_length(q.device)).to(lse)[:, None]
            # Where nothing near is seen, far scores are set off against 0.
            out, lse = merge(out, lse, far[0], far[1] - strength * lse.masked_fill(lse == -torch.inf, 0.0))
        rest = text.scheme.rest()
        if rest is not None:
            out = out * (lse - rest.to(lse)[:, None]).sigmoid()[..., None]
    return out.to(v.dtype)


class _Pair(NamedTuple):
    """One of this rank's spans, and a span of keys that it may see."""

    queries: Span
    keys: Span
    rows: slice
    """Where the queries lie among this rank's own."""
    k: Tensor
    v: Tensor
    of_k: Tensor
    """Where the gradient of the keys is added up, on its way home."""
    of_v: Tensor

    def attended(self, q: Tensor, text: Text, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention of its queries to its keys, and the log-sum-exp."""
        options = text.options(self.queries, self.keys)
        return attend(q, k, v, text.scheme, backend=text.backend, return_lse=True, **options)


class _Round:
    """Keys and values of every rank in turn, this rank's first, and with them the gradients that they gain."""

    def __init__(self, text: Text, k: Tensor, v: Tensor, gradients: bool) -> None:
        self.text, self.gradients = text, gradients
        self.shapes = [(*x.shape[:2], text.layout.most, x.shape[3]) for x in (k, v)]
        room = [x.new_zeros(shape) for x, shape in zip((k, v), self.shapes, strict=True)]
        for x, to in zip((k, v), room, strict=True):
            to[:, :, : x.shape[2]] = x
        self.block = torch.cat([x.flatten() for x in room])
        self.gained = torch.zeros_like(self.block) if gradients else self.block

    def __iter__(self) -> Iterator[_Pair]:
        text, n = self.text, self.text.layout.ranks
        for step in range(n):
            source = (text.rank - step) % n
            arrives, keys_travel = around(self.block, text.group) if step < n - 1 else (self.block, [])
            k, v, of_k, of_v = *self._views(self.block), *self._views(self.gained)
            for queries, rows in text.layout.local(text.rank):
                for keys, place in text.layout.within(source, text.sees(queries)):
                    yield _Pair(queries, keys, rows, *(x[:, :, place] for x in (k, v, of_k, of_v)))
            if self.gradients and n > 1:
                # After the last step they are sent home.
                gained, gradients_travel = around(self.gained, text.group)
                for each in gradients_travel:
                    each.wait()
                self.gained = gained
            for each in keys_travel:
                each.wait()
            self.block = arrives

    @property
    def home(self) -> tuple[Tensor, Tensor]:
        """The gradients of this rank's keys and values, after the round."""
        k, v = self._views(self.gained)
        own = slice(self.text.layout.tokens(self.text.rank))
        return k[:, :, own], v[:, :, own]

    def _views(self, block: Tensor) -> tuple[Tensor, Tensor]:
        k, v = torch.split(block, [math.prod(shape) for shape in self.shapes])
        return k.view(self.shapes[0]), v.view(self.shapes[1])


class _Ring(torch.autograd.Function):
    """Attention of a rank's queries to keys that go round: out and lse of every scheme, in the dtype of scores.

    Nothing of the keys of others is kept: for gradients they go round once more, each pair of spans is attended to
    again, and the gradients of keys and values travel with them until they are home.
    """

    @staticmethod
    def forward(ctx: Any, texts: tuple[Text, ...], *given: Tensor) -> tuple[Tensor, ...]:
        q, k, v = given[:3]
        dtype, results = torch.promote_types(q.dtype, torch.float32), list[Tensor]()
        for _ in texts:
            results += (
                q.new_zeros(*q.shape[:3], v.shape[3], dtype=dtype),
                q.new_full(q.shape[:3], -torch.inf, dtype=dtype),
            )
        for pair in _Round(texts[0], k, v, gradients=False):
            for n, text in enumerate(texts):
                part, sums = pair.attended(q[:, :, pair.rows], text, pair.k, pair.v)
                out, lse = (each[:, :, pair.rows] for each in results[2 * n : 2 * n + 2])
                for to, merged in zip((out, lse), merge(out, lse, part.to(dtype), sums), strict=True):
                    to.copy_(merged)
        ctx.save_for_backward(*given, *results)
        ctx.texts, ctx.count = texts, len(given)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        (q, k, v, *weights), results = saved[: ctx.count], saved[ctx.count :]
        learned = [weight for weight, need in zip(weights, ctx.needs_input_grad[4:], strict=True) if need]
        of_q, of_weights = torch.zeros_like(q), [torch.zeros_like(weight) for weight in learned]
        # What the sum over all keys takes from the gradient of each score.
        taken = [(grads[n] * results[n]).sum(-1) - grads[n + 1] for n in range(0, len(results), 2)]
        travelling = _Round(ctx.texts[0], k, v, gradients=True)
        for pair in travelling:
            rows = pair.rows
            for n, text in enumerate(ctx.texts):
                cut = [each.detach().requires_grad_() for each in (q[:, :, rows], pair.k, pair.v)]
                with torch.enable_grad():
                    part, sums = pair.attended(cut[0], text, cut[1], cut[2])
                grad, lse = grads[2 * n][:, :, rows], results[2 * n + 1][:, :, rows]
                share = (sums.detach() - lse.masked_fill(lse == -torch.inf, 0.0)).exp()
                score = share * ((grad * part.detach()).sum(-1) - taken[n][:, :, rows])
                ends = (share[..., None] * grad).to(part.dtype), score.to(sums.dtype)
                made = torch.autograd.grad((part, sums), [*cut, *learned], ends, allow_unused=True)
                gained = cast("Sequence[Tensor | None]", made)
                for to, one in zip((of_q[:, :, rows], pair.of_k, pair.of_v, *of_weights), gained, strict=True):
                    if one is not None:
                        to += one
        back = iter(of_weights)
        return None, of_q, *travelling.home, *(next(back) if need else None for need in ctx.needs_input_grad[4:])
