"""NTK-by-parts (bloc97; arXiv:2309.00071): each pair blended between θ/factor and θ, by how many turns it makes."""

from __future__ import annotations

import math

import pytest
import torch

from milepost import ByParts, Llama3, Rope, Scheme, Yarn, attend, causal
from tests.oracles import assert_same, inputs, plain
from tests.stretches import Oracle, assert_ratio, blended, by_pairs, by_turns, stretched, stretched_score, unstretched


def by_parts(
    factor: float, trained: int, ramp: str = "code", slow: float = 1.0, fast: float = 32.0, truncate: bool = True
) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        f = unstretched(d, theta)
        kept = by_pairs(d, theta, trained, slow, fast, truncate) if ramp == "code" else by_turns(f, trained, slow, fast)
        return blended(f, factor, kept), 1.0

    return answer


# With theta 50 and 8 channels both ramps have pairs at either end and between.
@pytest.mark.parametrize(
    ("ramp", "truncate"),
    [("code", True), ("code", False), ("paper", True)],
)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_scores_under_both_ramps(ramp, truncate, pairs):
    q, k, v = inputs(t=7, s=12, d=8, dv=5)
    stretch = ByParts(8, 5, ramp=ramp, slow=0.1, fast=0.7, truncate=truncate)
    oracle = by_parts(8, 5, ramp, slow=0.1, fast=0.7, truncate=truncate)
    ours = attend(q, k, v, Scheme(Rope(8, theta=50.0, pairs=pairs, stretch=stretch), causal))
    assert_same(ours, plain(q, k, v, stretched_score(q, k, oracle, 50.0, pairs)))


@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("trained", [2048, 8192])
@pytest.mark.parametrize("factor", [2, 32])
def test_frequencies_of_real_models(dim, theta, trained, factor):
    for ramp, truncate in (("code", True), ("code", False), ("paper", True)):
        frequencies, size = stretched(ByParts(factor, trained, ramp=ramp, truncate=truncate), dim, theta, 2 * trained)
        assert_ratio(frequencies, by_parts(factor, trained, ramp, truncate=truncate)(dim, theta, 1)[0])
        assert size == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("ramp", ["code", "paper"])
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("trained", "factor"), [(2048, 4), (4096, 8), (8192, 32)])
def test_by_parts_is_yarn_without_its_temperature(trained, factor, ramp, truncate):
    q, k, v = inputs(t=9)
    ours, yarns = (
        Rope(8, stretch=stretch)
        for stretch in (
            ByParts(factor, trained, ramp=ramp, truncate=truncate),
            Yarn(factor, trained, ramp=ramp, truncate=truncate, scaled=1.0),
        )
    )
    assert_same(attend(q, k, v, Scheme(ours, causal)), attend(q, k, v, Scheme(yarns, causal)))
    assert_ratio(
        stretched(ours.stretch, dim=128, theta=500000.0)[0], stretched(yarns.stretch, dim=128, theta=500000.0)[0]
    )


def test_by_parts_between_one_and_four_turns_is_llama3():
    ours = stretched(ByParts(8, 8192, ramp="paper", fast=4.0, slow=1.0), theta=500000.0)
    assert_ratio(ours[0], stretched(Llama3(8, 8192), theta=500000.0)[0])
    assert ours[1] == 1.0


@pytest.mark.parametrize(("trained", "low", "high"), [(2048, 16, 41), (4096, 20, 46), (8192, 25, 50)])
def test_the_ends_of_the_ramp(trained, low, high):
    share = stretched(ByParts(8, trained))[0] / stretched(None)[0]
    assert [n for n in range(64) if share[n] > 1 - 1e-12] == list(range(low + 1))
    assert [n for n in range(64) if share[n] < 1 / 8 + 1e-12] == list(range(high, 64))


def test_by_parts_of_sixteen_channels():
    golden = [1, 0.31622777, 0.1, 0.02569351, 0.00625, 0.0013835, 0.00025, 7.906e-05]
    frequencies, _ = stretched(ByParts(4, 2048), dim=16)
    # The last digit written may be rounded by half its worth.
    for ours, value, place in zip(frequencies.tolist(), golden, (1e-8,) * 4 + (1e-8, 1e-7, 1e-8, 1e-8), strict=True):
        assert ours == pytest.approx(value, abs=0.501 * place)


def test_code_and_paper_differ_by_more_than_double_at_pair_36():
    code, paper = (stretched(ByParts(8, 4096, ramp=ramp))[0] for ramp in ("code", "paper"))
    apart = (code - paper).abs() / paper
    assert int(apart.argmax()) == 36
    assert float(apart.max()) == pytest.approx(1.30, abs=0.005)


@pytest.mark.parametrize("ramp", ["code", "paper"])
def test_a_factor_of_one_changes_nothing(ramp):
    x, index = inputs(t=9)[0], torch.arange(9)
    assert_same(Rope(8, stretch=ByParts(1, 4096, ramp=ramp)).turn(x, index), Rope(8).turn(x, index))


def test_it_is_no_part_of_a_scheme():
    with pytest.raises(TypeError, match=r"ByParts is not a part of a scheme, it stretches a rotation: Rope"):
        Scheme(ByParts(8, 4096))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"factor": 0.5}, ValueError, r"ByParts\(factor=0.5\): factor must be at least 1"),
        ({"factor": math.nan}, ValueError, "factor must be finite"),
        ({"trained": 0}, ValueError, r"ByParts\(trained=0\): trained must be at least 1"),
        ({"trained": "4096"}, TypeError, "trained must be an integer, not str"),
        ({"ramp": "linear"}, ValueError, r"ByParts\(ramp='linear'\): ramp must be one of 'code', 'paper'"),
        ({"slow": 0}, ValueError, "slow must be greater than 0"),
        ({"fast": 0.5}, ValueError, r"ByParts\(fast=0.5\): fast must be at least 1"),
        ({"fast": 1.0, "ramp": "paper"}, ValueError, r"ByParts\(fast=1.0\): fast must be greater than 1"),
        ({"truncate": 1}, TypeError, r"ByParts\(truncate=1\): truncate is True or False, not int"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        ByParts(**({"factor": 8, "trained": 4096} | arguments))
