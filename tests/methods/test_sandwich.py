"""Sandwich against its formula: heads/(8h) · Σ_n cos(Δ · 10000^(−2n/d)), h from 1."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from milepost import Sandwich, Scheme, attend, causal
from tests.oracles import assert_same, dots, inputs, plain


def cosines(distance: float, dim: int, start: int = 0, theta: float = 10000.0) -> float:
    return sum(math.cos(distance * theta ** (-2 * n / dim)) for n in range(start, start + dim // 2))


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("zeroed", [False, True])
def test_near_keys_are_raised_by_a_sum_of_cosines(start, zeroed):
    q, k, v = inputs(dv=5)
    dot = dots(q, k)

    def score(b, h, i, j):
        waves = cosines(i - j, 12, start) - (6 if zeroed else 0)
        return dot(b, h, i, j) + 4 / (8 * (h + 1)) * waves if j <= i else -math.inf

    ours = attend(q, k, v, Scheme(Sandwich(4, 12, start=start, zeroed=zeroed), causal))
    assert_same(ours, plain(q, k, v, score))


def test_without_a_mask_both_sides_are_raised_alike():
    q, k, v = inputs(h=6, g=3)
    dot = dots(q, k)

    def score(b, h, i, j):
        return dot(b, h, i, j) + 6 / (8 * (h + 1)) * cosines(i - j, 8, theta=300.0)

    assert_same(attend(q, k, v, Scheme(Sandwich(6, 8, theta=300.0))), plain(q, k, v, score))


GOLDEN = {0: [64, 62.0937, 42.82, 30.5435, 10.1777], 1: [64, 62.5534, 44.6591, 30.6811, 10.6104]}


@pytest.mark.parametrize("start", [0, 1])
def test_golden_sums_of_64_waves(start):
    distances = torch.tensor([0, 1, 10, 100, 1000])
    found = Sandwich(1, 128, start=start).waves(distances, torch.float64).tolist()
    assert [round(each, 4) for each in found] == GOLDEN[start]


def test_golden_values_of_the_port():
    golden = [0, -0.62347, -9.1093, -13.9877, -22.64141]
    scheme = Scheme(Sandwich(8, 64, start=1, zeroed=True))
    bias = scheme.bias(torch.tensor([0, 1, 10, 100, 1000]), torch.tensor([0]), dtype=torch.float64)[0, :, :, 0]
    assert bias[0].tolist() == pytest.approx(golden, abs=5e-6 + 1e-9)
    for head in range(8):
        assert_same(bias[head], bias[0] / (head + 1))


def test_the_constant_of_the_port_is_not_seen_by_the_softmax():
    q, k, v = inputs()
    for visible in ((), (causal,)):
        zeroed, plainly = (attend(q, k, v, Scheme(Sandwich(4, 16, zeroed=flag), *visible)) for flag in (True, False))
        assert_same(zeroed, plainly)


def test_the_sum_is_the_product_of_two_sinusoidal_positions():
    def position(m: int) -> list[float]:
        angles = [m * 10000 ** (-2 * n / 10) for n in range(5)]
        return [*map(math.sin, angles), *map(math.cos, angles)]

    waves = Sandwich(1, 10).waves(torch.arange(40)[:, None] - torch.arange(40), torch.float64)
    for m, n in ((0, 0), (3, 7), (39, 0), (21, 38)):
        product = sum(a * b for a, b in zip(position(m), position(n), strict=True))
        assert float(waves[m, n]) == pytest.approx(product, abs=1e-12)


def test_the_first_head_is_raised_most_near_by():
    bias = Scheme(Sandwich(8, 64, zeroed=True)).bias(torch.tensor([500]), torch.arange(501), dtype=torch.float64)
    ahead, behind = bias[0, :-1, 0, :-1], bias[0, 1:, 0, :-1]
    assert bool((ahead < behind).all())


def test_the_sum_falls_in_trend_but_not_at_every_step():
    waves = Sandwich(1, 128).waves(torch.arange(1000), torch.float64).tolist()
    assert any(later > earlier for earlier, later in itertools.pairwise(waves))
    means = [sum(waves[start : start + 100]) / 100 for start in range(0, 1000, 100)]
    assert sorted(means, reverse=True) == means


ROUNDING = 64 * (2**-22 + 2**-24) + 64 * 64 * 2**-24
"""64 cosines in float32, each of an angle below 2π rounded to 2^−22 and then rounded itself, in sums below 64."""


@pytest.mark.parametrize("far", [10**6, 10**6 + 1, 10**7 + 3])
def test_far_distances_are_exact_in_float32(far):
    distances = torch.arange(far - 50, far + 50)
    found = Sandwich(1, 128).waves(distances, torch.float32)
    assert found.dtype == torch.float32
    oracle = torch.tensor([cosines(distance, 128) for distance in distances.tolist()], dtype=torch.float64)
    assert_same(found, oracle, within=ROUNDING)


def test_far_apart_tokens_keep_their_weights_in_float32():
    q, k, v = (torch.zeros(1, 1, n, 2) for n in (1, 2, 2))
    v[0, 0, 1, 0] = 1
    at, places = torch.tensor([10**6]), torch.tensor([0, 10**6 - 7])
    weight = attend(q, k, v, Scheme(Sandwich(1, 128)), index=at, key_index=places)[0, 0, 0, 0]
    scores = [cosines(distance, 128) / 8 for distance in (10**6, 7)]
    expected = 1 / (1 + math.exp(scores[0] - scores[1]))
    # An eighth of each sum is the score, and a weight moves by at most a quarter of the scores' difference.
    assert abs(float(weight) - expected) < 2 * ROUNDING / 8 / 4


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"heads": 0}, ValueError, r"Sandwich\(heads=0\): heads must be at least 1"),
        ({"heads": 4.0}, TypeError, r"Sandwich\(heads=4.0\): heads must be an integer, not float"),
        (
            {"head_dim": 7},
            ValueError,
            r"Sandwich\(head_dim=7\): head_dim must be even, because each wavelength stands for",
        ),
        ({"head_dim": 0}, ValueError, r"Sandwich\(head_dim=0\): head_dim must be at least 1"),
        ({"head_dim": -2}, ValueError, r"Sandwich\(head_dim=-2\): head_dim must be at least 1"),
        ({"theta": 1.0}, ValueError, r"Sandwich\(theta=1.0\): theta must be greater than 1"),
        ({"theta": math.inf}, ValueError, r"Sandwich\(theta=inf\): theta must be finite"),
        ({"theta": "1e4"}, TypeError, r"Sandwich\(theta='1e4'\): theta must be a number, not str"),
        ({"start": 2}, ValueError, r"Sandwich\(start=2\): start must be one of 0, 1"),
        ({"zeroed": 1}, TypeError, r"Sandwich\(zeroed=1\): zeroed is True or False, not int"),
    ],
)
def test_wrong_arguments_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        Sandwich(**({"heads": 4, "head_dim": 8} | options))


def test_queries_of_another_head_count_are_refused():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"Sandwich\(8, 16\) was given q with 4 heads"):
        attend(q, k, v, Scheme(Sandwich(8, 16)))
