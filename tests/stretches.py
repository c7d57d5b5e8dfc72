"""The stretches of RoPE as their papers write them, and how to read one that is ours."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from milepost import DynamicNtk, DynamicYarn, Interpolate, Llama3, LongRope, Ntk, Rope, Yarn
from tests.oracles import Score, assert_same


def stretched(stretch: Any, dim: int = 128, theta: float = 10000.0, length: int = 1) -> tuple[Tensor, float]:
    """The frequencies [d/2] and the magnitude of a stretched Rope, read from its cosines and sines at position 1."""
    one = torch.ones(1, dtype=torch.float64)
    cos, sin = (table[0] for table in Rope(dim, theta=theta, stretch=stretch).cos_sin(one, length, dtype=torch.float64))
    sizes = torch.hypot(cos, sin)
    assert_same(sizes, sizes[:1].expand_as(sizes))
    return torch.atan2(sin, cos), float(sizes[0])


def assert_ratio(ours: Tensor, oracle: Sequence[float] | Tensor, within: float = 1e-12) -> None:
    """Equal as ratios: the slow frequencies count as much as the fast ones."""
    ratio = ours / torch.as_tensor(oracle, dtype=torch.float64)
    assert_same(ratio, torch.ones_like(ratio), within)


# The papers' formulas. Each maps (dim, theta, length) to the frequencies and the factor on cos and sin.

Oracle = Callable[[int, float, int], "tuple[list[float], float]"]


def unstretched(d: int, theta: float) -> list[float]:
    return [theta ** (-2 * n / d) for n in range(d // 2)]


def interpolated(factor: float) -> Oracle:
    return lambda d, theta, length: ([f / factor for f in unstretched(d, theta)], 1.0)


def ntk(factor: float) -> Oracle:
    return lambda d, theta, length: (unstretched(d, theta * factor ** (d / (d - 2))), 1.0)


def dynamic_ntk(trained: int, factor: float) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        alpha = factor * length / trained - (factor - 1) if length > trained else 1.0
        return unstretched(d, theta * alpha ** (d / (d - 2))), 1.0

    return answer


def blended(f: list[float], factor: float, kept: list[float]) -> list[float]:
    return [(1 - g) * each / factor + g * each for each, g in zip(f, kept, strict=True)]


def by_turns(f: list[float], trained: int, slow: float, fast: float) -> list[float]:
    """The paper's γ: by how many turns a pair makes within the trained length."""
    turns = [trained * each / (2 * math.pi) for each in f]
    return [0.0 if r < slow else 1.0 if r > fast else (r - slow) / (fast - slow) for r in turns]


def by_pairs(d: int, theta: float, trained: int, slow: float, fast: float, truncate: bool) -> list[float]:
    """The authors' code's γ: by the number of the pair."""

    def where(turns: float) -> float:
        return d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = where(fast), where(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    return [1 - min(max((n - low) / (high - low), 0), 1) for n in range(d // 2)]


def yarn(
    factor: float | None,
    trained: int,
    ramp: str = "code",
    slow: float = 1.0,
    fast: float = 32.0,
    truncate: bool = True,
    scaled: float | None = None,
) -> Oracle:
    """Without a factor it follows the length."""

    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        s = max(1.0, length / trained) if factor is None else factor
        f = unstretched(d, theta)
        kept = by_pairs(d, theta, trained, slow, fast, truncate) if ramp == "code" else by_turns(f, trained, slow, fast)
        return blended(f, s, kept), 0.1 * math.log(s) + 1 if scaled is None else scaled

    return answer


def llama3(factor: float, trained: int, low: float = 1.0, high: float = 4.0) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        out: list[float] = []
        for f in unstretched(d, theta):
            wave = 2 * math.pi / f
            smooth = (trained / wave - low) / (high - low)
            if wave < trained / high:
                out.append(f)
            elif wave > trained / low:
                out.append(f / factor)
            else:
                out.append((1 - smooth) * f / factor + smooth * f)
        return out, 1.0

    return answer


def long_rope(short: Sequence[float], long: Sequence[float], trained: int, factor: float) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        chosen = long if length > trained else short
        size = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
        return [f / each for f, each in zip(unstretched(d, theta), chosen, strict=True)], size

    return answer


SHORT, LONG = (1.0, 1.1, 1.25, 1.5), (1.0, 2.5, 6.0, 20.0)

# With theta 50 and 8 channels, every ramp below has pairs at both ends and between.
STRETCHES: list[tuple[Any, Oracle]] = [
    (Interpolate(4), interpolated(4)),
    (Ntk(4.5), ntk(4.5)),
    (DynamicNtk(5), dynamic_ntk(5, 1.0)),
    (DynamicNtk(5, factor=3), dynamic_ntk(5, 3)),
    (DynamicNtk(5000), dynamic_ntk(5000, 1.0)),
    (Yarn(8, 5, slow=0.1, fast=0.7), yarn(8, 5, slow=0.1, fast=0.7)),
    (Yarn(8, 5, slow=0.1, fast=0.7, truncate=False), yarn(8, 5, slow=0.1, fast=0.7, truncate=False)),
    (Yarn(8, 5, ramp="paper", slow=0.1, fast=0.7), yarn(8, 5, "paper", slow=0.1, fast=0.7)),
    (Yarn(8, 5, slow=0.1, fast=0.7, scaled=1.5), yarn(8, 5, slow=0.1, fast=0.7, scaled=1.5)),
    (DynamicYarn(5, slow=0.1, fast=0.7), yarn(None, 5, slow=0.1, fast=0.7)),
    (DynamicYarn(5, slow=0.1, fast=0.7, truncate=False), yarn(None, 5, slow=0.1, fast=0.7, truncate=False)),
    (DynamicYarn(5, ramp="paper", slow=0.1, fast=0.7), yarn(None, 5, "paper", slow=0.1, fast=0.7)),
    (Llama3(8, 5, low=0.1, high=0.7), llama3(8, 5, low=0.1, high=0.7)),
    (LongRope(SHORT, LONG, 5, factor=8), long_rope(SHORT, LONG, 5, 8)),
    (LongRope(SHORT, LONG, 5000, factor=8), long_rope(SHORT, LONG, 5000, 8)),
]


def stretched_score(q: Tensor, k: Tensor, oracle: Oracle, theta: float, pairs: str) -> Score:
    """m² · Σ_n Re[q_n · conj(k_n) · e^(i(p − r)θ′_n)] / √d, causal; the text is as long as there are keys."""
    d, s, group, behind = q.shape[-1], k.shape[2], q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    frequencies, size = oracle(d, theta, s)

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i + behind:
            return -math.inf
        a, c, total = q[b, h, i].tolist(), k[b, h // group, j].tolist(), 0.0
        for n, f in enumerate(frequencies):
            one, two = (n, n + d // 2) if pairs == "halves" else (2 * n, 2 * n + 1)
            turn = cmath.exp(1j * (i + behind - j) * f)
            total += (complex(a[one], a[two]) * complex(c[one], -c[two]) * turn).real
        return total * size**2 / math.sqrt(d)

    return score
