"""Angles stay exact at every position, whatever dtype surrounds them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import mpmath
import pytest
import torch
from torch import Tensor

from milepost import AxialRope, Interpolate, Llama3, Partial, Rope, Scheme, Xpos, attend

POSITIONS = (0, 1, 511, 4095, 131071, 10**6 + 3, 10**7)
THETAS = (1e4, 5e5, 1e6, 1e7)
DIM = 64
WITHIN = 2e-7


@functools.cache
def exact(theta: float, divisor: int = 1) -> tuple[Tensor, Tensor]:
    """cos and sin of p · θ^(−2n/d) / divisor for every position and pair, from fifty digits: float64 [t d/2]."""
    with mpmath.workdps(50):
        angles = [
            [p * mpmath.mpf(theta) ** (-mpmath.mpf(2 * n) / DIM) / divisor for n in range(DIM // 2)] for p in POSITIONS
        ]
        cos, sin = ([[float(f(a)) for a in row] for row in angles] for f in (mpmath.cos, mpmath.sin))
    return torch.tensor(cos, dtype=torch.float64), torch.tensor(sin, dtype=torch.float64)


def places(dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(POSITIONS, dtype=dtype)


def unit_pairs(pairs: str, dtype: torch.dtype, d: int = DIM) -> Tensor:
    """(1, 0) in every pair: [1 1 t d]."""
    x = torch.zeros(1, 1, len(POSITIONS), d, dtype=dtype)
    x[..., slice(0, d // 2) if pairs == "halves" else slice(0, d, 2)] = 1
    return x


def apart(x: Tensor, pairs: str) -> tuple[Tensor, Tensor]:
    """The first and the second channels of all pairs, [t d/2]."""
    return x[0, 0].chunk(2, -1) if pairs == "halves" else (x[0, 0, :, ::2], x[0, 0, :, 1::2])  # pyright: ignore


def assert_exact(ours: Tensor, truth: Tensor, within: float = WITHIN) -> None:
    """Within 2e-7 of the truth; in a narrower dtype, what rounding a number within 2e-7 of the truth gives."""
    assert ours.shape == truth.shape
    if ours.dtype in (torch.float32, torch.float64):
        assert float((ours.double() - truth).abs().max()) <= within
        return
    lowest, highest = (truth - within).to(ours.dtype), (truth + within).to(ours.dtype)
    assert bool(((lowest <= ours) & (ours <= highest)).all())


@contextlib.contextmanager
def narrow_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "plainly": contextlib.nullcontext,
    "under autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "with a narrow default": narrow_default,
}


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("around", SURROUNDINGS)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.float64, torch.float32])
def test_cos_and_sin_are_exact(theta, around, kind):
    rope = Rope(DIM, theta=theta)
    with SURROUNDINGS[around]():
        tables = rope.cos_sin(places(kind))
    for ours, truth in zip(tables, exact(theta), strict=True):
        assert ours.dtype == torch.float32
        assert_exact(ours, truth)


@pytest.mark.parametrize("theta", THETAS)
def test_cos_and_sin_are_better_still_in_float64(theta):
    # At 10⁷ radians float64 itself resolves 2e-9.
    for ours, truth in zip(Rope(DIM, theta=theta).cos_sin(places(), dtype=torch.float64), exact(theta), strict=True):
        assert float((ours - truth).abs().max()) <= 1e-8


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("around", SURROUNDINGS)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_turned_pair_is_exact(theta, around, pairs, dtype):
    rope, x = Rope(DIM, theta=theta, pairs=pairs), unit_pairs(pairs, dtype)
    scheme = Scheme(rope).to(torch.bfloat16)
    with SURROUNDINGS[around]():
        for turned in (rope.turn(x, places()), scheme.turn(x, places(), "key")):
            assert turned.dtype == dtype
            for ours, truth in zip(apart(turned, pairs), exact(theta), strict=True):
                assert_exact(ours, truth)


@pytest.mark.parametrize("around", SURROUNDINGS)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_of_cos_and_sin_is_rounded_once(around, pairs, dtype):
    # (1, 1) becomes (cos − sin, cos + sin): tables rounded to the dtype of x would show.
    with SURROUNDINGS[around]():
        turned = Rope(DIM, theta=5e5, pairs=pairs).turn(torch.ones_like(unit_pairs(pairs, dtype)), places())
    cos, sin = exact(5e5)
    for ours, truth in zip(apart(turned, pairs), (cos - sin, cos + sin), strict=True):
        assert_exact(ours, truth, 2 * WITHIN)


@pytest.mark.parametrize("around", SURROUNDINGS)
def test_a_scheme_made_without_memory_turns_exactly(around):
    with torch.device("meta"):
        scheme = Scheme(Rope(DIM, theta=5e5))
    with SURROUNDINGS[around]():
        turned = scheme.to_empty(device="cpu").turn(unit_pairs("halves", torch.bfloat16), places())
    for ours, truth in zip(apart(turned, "halves"), exact(5e5), strict=True):
        assert_exact(ours, truth)


@pytest.mark.parametrize("around", SURROUNDINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("method", "divisor"),
    [
        (Rope(DIM, theta=5e5, stretch=Interpolate(8)), 8),
        # Every pair makes more than four turns, so none is stretched.
        (Rope(DIM, theta=5e5, stretch=Llama3(8, 10**9)), 1),
        (AxialRope(DIM, (DIM // 4, DIM // 4), theta=5e5), 1),
        # So slow a fade that nothing fades.
        (Xpos(DIM, theta=5e5, fade=1e30, pairs="halves"), 1),
    ],
)
def test_the_kin_of_rope_turn_exactly(around, dtype, method, divisor):
    x = unit_pairs("halves", dtype)
    with SURROUNDINGS[around]():
        turned = method.turn(x, places())
        part = Partial(method, of=DIM + 3).turn(torch.nn.functional.pad(x, (0, 3)), places())
    assert torch.equal(part[..., :DIM], turned)
    for ours, truth in zip(apart(turned, "halves"), exact(5e5, divisor), strict=True):
        assert_exact(ours, truth)


@pytest.mark.parametrize("around", ["plainly", "under autocast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("theta", THETAS)
def test_scores_at_far_positions_are_exact(around, dtype, theta):
    # A single key at position 0: the log-sum-exp of a row is its score, Σ_n cos(pθ_n) / √d.
    q, k = unit_pairs("halves", dtype), unit_pairs("halves", dtype)[:, :, :1]
    with SURROUNDINGS[around]():
        _, lse = attend(
            q, k, k, Scheme(Rope(DIM, theta=theta)).to(torch.bfloat16), index=places(), key_index=torch.zeros(1).long(),
            return_lse=True,
        )  # fmt: skip
    truth = exact(theta)[0].sum(-1) / math.sqrt(DIM)
    # Each of the 32 terms may err by 2e-7.
    assert float((lse[0, 0].double() - truth).abs().max()) <= 32 * WITHIN / math.sqrt(DIM)


def test_a_float32_angle_would_have_lost_its_way():
    # What these tests guard against: the usual tables, made in float32, are off by a tenth at position 10⁷.
    f = 1.0 / 5e5 ** (torch.arange(0, DIM, 2).float() / DIM)
    usual = (places().float()[:, None] * f).cos()
    assert float((usual.double() - exact(5e5)[0]).abs().max()) > 0.1
