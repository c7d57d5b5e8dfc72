"""What a method says of itself is what it does: one law a facet. A law takes a part and asserts; it knows no names.

Parts are sized as in `tests/cases.py`: H heads of D channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from milepost.seams.facets import facets_of
from tests.layers import DV, B, D, H
from tests.oracles import assert_same, in_complex
from tests.regions import looks_few_rows_up, looks_rows_up_by_distance, places_by_its_bounds, sees_its_band

T = 6


def facets_mean_what_verbs_do(part: object) -> None:
    """Every law whose facet the part answers."""
    for facet in facets_of(part):
        FACET_LAWS[facet](part)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same_gradients(part: Any, one: Tensor, other: Tensor) -> None:
    """Both depend on the part's weights alike."""
    weights = list(part.parameters()) if hasattr(part, "parameters") else []
    if not weights:
        return
    sums = [(each * numbers(*one.shape, seed=9)).sum() for each in (one, other)]
    grads = (torch.autograd.grad(each, weights, allow_unused=True, retain_graph=True) for each in sums)
    for ours, theirs in zip(*grads, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert_same(ours, theirs, within=1e-10)


# cos_sin


def turns_by_its_cosines(part: Any) -> None:
    """`turn` is the rotation of pairs by cos_sin, at whole and broken positions, of every side and at every length."""
    lengths = (None, 9, torch.tensor([[9], [4]]), torch.full((1, T), 12))
    for position, length, side in product(_positions(part), lengths, ("query", "key", "value")):
        if position.dim() == 3 and length is not None:
            continue
        x = numbers(B, H, T, DV if side == "value" else D)
        ours, by_facet = part.turn(x, position, side, length), rotated(part, x, position, side, length)
        assert_same(ours, by_facet)
        if ours.requires_grad:
            same_gradients(part, ours, by_facet)
        cos, sin = part.cos_sin(position, length, side)
        assert (cos.dtype, sin.dtype) == (torch.float32, torch.float32)
        steps = part.steps(x.device)
        if steps is not None and side != "value":
            angle = position.double()[..., None] * steps[0]
            for ours, exact in zip(
                part.cos_sin(position, length, side, torch.float64), (angle.cos(), angle.sin()), strict=True
            ):
                assert_same(ours, exact * steps[1])


def _positions(part: Any) -> list[Tensor]:
    row = torch.arange(T)
    found = [row + 3, torch.stack([row, row * 2]), torch.stack([row - 2, row * 3]) * 0.5]
    axes = getattr(part, "axes", None)
    return found if axes is None else [*found, torch.arange(B * T * axes).view(B, T, axes) % 7]


def rotated(part: Any, x: Tensor, position: Tensor, side: Any, length: Any) -> Tensor:
    """What a kernel makes of x from the facet alone: pairs as complex numbers, times cos + i · sin."""
    by = part.for_values(x.shape[-1]) if side == "value" else part
    if by is None:
        return x
    cos, sin = by.cos_sin(position, length, side, torch.float64)
    assert cos.shape[-1] == sin.shape[-1] == by.width // 2
    turning = torch.complex(cos, sin).unflatten(-1, (by.blocks, -1))
    turning = turning if cos.dim() == 2 else turning[:, None]
    pairs = in_complex(x[..., : by.width].unflatten(-1, (by.blocks, -1)), by.pairs) * turning
    axis = -2 if by.pairs == "halves" else -1
    turned = torch.stack((pairs.real, pairs.imag), axis).flatten(-2).flatten(-2)
    size = None if side == "value" else part.beyond(position, length)
    if isinstance(size, Tensor):
        size = size[:, None, :, None] if size.dim() == 2 else size[:, None]
    rest = x[..., by.width :]
    return torch.cat((turned, rest if size is None else rest * size), -1)


# What is added to scores

DISTANCES = torch.tensor([-700, -30, -9, -8, -2.5, -1, -0.25, 0, 0.25, 1, 1.5, 2, 3, 5, 8, 9, 10, 31, 640]).double()
"""Whole ones and fractions of either sign, past every reach of the cases."""


def added(part: Any, p: Tensor, r: Tensor, **length: Tensor) -> Tensor:
    """What the verb adds to a score of zero: [h, ...]."""
    head = torch.arange(H).view(-1, *[1] * p.dim())
    return part.bend(torch.zeros(1, dtype=torch.float64), torch.tensor(0), head, p, r, **length).expand(H, *p.shape)


def bends_by_its_slopes(part: Any) -> None:
    """`bend` adds a number that is linear in the distance on either side of the query, at every length."""
    by_length = getattr(part, "by_length", False)
    for length in (torch.tensor(4), torch.tensor([3, 40, 900])) if by_length else (None,):
        found = part.slopes() if length is None else part.slopes(length)
        step = torch.zeros_like(found.behind) if found.step is None else found.step
        sides = [each.unsqueeze(-1) for each in (found.behind, found.ahead, step)]
        behind, ahead, step = (each.double() for each in sides)
        assert all(each.dtype in (torch.float32, torch.float64) for each in sides)
        d = DISTANCES
        ours = torch.where(d > 0, step - behind * d, torch.where(d < 0, ahead * d, 0.0))
        ways = [{}] if length is None else [{"length": each} for each in length.reshape(-1)]
        verb = torch.stack([added(part, d + 3, torch.full_like(d, 3), **way) for way in ways])
        ours = ours.reshape(verb.shape)
        assert_same(ours, verb, within=1e-11)
        same_gradients(part, ours, verb)


def bends_by_distance(part: Any) -> None:
    """`bend` adds what by_distance says, wherever the pair stands, and one value past constant_past on either side."""
    d = DISTANCES
    ours = part.by_distance(d)
    assert ours.shape[0] in (1, H)
    assert ours.dtype in (torch.float32, torch.float64)
    for start in (0, 1000):
        verb = added(part, d + start, torch.full_like(d, start))
        assert_same(ours.expand_as(verb), verb, within=1e-9)
        same_gradients(part, ours.expand_as(verb), verb)
    for end, sign in zip(part.constant_past, (1, -1), strict=True):
        if end < math.inf:
            past = part.by_distance(sign * (end + torch.tensor([0, 1, 7, 5000]).double()))
            assert_same(past, past[:, :1].expand_as(past))


def learns_two_numbers(part: Any) -> None:
    """by_distance grows in proportion with the first, and with the second as its derivative says."""
    distance = DISTANCES
    added, (factor, number, derivative) = part.by_distance(distance), part.two_numbers(distance)
    assert factor.shape == number.shape == (H,)
    assert derivative.shape == added.shape == (H, len(distance))
    assert not derivative.requires_grad
    # At far distances both are large, and sums of them would be less exact than their law.
    large = 1 + derivative.abs() + (added / factor[:, None]).abs().detach()
    weights = torch.linspace(-1, 2, added.numel(), dtype=added.dtype).view_as(added) / large
    in_proportion = factor * ((weights * added).sum(1) / factor).detach()
    same_gradients(part, in_proportion + number * (weights * derivative).sum(1), (weights * added).sum(1))


def picks_by_bucket(part: Any) -> None:
    """by_distance is the row of the distance's bucket, in every head."""
    added, (table, bucket) = part.by_distance(torch.arange(-40, 700)), part.by_bucket(-40, 700, torch.device("cpu"))
    assert table.shape[1] == H
    assert bucket.dtype == torch.int64
    ours = torch.stack([table[int(row)] for row in bucket], 1)
    assert_same(ours, added, within=1e-11)
    same_gradients(part, ours, added)


def bends_by_share(part: Any) -> None:
    """`bend` adds a function of one number, which the distance and the query's position make."""
    p = torch.tensor([0, 1, 2, 5, 30, 800]).double()[:, None]
    r = p - torch.tensor([0, 0.5, 1, 4, 29, 700]).double()
    share = part.share(p - r, p)
    assert share.shape == r.shape
    ours = part.by_share(share)
    assert ours.dtype in (torch.float32, torch.float64)
    verb = added(part, p.expand_as(r), r)
    assert_same(ours, verb, within=1e-11)
    same_gradients(part, ours, verb)


def bends_by_count(part: Any) -> None:
    """`bend_rows` adds what by_count says of the open gates from a key on, linearly between whole counts."""
    q, scores = numbers(B, H, T, D), numbers(B, H, T, T, seed=1) * 3
    hidden = torch.ones(T, T).triu(1).bool()
    entries = part.by_count(q)
    assert entries.shape[:3] == (B, H, T)
    if part.gates != "scores":
        return
    ours = scores.masked_fill(hidden, -math.inf)
    for b, h, i in product(range(B), range(H), range(T)):
        count, most = 0.0, entries.shape[3] - 1
        for j in range(i, -1, -1):
            count += 1 / (1 + math.exp(-float(scores[b, h, i, j])))
            low = min(int(count), most)
            share = count - low if low < most else 0.0
            row = entries[b, h, i]
            ours[b, h, i, j] = scores[b, h, i, j] + (1 - share) * row[low] + share * row[min(low + 1, most)]
    verb = part.bend_rows(scores.masked_fill(hidden, -math.inf), q, None)
    seen = [each.masked_fill(hidden, 0.0) for each in (ours, verb)]
    assert_same(*seen, within=1e-11)
    same_gradients(part, *seen)


def bends_into_its_cap(part: Any) -> None:
    """`bend` is cap · tanh(score / cap), wherever the pair stands."""
    score = numbers(H, 5, 5) * 3 * part.cap
    at = torch.arange(5)
    bent = part.bend(score, torch.tensor(0), torch.arange(H).view(-1, 1, 1), at[:, None], at)
    assert_same(bent, part.cap * torch.tanh(score / part.cap))


FACET_LAWS: dict[str, Callable[[Any], None]] = {
    "cos_sin": turns_by_its_cosines,
    "slopes": bends_by_its_slopes,
    "by_distance": bends_by_distance,
    "two_numbers": learns_two_numbers,
    "by_bucket": picks_by_bucket,
    "by_share": bends_by_share,
    "by_count": bends_by_count,
    "cap": bends_into_its_cap,
    "tables": looks_rows_up_by_distance,
    "relate_at": looks_few_rows_up,
    "bounds": places_by_its_bounds,
    "normal": sees_its_band,
}
