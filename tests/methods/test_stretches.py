"""Every stretch of RoPE against its paper and against the other stretches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from milepost import DynamicNtk, DynamicYarn, Interpolate, Llama3, LongRope, Ntk, Rope, Scheme, Yarn, attend, causal
from tests.oracles import assert_same, inputs, plain
from tests.stretches import (
    LONG,
    SHORT,
    STRETCHES,
    assert_ratio,
    blended,
    by_pairs,
    dynamic_ntk,
    interpolated,
    llama3,
    long_rope,
    ntk,
    stretched,
    stretched_score,
    unstretched,
    yarn,
)


@pytest.mark.parametrize(("stretch", "oracle"), STRETCHES)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_scores_under_every_stretch(stretch, oracle, pairs):
    q, k, v = inputs(t=7, s=12, d=8, dv=5)
    score = stretched_score(q, k, oracle, 50.0, pairs)
    ours = attend(q, k, v, Scheme(Rope(8, theta=50.0, pairs=pairs, stretch=stretch), causal))
    assert_same(ours, plain(q, k, v, score))


@pytest.mark.parametrize(("stretch", "oracle"), [each for each in STRETCHES if getattr(each[0], "by_length", False)])
def test_each_document_is_stretched_by_its_own_length(stretch, oracle):
    q, k, v = inputs(b=1, t=13, d=8)
    documents = torch.tensor([0] * 9 + [1] * 4)
    ours = attend(q, k, v, Scheme(Rope(8, theta=50.0, stretch=stretch), causal), documents=documents)
    for rows in (slice(0, 9), slice(9, 13)):
        one, two, three = (x[:, :, rows] for x in (q, k, v))
        assert_same(ours[:, :, rows], plain(one, two, three, stretched_score(one, two, oracle, 50.0, "halves")))


@pytest.mark.parametrize("stretch", [DynamicNtk(5, factor=2), DynamicYarn(5), LongRope(SHORT, LONG, 5, factor=8)])
@pytest.mark.parametrize("length", [4, 12])
def test_the_length_may_be_told_in_any_form(stretch, length):
    rope, index = Rope(8, stretch=stretch), torch.arange(length)
    untold = rope.cos_sin(index, dtype=torch.float64)
    batched = rope.cos_sin(index.expand(2, -1), torch.full((2, 1), length), dtype=torch.float64)
    for told in (length, torch.tensor([length]), torch.full((length,), length)):
        for ours, oracle in zip(rope.cos_sin(index, told, dtype=torch.float64), untold, strict=True):
            assert_same(ours, oracle)
    for ours, oracle in zip(batched, untold, strict=True):
        assert_same(ours, oracle.expand(2, -1, -1))


@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("trained", [2048, 8192])
@pytest.mark.parametrize("factor", [2, 32])
def test_frequencies_of_real_models(dim, theta, trained, factor):
    short, long = ([1 + n / slow for n in range(dim // 2)] for slow in (50, 7))
    for length in (trained // 2, trained, trained + 1, factor * trained):
        for stretch, oracle in (
            (Interpolate(factor), interpolated(factor)),
            (Ntk(factor), ntk(factor)),
            (DynamicNtk(trained, factor=factor), dynamic_ntk(trained, factor)),
            (Yarn(factor, trained), yarn(factor, trained)),
            (Yarn(factor, trained, truncate=False), yarn(factor, trained, truncate=False)),
            (Yarn(factor, trained, ramp="paper"), yarn(factor, trained, "paper")),
            (DynamicYarn(trained), yarn(None, trained)),
            (DynamicYarn(trained, ramp="paper"), yarn(None, trained, "paper")),
            (Llama3(factor, trained), llama3(factor, trained)),
            (LongRope(short, long, trained, factor=factor), long_rope(short, long, trained, factor)),
        ):
            frequencies, size = stretched(stretch, dim, theta, length)
            expected, magnitude = oracle(dim, theta, length)
            assert_ratio(frequencies, expected)
            assert size == pytest.approx(magnitude, rel=1e-12)


# Golden values


def base_of(frequencies: Tensor) -> float:
    """The base θ of frequencies θ^(−2n/d)."""
    return float(frequencies[1]) ** -len(frequencies)


def test_ntk_raises_the_base():
    frequencies, _ = stretched(Ntk(8))
    assert base_of(frequencies) == pytest.approx(82684.62, abs=0.005)
    assert_ratio(frequencies, stretched(None, theta=10000.0 * 8 ** (128 / 126))[0])


@pytest.mark.parametrize("factor", [2, 8, 93.06])
@pytest.mark.parametrize("dim", [4, 64, 128])
def test_ntk_keeps_the_first_pair_and_divides_the_last_by_the_factor(dim, factor):
    ratio = stretched(Ntk(factor), dim)[0] / stretched(None, dim)[0]
    assert float(ratio[0]) == 1.0
    assert float(ratio[-1]) == pytest.approx(1 / factor, rel=1e-14)


def test_a_base_eight_times_as_large_divides_the_last_pair_by_less_than_eight():
    ratio = stretched(None, theta=80000.0)[0][-1] / stretched(None)[0][-1]
    assert float(ratio) == pytest.approx(0.129, abs=5e-4)


def test_code_llamas_base_is_ntk_by_93():
    assert pytest.approx(93.06, abs=0.005) == 100 ** (126 / 128)
    assert_ratio(stretched(Ntk(100 ** (126 / 128)))[0], stretched(None, theta=1e6)[0])


def test_dynamic_ntks_factor_is_not_the_ratio_of_lengths():
    assert base_of(stretched(DynamicNtk(4096, factor=2), length=2 * 4096)[0]) == pytest.approx(30527.74, abs=0.005)
    assert_ratio(stretched(DynamicNtk(4096, factor=2), length=2 * 4096)[0], stretched(Ntk(3))[0])
    assert_ratio(stretched(DynamicNtk(4096, factor=4), length=4 * 4096)[0], stretched(Ntk(13))[0])


@pytest.mark.parametrize(("trained", "low", "high"), [(2048, 16, 41), (4096, 20, 46), (8192, 25, 50)])
def test_the_ends_of_yarns_ramp(trained, low, high):
    share = stretched(Yarn(8, trained))[0] / stretched(None)[0]
    kept = [n for n in range(64) if share[n] > 1 - 1e-12]
    slowed = [n for n in range(64) if share[n] < 1 / 8 + 1e-12]
    assert kept == list(range(low + 1))
    assert slowed == list(range(high, 64))


def test_yarn_of_sixteen_channels():
    golden = [1, 0.31622777, 0.1, 0.02569351, 0.00625, 0.0013835, 0.00025, 7.906e-05]
    frequencies, _ = stretched(Yarn(4, 2048), dim=16)
    # The last digit written may be rounded by half its worth.
    for ours, value, place in zip(frequencies.tolist(), golden, (1e-8,) * 4 + (1e-8, 1e-7, 1e-8, 1e-8), strict=True):
        assert ours == pytest.approx(value, abs=0.501 * place)


@pytest.mark.parametrize("factor", [1, 2, 4, 8, 16, 32])
def test_yarns_temperature(factor):
    golden = {1: 1.0, 2: 1.0693, 4: 1.1386, 8: 1.2079, 16: 1.2773, 32: 1.3466}[factor]
    assert stretched(Yarn(factor, 4096))[1] == pytest.approx(golden, abs=5.01e-5)
    assert stretched(DynamicYarn(4096), length=4096 * factor)[1] == pytest.approx(golden, abs=5.01e-5)


def test_yarns_temperature_at_forty():
    assert stretched(Yarn(40, 4096))[1] == pytest.approx(1.36889, abs=5.01e-6)


def test_yarns_code_and_paper_differ_by_more_than_double_at_pair_36():
    code, paper = (stretched(Yarn(8, 4096, ramp=ramp))[0] for ramp in ("code", "paper"))
    apart = (code - paper).abs() / paper
    assert int(apart.argmax()) == 36
    assert float(apart.max()) == pytest.approx(1.30, abs=0.005)


def test_long_ropes_magnitude_rides_on_short_texts_too():
    ones = (1.0,) * 64
    for length in (10, 4096, 4097, 131072):
        assert stretched(LongRope(ones, ones, 4096, factor=32), length=length)[1] == pytest.approx(1.190238, abs=5e-7)
    assert stretched(LongRope(ones, ones, 4096))[1] == 1.0
    assert stretched(LongRope(ones, ones, 4096, factor=0.5))[1] == 1.0
    assert stretched(LongRope(ones, ones, 4096, factor=32, scaled=1.25))[1] == pytest.approx(1.25, rel=1e-14)


def test_long_rope_switches_after_the_trained_length():
    short, long = (1.0,) * 64, (2.0,) * 64
    stretch, whole = LongRope(short, long, 4096), stretched(None)[0]
    assert_ratio(stretched(stretch, length=4096)[0], whole)
    assert_ratio(stretched(stretch, length=4097)[0], whole / 2)


def test_a_ramp_without_width_is_a_step():
    # Both ends lie just past pair 5: pairs up to it are kept and the next is slowed at once.
    oracle = by_pairs(16, 10000.0, 2048, 1.0, 1.0 + 1e-9, truncate=False)
    frequencies, _ = stretched(Yarn(4, 2048, slow=1.0, fast=1.0 + 1e-9, truncate=False), dim=16)
    assert oracle == [1.0] * 6 + [0.0] * 2
    assert_ratio(frequencies, blended(unstretched(16, 10000.0), 4, oracle))
    # The same with both ends at exactly one turn, rounded to whole pairs or not (Kimi K2).
    for truncate in (True, False):
        step, _ = stretched(Yarn(4, 2048, slow=1.0, fast=1.0, truncate=truncate), dim=16)
        assert_ratio(step, blended(unstretched(16, 10000.0), 4, oracle))
    # With low = high = 0 the first pair alone is kept.
    share = stretched(Yarn(4, 5), dim=16)[0] / stretched(None, dim=16)[0]
    assert_ratio(share, [1.0] + [0.25] * 7)


@pytest.mark.parametrize("stretch", [Yarn(4, 16), Yarn(4, 4096), Yarn(4, 4096, truncate=False), DynamicYarn(1024)])
def test_the_only_pair_of_two_channels_is_kept(stretch):
    # θ_0 is 1 whatever the base, and the code's ramp begins at the first pair or later.
    assert_ratio(stretched(stretch, dim=2, length=4096)[0], [1.0])


# One stretch as another


def test_interpolating_is_dividing_positions():
    x, index = inputs(t=9)[0], torch.arange(9)
    assert_same(Rope(8, stretch=Interpolate(4)).turn(x, index), Rope(8).turn(x, index / 4))


@pytest.mark.parametrize(
    "stretch",
    [
        Interpolate(1),
        Ntk(1),
        DynamicNtk(64),
        DynamicNtk(64, factor=4),
        Yarn(1, 4096),
        Yarn(1, 4096, ramp="paper"),
        DynamicYarn(64),
        DynamicYarn(64, ramp="paper"),
        Llama3(1, 4096),
        LongRope((1.0,) * 4, LONG, 64),
    ],
)
def test_a_stretch_of_one_or_within_the_trained_length_changes_nothing(stretch):
    q, k, v = inputs(t=9)
    ours = attend(q, k, v, Scheme(Rope(8, stretch=stretch), causal))
    assert_same(ours, attend(q, k, v, Scheme(Rope(8), causal)))


@pytest.mark.parametrize("length", [4097, 10000, 131072])
def test_dynamic_stretches_are_static_ones_at_each_length(length):
    ratio = length / 4096
    assert_ratio(stretched(DynamicNtk(4096), length=length)[0], stretched(Ntk(ratio))[0])
    for ramp in ("code", "paper"):
        dynamic, static = (
            stretched(DynamicYarn(4096, ramp=ramp), length=length),
            stretched(Yarn(ratio, 4096, ramp=ramp)),
        )
        assert_ratio(dynamic[0], static[0])
        assert dynamic[1] == pytest.approx(static[1], rel=1e-14)


def test_llama3_is_the_papers_yarn_between_one_and_four_turns_without_a_temperature():
    ours = stretched(Llama3(8, 8192), theta=500000.0)
    yarns = stretched(Yarn(8, 8192, ramp="paper", fast=4.0, slow=1.0, scaled=1.0), theta=500000.0)
    assert_ratio(ours[0], yarns[0])
    assert ours[1] == yarns[1] == 1.0


def test_long_rope_of_one_factor_is_interpolation():
    same = (4.0,) * 64
    assert_ratio(stretched(LongRope(same, same, 4096))[0], stretched(Interpolate(4))[0])


def test_ntk_may_be_written_as_long_rope():
    factors = tuple(8 ** (n / 63) for n in range(64))
    assert_ratio(stretched(LongRope(factors, factors, 4096))[0], stretched(Ntk(8))[0])
