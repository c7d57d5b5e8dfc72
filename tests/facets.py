"""What a method says of itself is what it does: one law a facet. A law takes a part and asserts; it knows no names.

Parts are sized as in `tests/cases.py`: H heads of D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from milepost.seams.band import Band
from milepost.seams.facets import facets_of
from tests.layers import DV, B, D, H
from tests.oracles import assert_same, in_complex

T = 6


def facets_mean_what_verbs_do(part: object) -> None:
    """Every law whose facet the part answers."""
    for facet in facets_of(part):
        if facet in FACET_LAWS:
            FACET_LAWS[facet](part)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same_gradients(part: Any, one: Tensor, other: Tensor) -> None:
    """Both depend on the part's weights alike."""
    weights = list(part.parameters()) if isinstance(part, torch.nn.Module) else []
    if not weights:
        return
    ways = numbers(*one.shape, seed=9)
    grads = (torch.autograd.grad((each * ways).sum(), weights, allow_unused=True) for each in (one, other))
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


# normal


def sees_its_band(part: Any) -> None:
    """`see` is what the four numbers say, for every head."""
    band = part.normal()
    if band is None:
        return
    n = 24
    zero, at = torch.zeros((), dtype=torch.long), torch.arange(n)
    shown = torch.tensor([[in_band(band, i, j) for j in range(n)] for i in range(n)])
    for head in range(H):
        assert torch.equal(part.see(zero, torch.tensor(head), at[:, None], at).expand(n, n), shown)


def in_band(band: Band, i: int, j: int) -> bool:
    """The definition of a band, for one pair."""
    near = i - j < band.behind or j < band.sinks
    return j - i <= band.ahead and near and (band.chunk is None or i // band.chunk == j // band.chunk)


FACET_LAWS: dict[str, Callable[[Any], None]] = {
    "cos_sin": turns_by_its_cosines,
    "normal": sees_its_band,
}
