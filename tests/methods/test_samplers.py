"""Positions drawn for training: randomized (arXiv:2305.16843, kexue.fm/archives/9444) and PoSE (arXiv:2309.10400)."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from milepost import Alibi, Randomized, Rope, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain
from tests.oracles import turned as rotated


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rope_at(q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
    """Causal RoPE attention of tokens that stand at `at`, one pair at a time."""

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i:
            return -math.inf
        one, two = rotated(q[b, h, i], at[i]), rotated(k[b, h // 2, j], at[j])
        return (one * two.conj()).real.sum() / math.sqrt(q.shape[3])

    return plain(q, k, v, score)


# Randomized positions


@pytest.mark.parametrize(("longest", "length"), [(2048, 40), (2048, 500), (10, 10), (7, 1), (5, 0)])
def test_positions_are_sorted_distinct_and_within_the_range(longest, length):
    generator = seeded()
    for _ in range(20):
        at = Randomized(longest).sample(length, generator=generator)
        assert at.shape == (length,)
        assert at.dtype == torch.int64
        assert bool((at.diff() > 0).all())
        assert bool(((at >= 0) & (at < longest)).all())


def test_as_many_positions_as_there_are_leave_no_choice():
    assert torch.equal(Randomized(9).sample(9), torch.arange(9))


def test_a_generator_makes_a_draw_repeatable():
    method = Randomized(2048)
    first, again, other = (method.sample(40, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = seeded(1)
    assert torch.equal(method.sample(40, generator=generator), first)
    assert not torch.equal(method.sample(40, generator=generator), first)


def test_without_a_generator_the_global_one_is_used():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        first = Randomized(2048).sample(40)
        torch.manual_seed(4)
        assert torch.equal(Randomized(2048).sample(40), first)


def test_every_position_is_equally_likely():
    longest, length, draws = 24, 7, 4000
    generator, counts = seeded(), torch.zeros(longest, dtype=torch.float64)
    for _ in range(draws):
        counts[Randomized(longest).sample(length, generator=generator)] += 1
    # Counts of a draw without replacement have variance p(1 − p) and correlation −1/(L − 1): this is χ² of L − 1.
    p = length / longest
    statistic = float(((counts - draws * p) ** 2).sum()) / (draws * p * (1 - p)) * (longest - 1) / longest
    # Laurent and Massart: P(χ²_k > k + 2√(kx) + 2x) ≤ e^(−x); once in a million.
    k, x = longest - 1, math.log(1e6)
    assert statistic <= k + 2 * math.sqrt(k * x) + 2 * x


def test_every_set_of_positions_is_met():
    generator = seeded()
    met = Counter(tuple(Randomized(5).sample(2, generator=generator).tolist()) for _ in range(2000))
    assert set(met) == {(a, b) for b in range(5) for a in range(b)}
    # Each of the ten comes up 200 times, give or take five standard deviations.
    assert all(abs(count - 200) <= 5 * math.sqrt(2000 * 0.1 * 0.9) for count in met.values())


def test_attention_at_drawn_positions_is_rope_at_those_places():
    q, k, v = inputs(t=8, dv=5)
    at = Randomized(300).sample(8, generator=seeded())
    ours = attend(q, k, v, Scheme(Rope(8), causal), position=at, key_position=at)
    assert_same(ours, rope_at(q, k, v, at))


def test_the_order_stays_that_of_the_text():
    # Visibility goes by the index; positions, however far apart, hide nothing.
    q, k, v = inputs(t=6)
    at = Randomized(10**6).sample(6, generator=seeded())
    ours = attend(q, k, v, Scheme(Alibi(4), causal), position=at, key_position=at)
    slopes = [2.0 ** (-2 * (h + 1)) for h in range(4)]

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        return -math.inf if j > i else q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) - slopes[h] * float(at[i] - at[j])

    assert_same(ours, plain(q, k, v, score))


@pytest.mark.parametrize(("longest", "length"), [(2048, 500), (2048, 2048), (7, 3), (5, 1), (5, 0)])
def test_evenly_spread_positions(longest, length):
    expected = [i * longest / length for i in range(length)]
    assert_same(Randomized(longest).evenly(length), torch.tensor(expected, dtype=torch.float64), within=1e-9)


def test_counting_at_test_is_not_what_training_showed():
    """A widespread account says that inference uses the ordinary positions 0, 1, 2 …; the authors draw there too.

    In training, neighbours are one apart with probability length/longest: an expected length·(length − 1)/longest
    pairs a draw. A model that counts at test meets nothing but that rare step.
    """
    longest, length, draws = 2048, 40, 2000
    generator = seeded()
    ones = sum(int((Randomized(longest).sample(length, generator=generator).diff() == 1).sum()) for _ in range(draws))
    expected = length * (length - 1) / longest
    # Nearly Poisson, so the mean of many draws has the standard deviation √(expected/draws).
    assert ones / draws == pytest.approx(expected, abs=5 * math.sqrt(expected / draws))
    assert ones / (draws * (length - 1)) < 0.03
    # Drawn or evenly spread, a test of 500 tokens reaches as far as training did.
    for at in (Randomized(longest).sample(500, generator=seeded()), Randomized(longest).evenly(500)):
        assert float(at[-1]) > 0.98 * longest
        assert float(at.double().diff().mean()) == pytest.approx(longest / 500, rel=0.02)
        assert not torch.equal(at.double(), torch.arange(500).double())


def test_equal_mean_stretches_a_text_to_an_exponential_end():
    length, draws = 40, 8000
    generator = seeded()
    ends = torch.stack([Randomized(2048).equal_mean(length, generator)[-1] for _ in range(draws)])
    # An exponential of mean N has standard deviation N, and exceeds n · N with probability e^(−n).
    assert float(ends.mean()) == pytest.approx(length, abs=5 * length / math.sqrt(draws))
    for times in (1, 3):
        p = math.exp(-times)
        beyond = float((ends > times * length).double().mean())
        assert beyond == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / draws))


def test_equal_mean_spreads_its_positions_evenly_from_zero():
    at = Randomized(2048).equal_mean(12, seeded())
    assert at.dtype == torch.float64
    assert float(at[0]) == 0.0
    assert_same(at, torch.arange(12).double() / 11 * at[-1], within=1e-12 * float(at[-1]))
    assert torch.equal(at, Randomized(2048).equal_mean(12, seeded()))
    assert torch.equal(Randomized(8).equal_mean(1), torch.zeros(1, dtype=torch.float64))
