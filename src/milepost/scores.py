"""`scores` and `weights`: what attention computes on its way to the values, as tensors to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from milepost.attend import check_names
from milepost.backends.scores import masked, no_values, prepare
from milepost.call.call import Call
from milepost.call.inputs import refuse_kinds
from milepost.call.options import Options
from milepost.call.resolve import resolve
from milepost.call.tokens import CachedKeys
from milepost.memory.surroundings import without_autocast
from milepost.scheme import Scheme
from milepost.seams.arguments import spell

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Rows = int | slice | range | Sequence[int] | Tensor


def scores(
    q: Tensor,
    k: Tensor,
    scheme: Scheme,
    *,
    rows: Rows | None = None,
    v: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """Return the scores that the softmax is taken of, [b h t s]: −∞ where a key is hidden.

        mp.scores(q, k, Scheme(Rope(64), LogN(trained=512), causal), rows=range(0, 32_768, 256))

    Takes the arguments of `attend`, and returns float32, or float64 for float64 inputs. All that changes a score is in
    it: rotation, tables, scale, temperature, biases, masks, and the parts that change whole rows (CoPE, Pivot, Dilute).
    Gradients flow to q, k and the learned parts.

    rows: the queries that are looked at, a number, a slice, a range, or a list or tensor of numbers, counted over the t
    queries; t in the result is then how many there are. Memory is that of the result.
    v: the values, for CoPE(gates="values"), which reads them.
    """
    call, chosen = _asked("scores", q, k, scheme, rows, v, options)
    with without_autocast(q.device):
        return _scores(call, chosen)


def weights(
    q: Tensor,
    k: Tensor,
    scheme: Scheme,
    *,
    rows: Rows | None = None,
    v: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """Return the attention weights, [b h t s]: the softmax of `scores`, whose arguments these are.

    A row sums to 1. Under a sink logit (SinkLogit, SoftmaxOne) it sums to less: the rest went to nothing. A row that
    sees no key is 0.
    """
    call, chosen = _asked("weights", q, k, scheme, rows, v, options)
    with without_autocast(q.device):
        found = _scores(call, chosen)
        alive = (found != -torch.inf).any(-1, keepdim=True)
        # An even row in place of a dead one keeps softmax and its gradient finite.
        found = found.masked_fill(~alive, 0.0)
        shares, rest = torch.softmax(found, -1), call.scheme.rest()
        if rest is not None:
            shares = shares * torch.sigmoid(found.logsumexp(-1, keepdim=True) - rest.to(found)[:, None, None])
        return shares.masked_fill(~alive, 0.0)


def _asked(
    caller: str, q: Tensor, k: Tensor, scheme: Scheme, rows: Rows | None, v: Tensor | None, options: Options
) -> tuple[Call, list[int] | None]:
    """Return the call with its defaults filled in, and the numbers of the rows that are looked at."""
    check_names(caller, options)
    if not isinstance(scheme, Scheme):
        raise TypeError(
            f"{caller}: the third argument is a Scheme, given {type(scheme).__name__}; {caller}(q, k, scheme)"
        )
    if dropout := options.get("dropout"):
        raise ValueError(f"{caller}(dropout={dropout}): weights are shown before any is dropped; leave it out")
    refuse_kinds(q, k, v)
    for part in scheme.answering("bend_rows") if v is None else ():
        if getattr(part, "gates", None) == "values":
            raise ValueError(f"{caller}: {spell(part)} reads the values; give v=")
    plain = k.plain if isinstance(k, CachedKeys) else k
    call = resolve(q, k, no_values(scheme, plain) if v is None else v, scheme, options)
    return call, None if rows is None else _numbers(caller, rows, q.shape[2])


def _scores(call: Call, chosen: list[int] | None) -> Tensor:
    """Return final scores of the chosen rows, with keys in the order in which they were handed over."""
    b, h, t, s = *call.q.shape[:3], call.k.shape[2]
    count = t if chosen is None else len(chosen)
    if not (b and count and s):
        return call.q.new_zeros(b, h, count, s, dtype=call.score_dtype)
    made = prepare(call)
    found = [masked(made, each) for each in ([slice(None)] if chosen is None else _runs(chosen))]
    whole = found[0] if len(found) == 1 else torch.cat(found, 2)
    if call.key_order is None:
        return whole
    return whole.take_along_dim(call.key_order.argsort(-1)[:, None, None], 3)


def _numbers(caller: str, rows: Rows, t: int) -> list[int]:
    """Return the numbers of the rows, none of them below 0."""
    if isinstance(rows, slice):
        return list(range(t)[rows])
    if isinstance(rows, Tensor) and (rows.is_floating_point() or rows.dtype == torch.bool or rows.dim() > 1):
        raise TypeError(f"{caller}: rows is {rows.dtype} {list(rows.shape)}; give whole numbers [n]")
    if isinstance(rows, Tensor):
        rows = cast("list[int]", rows.reshape(-1).tolist())
    listed = [rows] if isinstance(rows, int) else list(rows)
    for each in listed:
        if type(each) is not int:
            raise TypeError(f"{caller}: rows holds {each!r}; give whole numbers")
        if not -t <= each < t:
            raise IndexError(f"{caller}: rows holds {each}, but there are {t} queries")
    return [each % t for each in listed]


def _runs(numbers: list[int]) -> Iterator[slice]:
    """Cut numbers into runs that count up by one."""
    first = 0
    for place, (one, following) in enumerate(pairwise(numbers), 1):
        if following != one + 1:
            yield slice(numbers[first], one + 1)
            first = place
    yield slice(numbers[first], numbers[-1] + 1)


__all__ = ["scores", "weights"]
