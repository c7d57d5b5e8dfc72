"""One small layer of self-attention with fixed random projections, which the laws and others run schemes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import milepost as mp

Make = Callable[[], mp.Scheme]
B, H, G, T, D, DV = 2, 4, 2, 13, 8, 6
WIDTH = H * D


def tokens(t: int = T, b: int = B, seed: int = 0) -> Tensor:
    """Random layer inputs [b t width] in float64."""
    return torch.randn(b, t, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(99)
    widths = (H * D, G * D, G * DV)
    return [torch.randn(WIDTH, width, generator=generator, dtype=torch.float64) / 4 for width in widths]


WEIGHTS = _weights()


def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fixed random projections of layer inputs to q [b h t d], k [b g t d], v [b g t dv]."""
    q, k, v = (
        (x @ weight.to(x.dtype)).unflatten(-1, (heads, -1)).transpose(1, 2)
        for heads, weight in zip((H, G, G), WEIGHTS, strict=True)
    )
    return q, k, v


def embedded(scheme: mp.Scheme, x: Tensor, at: Tensor | None = None) -> Tensor:
    """x [b t width] with its positions; where a part embeds words itself, x becomes their numbers first."""
    words = next((part.vocabulary for part in scheme.parts if hasattr(part, "vocabulary")), None)
    return scheme.embed(x if words is None else (x[..., 0].detach() * 10).long() % words, at)


def layer(scheme: mp.Scheme, x: Tensor, embed_at: Tensor | None = None, **options: Any) -> Tensor:
    """One layer of self-attention over x [b t width]."""
    q, k, v = project(embedded(scheme, x, embed_at))
    return mp.attend(q, k, v, scheme.attention, **options)


def fresh(make: Make) -> mp.Scheme:
    """A float64 scheme with weights that are no accident: always the same, none zero, none at a bound."""
    torch.manual_seed(7)
    scheme = make().double()
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(torch.empty_like(weight).uniform_(0.05, 0.4))
    return scheme


def rows_alone(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor, row: int, first: int, last: int) -> Tensor:
    """Attention of tokens first … last − 1 of one row, as a text of its own."""
    q, k, v = (each[row : row + 1, :, first:last] for each in (q, k, v))
    return mp.attend(q, k, v, scheme.attention)
