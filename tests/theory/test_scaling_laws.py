"""The scaling laws of RoPE's base (arXiv:2310.05209), with d = 128 and θ = 10000 unless said."""

from __future__ import annotations

import math

import pytest
import torch

from milepost import Rope, critical_base, critical_dimension, reach_of


@pytest.mark.parametrize(("trained", "channels"), [(4096, 92), (2048, 82)])
def test_the_critical_dimension_of_llama(trained, channels):
    assert critical_dimension(128, trained) == channels


@pytest.mark.parametrize(
    ("target", "base"), [(4096, 10000), (16384, 71738), (32768, 192144), (102400, 970497), (100000, 938327)]
)
def test_the_critical_base_of_llama_2(target, base):
    assert critical_base(4096, target) == pytest.approx(base, abs=0.5)


@pytest.mark.parametrize(("base", "tokens"), [(4e4, 12762), (1.6e5, 34565), (5e5, 78400), (1e6, 129027)])
def test_how_far_a_larger_base_reaches(base, tokens):
    assert reach_of(base, 128, 4096) == pytest.approx(tokens, abs=0.5)


def test_the_ceiling_lets_the_old_base_reach_past_the_trained_length():
    # 2π · 10000^(92/128) is 4712: the law of larger bases starts there, not at 4096.
    assert reach_of(10000.0, 128, 4096) == 4096
    assert reach_of(math.nextafter(10000.0, math.inf), 128, 4096) == pytest.approx(4712, abs=0.5)


def formula(dim: int, trained: int, theta: float) -> int:
    return 2 * math.ceil(dim / 2 * math.log(trained / (2 * math.pi)) / math.log(theta))


@pytest.mark.parametrize("dim", [64, 100, 128])
@pytest.mark.parametrize("theta", [500.0, 10000.0, 500000.0])
@pytest.mark.parametrize("trained", [7, 512, 8192])
def test_the_critical_dimension_is_its_formula(dim, theta, trained):
    assert critical_dimension(dim, trained, theta=theta) == min(dim, formula(dim, trained, theta))


@pytest.mark.parametrize(
    ("dim", "trained", "theta"), [(128, 4096, 10000.0), (128, 2048, 10000.0), (64, 8192, 500000.0)]
)
def test_it_counts_the_channels_that_saw_a_whole_turn(dim, trained, theta):
    # Pair n turns once in 2π/θ_n tokens; the count includes the pair in which the trained length ends.
    periods = [2 * math.pi * theta ** (2 * n / dim) for n in range(dim // 2)]
    assert critical_dimension(dim, trained, theta=theta) == 2 * sum(period < trained for period in periods)


def test_the_periods_are_those_of_rope():
    cos, sin = Rope(128).cos_sin(torch.tensor([2 * math.pi * 10000 ** (90 / 128)]).double(), dtype=torch.float64)
    assert float(cos[0, 45]) == pytest.approx(1, abs=1e-6)
    assert float(sin[0, 45]) == pytest.approx(0, abs=1e-3)


def test_no_more_channels_are_critical_than_there_are():
    assert critical_dimension(128, 10**9) == 128
    assert critical_dimension(128, 4096, theta=2.0) == 128


@pytest.mark.parametrize("target", [512, 4096, 16384, 131072])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_under_the_critical_base_the_critical_dimension_turns_just_once(target, theta):
    # Before the ceiling, d_extra/d = log_θ(trained/2π).
    share = math.log(4096 / (2 * math.pi)) / math.log(theta)
    assert 2 * math.pi * critical_base(4096, target, theta=theta) ** share == pytest.approx(target, rel=1e-12)


def test_fine_tuning_at_the_trained_length_has_the_old_base_as_critical():
    for trained in (2048, 4096):
        for theta in (10000.0, 500000.0):
            assert critical_base(trained, trained, theta=theta) == theta


@pytest.mark.parametrize("tuned", [4096, 16384, 32768])
def test_up_to_the_critical_base_the_reach_is_the_tuned_length(tuned):
    critical = critical_base(4096, tuned)
    for base in (500.0, critical / 2, critical):
        assert reach_of(base, 128, 4096, tuned=tuned) == tuned
    for base in (math.nextafter(critical, math.inf), 2 * critical):
        expected = 2 * math.pi * base ** (92 / 128)
        assert reach_of(base, 128, 4096, tuned=tuned) == pytest.approx(expected, rel=1e-14)
        assert expected > tuned


def test_a_smaller_base_has_a_critical_dimension_of_its_own():
    # d'_extra = 2⌈d/2 · log_β(T_tune/2π)⌉ for a base β below the critical one
    assert critical_dimension(128, 16384, theta=20000.0) == formula(128, 16384, 20000.0) == 102
    assert critical_dimension(128, 4096, theta=500.0) == 128


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (
            lambda: critical_dimension(127, 4096),
            ValueError,
            r"critical_dimension\(head_dim=127\): head_dim must be even",
        ),
        (lambda: critical_dimension(0, 4096), ValueError, "dim must be at least 1"),
        (lambda: critical_dimension(128.0, 4096), TypeError, "dim must be an integer, not float"),
        (
            lambda: critical_dimension(128, 6),
            ValueError,
            r"\(trained=6\): trained must be at least 7",
        ),
        (lambda: critical_dimension(128, 4096, theta=1.0), ValueError, r"theta=1.0\): theta must be greater than 1"),
        (lambda: critical_dimension(128, 4096, theta=math.inf), ValueError, "theta must be finite"),
        (lambda: critical_base(6, 4096), ValueError, r"critical_base\(trained=6\): trained must be at least 7"),
        (lambda: critical_base(4096, 6), ValueError, r"critical_base\(target=6\): target must be at least 7"),
        (lambda: critical_base(4096, 1e5), TypeError, "target must be an integer, not float"),
        (lambda: critical_base(4096, 8192, theta=0.5), ValueError, "theta must be greater than 1"),
        (lambda: reach_of(1.0, 128, 4096), ValueError, r"reach_of\(base=1.0\): base must be greater than 1"),
        (lambda: reach_of(math.nan, 128, 4096), ValueError, "base must be finite"),
        (lambda: reach_of(1e6, 128, 4096, tuned=0), ValueError, r"reach_of\(tuned=0\): tuned must be at least 7"),
        (lambda: reach_of(1e6, 127, 4096), ValueError, "dim must be even"),
    ],
)
def test_wrong_arguments_are_refused(ask, error, text):
    with pytest.raises(error, match=text):
        ask()


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: reach_of(500.0, 127, 4096), r"reach_of\(head_dim=127\): head_dim must be even"),
        (lambda: reach_of(1e6, 127, 4096), r"reach_of\(head_dim=127\): head_dim must be even"),
        (lambda: reach_of(1e6, 128, 6), r"reach_of\(trained=6\): trained must be at least 7"),
        (lambda: reach_of(1e6, 128, 4096, theta=1.0), r"reach_of\(theta=1.0\): theta must be greater than 1"),
    ],
)
def test_reach_of_checks_its_own_arguments_whatever_the_base(ask, text):
    with pytest.raises(ValueError, match=text):
        ask()
