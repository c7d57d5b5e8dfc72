"""Phases worked out with sixty digits, and attention under stretches that follow the length, one pair at a time."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor

TAU = Decimal("6.283185307179586476925286766559005768394338798750211641949889184615632812572417997256069650684234136")
TRAINED = 5


def exact_angle(position: int, n: int, dim: int, theta: int = 10000) -> float:
    """position · θ^(−2n/dim), less whole turns, worked out with sixty digits."""
    with localcontext() as context:
        context.prec = 60
        frequency = (Decimal(theta).ln() * Decimal(-2 * n) / Decimal(dim)).exp()
        return float((Decimal(position) * frequency) % TAU)


def exact_turns(positions: list[int], dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [t dim/2], correctly rounded float64 or as good as."""
    angles = [[exact_angle(position, n, dim) for n in range(dim // 2)] for position in positions]
    cos = torch.tensor([[math.cos(angle) for angle in row] for row in angles], dtype=torch.float64)
    sin = torch.tensor([[math.sin(angle) for angle in row] for row in angles], dtype=torch.float64)
    return cos, sin


def unit_pairs(dim: int, t: int, dtype: torch.dtype) -> Tensor:
    """[1 1 t dim], every pair (1, 0): turned by an angle it becomes (cos, sin), with halves paired."""
    return torch.cat((torch.ones(dim // 2), torch.zeros(dim // 2))).to(dtype).expand(1, 1, t, dim)


def phase_error(turned: Tensor, cos: Tensor, sin: Tensor) -> float:
    """The largest angle between (cos, sin) and what unit pairs were turned to."""
    a, b = turned[0, 0].double().chunk(2, -1)
    return float(torch.atan2(b * cos - a * sin, a * cos + b * sin).abs().max())


def frequencies_and_magnitude(name: str, length: int) -> tuple[list[float], float]:
    """The papers' frequencies for a text of a length, 4 pairs of 8 channels, θ = 100."""
    theta = [100.0 ** (-2 * n / 8) for n in range(4)]
    if "NTK" in name:
        factor = 4.0 if "factor 4" in name else 1.0
        base = 100.0 * (factor * length / TRAINED - (factor - 1)) ** (8 / 6) if length > TRAINED else 100.0
        return [base ** (-2 * n / 8) for n in range(4)], 1.0
    if "YaRN" in name:
        s = max(1.0, length / TRAINED)
        kept = [min(1.0, max(0.0, (TRAINED * f / (2 * math.pi) - 0.1) / (0.6 - 0.1))) for f in theta]
        return [(1 - g) * f / s + g * f for f, g in zip(theta, kept, strict=True)], 0.1 * math.log(s) + 1
    factors = (1.5, 2.0, 4.0, 8.0) if length > TRAINED else (1.0, 1.1, 1.3, 1.6)
    return [f / by for f, by in zip(theta, factors, strict=True)], math.sqrt(1 + math.log(4.0) / math.log(TRAINED))


def turned_by(x: Tensor, position: int, frequencies: list[float], size: float) -> Tensor:
    out = x.clone()
    for n, frequency in enumerate(frequencies):
        c, s = math.cos(position * frequency) * size, math.sin(position * frequency) * size
        out[n], out[n + 4] = x[n] * c - x[n + 4] * s, x[n + 4] * c + x[n] * s
    return out


def last_row(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the last of the tokens attends to, [b h 1 dv], one pair at a time."""
    length = k.shape[2]
    frequencies, size = frequencies_and_magnitude(name, length)
    out = torch.zeros(*q.shape[:2], 1, v.shape[3], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            mine = turned_by(q[b, h, -1], length - 1, frequencies, size)
            keys = [turned_by(k[b, h // 2, j], j, frequencies, size) for j in range(length)]
            out[b, h, 0] = torch.softmax(torch.stack([mine @ key for key in keys]) / math.sqrt(8), 0) @ v[b, h // 2]
    return out
