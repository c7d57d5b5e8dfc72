"""Su's fused encoding (kexue.fm/archives/8130): q_n, k_n and v_n each times e^(i · position · f_n)."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from milepost import FusedRope, Rerope, Rope, Scheme, attend, causal
from tests.oracles import assert_same, attention, in_complex, inputs

PAIRS = ("halves", "neighbours")
ANY = (0.7, -0.3, 0.0, 2.5)


def out_of_complex(x: Tensor, pairs: str) -> Tensor:
    """Complex pairs [… d/2] as channels [… d]."""
    if pairs == "halves":
        return torch.cat((x.real, x.imag), -1)
    return torch.stack((x.real, x.imag), -1).flatten(-2)


def falling(width: int, theta: float = 10000.0) -> list[float]:
    return [theta ** (-2 * n / width) for n in range(width // 2)]


def fused(
    q: Tensor, k: Tensor, v: Tensor, f: Sequence[float], of_values: Sequence[float], pairs: str, shift: float = 0.0
) -> Tensor:
    """Causal attention by the complex formula, one pair of tokens at a time; positions are indices plus a shift."""
    d, group, behind = q.shape[-1], q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    a, c, e = (in_complex(x, pairs) for x in (q, k, v))

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i + behind:
            return -math.inf
        total = 0.0
        for n, step in enumerate(f):
            one = complex(a[b, h, i, n]) * cmath.exp(1j * (i + behind + shift) * step)
            two = complex(c[b, h // group, j, n]) * cmath.exp(1j * (j + shift) * step)
            total += (one * two.conjugate()).real
        return total / math.sqrt(d)

    def value(b: int, h: int, i: int, j: int) -> Tensor:
        turns = torch.tensor([cmath.exp(1j * (j + shift) * step) for step in of_values], dtype=torch.complex128)
        return out_of_complex(e[b, h // group, j] * turns, pairs)

    return attention((*q.shape[:3], k.shape[2]), score, value)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("theta", [10000.0, 30.0])
def test_queries_keys_and_values_turn_by_the_complex_formula(pairs, theta):
    q, k, v = inputs(t=6, s=9)
    oracle = fused(q, k, v, falling(8, theta), falling(8, theta), pairs)
    assert_same(attend(q, k, v, Scheme(FusedRope(8, theta=theta, pairs=pairs), causal)), oracle)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dv", [2, 6, 12])
def test_values_of_another_width_have_frequencies_of_their_own(pairs, dv):
    q, k, v = inputs(t=7, dv=dv)
    oracle = fused(q, k, v, falling(8, 30.0), falling(dv, 30.0), pairs)
    assert_same(attend(q, k, v, Scheme(FusedRope(8, theta=30.0, pairs=pairs), causal)), oracle)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("frequencies", [ANY, list(ANY), (1, 2, 3, 4)])
def test_any_frequencies_may_be_given(pairs, frequencies):
    q, k, v = inputs(t=7)
    oracle = fused(q, k, v, frequencies, frequencies, pairs)
    assert_same(attend(q, k, v, Scheme(FusedRope(8, frequencies=frequencies, pairs=pairs), causal)), oracle)


def test_turn_is_the_real_form_of_the_post():
    # (x, y) → (x cos nθ − y sin nθ, x sin nθ + y cos nθ), for queries, keys and values alike.
    x, at = inputs(t=3)[0], [0, 5, 1000]
    method = FusedRope(8, frequencies=ANY)
    expected = x.clone()
    for t, n in enumerate(at):
        for pair, theta in enumerate(ANY):
            one, two = x[:, :, t, 2 * pair], x[:, :, t, 2 * pair + 1]
            expected[:, :, t, 2 * pair] = one * math.cos(n * theta) - two * math.sin(n * theta)
            expected[:, :, t, 2 * pair + 1] = one * math.sin(n * theta) + two * math.cos(n * theta)
    for side in ("query", "key", "value"):
        assert_same(method.turn(x, torch.tensor(at), side), expected)


def test_rows_may_stand_elsewhere_and_between_whole_positions():
    x = inputs(t=3)[0]
    at = torch.tensor([[0.0, 1.5, 7.25], [3.0, 2.0, 1e6]], dtype=torch.float64)
    turns = torch.exp(1j * at[:, None, :, None] * torch.tensor(falling(8), dtype=torch.float64))
    oracle = out_of_complex(in_complex(x, "neighbours") * turns, "neighbours")
    assert_same(FusedRope(8).turn(x, at), oracle)


@pytest.mark.parametrize("dv", [5, 8])
def test_without_values_it_is_rope_of_neighbours(dv):
    q, k, v = inputs(t=7, s=11, dv=dv)
    ours = attend(q, k, v, Scheme(FusedRope(8, values=False), causal))
    assert_same(ours, attend(q, k, v, Scheme(Rope(8, pairs="neighbours"), causal)))


def test_values_bring_the_absolute_position_into_the_output():
    # A shift of every position leaves the scores alone and turns the output by that much.
    q, k, v = inputs(t=7)
    scheme, at = Scheme(FusedRope(8, theta=30.0), causal), torch.arange(7)
    there = attend(q, k, v, scheme, position=at + 3, key_position=at + 3)
    here = in_complex(attend(q, k, v, scheme), "neighbours")
    turned = here * torch.exp(3j * torch.tensor(falling(8, 30.0), dtype=torch.float64))
    assert_same(there, out_of_complex(turned, "neighbours"))
    assert_same(there, fused(q, k, v, falling(8, 30.0), falling(8, 30.0), "neighbours", shift=3))
    assert float((there - attend(q, k, v, scheme)).abs().max()) > 0.1


def test_it_is_relative_just_where_values_are_left_alone():
    assert not FusedRope(8).relative
    assert FusedRope(8, values=False).relative
    Scheme(FusedRope(8, values=False), Rerope(4), causal)
    with pytest.raises(ValueError, match=r"FusedRope\(8\) reads more than distances"):
        Scheme(FusedRope(8), Rerope(4), causal)


def test_frequencies_are_kept_as_numbers_that_can_be_saved():
    method = FusedRope(8, frequencies=list(ANY))  # pyright: ignore
    assert method.frequencies == ANY
    scheme = Scheme(method, causal)
    assert Scheme.from_dict(scheme.to_dict()).same_as(scheme)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"head_dim": 9},
            ValueError,
            r"FusedRope\(head_dim=9\): head_dim must be even, because channels are turned in pairs",
        ),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1"),
        ({"head_dim": -8}, ValueError, "head_dim must be at least 1"),
        ({"head_dim": "8"}, TypeError, "head_dim must be an integer, not str"),
        ({"theta": 1}, ValueError, r"FusedRope\(theta=1\): theta must be greater than 1"),
        ({"theta": math.nan}, ValueError, "theta must be finite"),
        ({"values": 1}, TypeError, r"FusedRope\(values=1\): values is True or False, not int"),
        ({"pairs": "both"}, ValueError, r"FusedRope\(pairs='both'\): pairs must be one of 'halves', 'neighbours'"),
        ({"frequencies": 0.5}, TypeError, r"FusedRope\(frequencies=0.5\): frequencies must be a tuple, not float"),
        ({"frequencies": (1.0,) * 3}, ValueError, r"FusedRope\(8\): 3 frequencies for 4 pairs of channels; give one"),
        ({"frequencies": (1.0, math.nan, 1.0, 1.0)}, ValueError, "frequencies must be finite"),
        ({"frequencies": ("a",) * 4}, TypeError, "frequencies must be a number, not str"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        FusedRope(**({"head_dim": 8} | arguments))


def test_tensors_of_a_width_that_cannot_be_turned_are_refused():
    at = torch.arange(3)
    with pytest.raises(ValueError, match=r"FusedRope\(head_dim=8\): given a tensor of 12 channels"):
        FusedRope(8).turn(torch.zeros(1, 1, 3, 12), at)
    with pytest.raises(ValueError, match=r"values of 5 channels cannot be turned in pairs.*values=False"):
        FusedRope(8).turn(torch.zeros(1, 1, 3, 5), at, "value")
    odd = torch.ones(1, 1, 3, 5)
    assert torch.equal(FusedRope(8, values=False).turn(odd, at, "value"), odd)
