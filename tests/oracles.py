"""Attention as the papers write it: one pair of tokens at a time, in float64, with nothing taken from the package."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Score = Callable[[int, int, int, int], "Tensor | float"]
"""The logit of (batch, head, i, j), or −∞ where the key is hidden; i and j are row numbers."""
Value = Callable[[int, int, int, int], Tensor]
"""The value vector that (batch, head, i, j) brings."""


def attention(shape: tuple[int, int, int, int], score: Score, value: Value, rest: Tensor | None = None) -> Tensor:
    """out[b, h, i] = Σ_j e^score / (Σ_j e^score + e^rest_h) · value; a row without keys gives zeros.

    shape: (b, h, t, s).
    """
    b, h, t, s = shape
    rows: list[Tensor] = []
    for batch in range(b):
        for head in range(h):
            for i in range(t):
                logits = torch.stack([torch.as_tensor(score(batch, head, i, j), dtype=torch.float64) for j in range(s)])
                vectors = torch.stack([value(batch, head, i, j) for j in range(s)])
                if torch.isinf(logits).all():
                    rows.append(torch.zeros_like(vectors[0]))
                    continue
                if rest is not None:
                    logits = torch.cat([logits, rest[head : head + 1].double()])
                weights = torch.exp(logits - logits.max())
                weights = weights / weights.sum()
                rows.append(weights[:s] @ vectors)
    return torch.stack(rows).view(b, h, t, -1)


def plain(q: Tensor, k: Tensor, v: Tensor, logit: Score) -> Tensor:
    """Attention whose values carry no position; key heads are shared by consecutive query heads."""
    group = q.shape[1] // k.shape[1]
    return attention((*q.shape[:3], k.shape[2]), logit, lambda b, h, i, j: v[b, h // group, j])


def dots(q: Tensor, k: Tensor, scale: float | None = None) -> Callable[[int, int, int, int], Tensor]:
    """The scaled dot product of (batch, head, i, j); the scale is 1/√d unless told."""
    group, by = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[3]) if scale is None else scale
    return lambda b, h, i, j: q[b, h, i] @ k[b, h // group, j] * by


def hidden_future(t: int) -> Tensor:
    """A bias [t t] that hides the keys ahead of each query."""
    return torch.full((t, t), -math.inf, dtype=torch.float64).triu(1)


def in_complex(x: Tensor, pairs: str) -> Tensor:
    """Pairs of channels as complex numbers, [… d] → [… d/2]."""
    a, b = x.chunk(2, -1) if pairs == "halves" else (x[..., ::2], x[..., 1::2])
    return torch.complex(a, b)


def turned(x: Tensor, position: Tensor) -> Tensor:
    """R_position x as complex pairs (n, n + d/2)."""
    d = x.shape[-1]
    angle = position.double()[..., None] * 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    return torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.exp(1j * angle)


def inputs(
    b: int = 2,
    h: int = 4,
    g: int = 2,
    t: int = 11,
    s: int | None = None,
    d: int = 8,
    dv: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q [b h t d], k [b g s d], v [b g s dv] in float64."""
    generator = torch.Generator().manual_seed(seed)
    s, dv = t if s is None else s, d if dv is None else dv
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, dv))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k, v


def assert_same(ours: Tensor, oracle: Tensor, within: float = 1e-12) -> None:
    """Equal to 1e-12, shape included; NaN never passes."""
    assert ours.shape == oracle.shape, (ours.shape, oracle.shape)
    apart = float((ours.detach().double() - oracle.detach().double()).abs().max()) if ours.numel() else 0.0
    assert not math.isnan(apart), "NaN"
    assert apart <= within, f"apart by {apart:.3e}, allowed {within:.0e}"
