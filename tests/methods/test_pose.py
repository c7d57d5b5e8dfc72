"""PoSE (arXiv:2309.10400): a short text in two parts, the second of them moved ahead by a random skip."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from milepost import Interpolate, Pose, Randomized, Rope, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain
from tests.oracles import turned as rotated


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def positions(length: int, r: int, s: int) -> tuple[int, ...]:
    """0 … r − 1, then r + s … length − 1 + s."""
    return (*range(r), *range(r + s, length + s))


def possible(length: int, target: int) -> set[tuple[int, ...]]:
    """Every draw that the rule allows: 1 ≤ r ≤ ⌊(length + 1)/2⌋ and 0 ≤ s ≤ target − length."""
    cuts, skips = range(1, (length + 1) // 2 + 1), range(target - length + 1)
    return {positions(length, r, s) for r in cuts for s in skips}


@pytest.mark.parametrize(("length", "target"), [(1, 4), (2, 5), (3, 3), (4, 7), (5, 8), (7, 9)])
def test_every_cut_and_skip_is_met_and_nothing_else(length, target):
    generator = seeded()
    met = {tuple(Pose(target).sample(length, generator=generator).tolist()) for _ in range(600)}
    # There are at most 12 equally likely draws; 600 miss one of them with probability 12 · (11/12)^600 < 1e-20.
    assert met == possible(length, target)


def test_cuts_and_skips_are_equally_likely():
    length, target, draws = 6, 9, 6000
    generator = seeded()
    met = Counter(tuple(Pose(target).sample(length, generator=generator).tolist()) for _ in range(draws))
    # Three cuts and four skips; without a skip all cuts look alike.
    for at in possible(length, target):
        p = 3 / 12 if at == tuple(range(length)) else 1 / 12
        assert met[at] == pytest.approx(draws * p, abs=5 * math.sqrt(draws * p * (1 - p)))


@pytest.mark.parametrize(("length", "target"), [(2048, 16384), (2047, 131072), (16, 16)])
def test_positions_stay_below_the_target(length, target):
    generator = seeded()
    for _ in range(50):
        at = Pose(target).sample(length, generator=generator)
        assert at.shape == (length,)
        assert at.dtype == torch.int64
        assert int(at[0]) == 0
        assert int(at[-1]) <= target - 1
        steps = at.diff()
        # One jump at most, and in the first half.
        assert int((steps != 1).sum()) <= 1
        assert not (steps != 1).any() or int((steps != 1).nonzero()) < (length + 1) // 2
        assert bool((steps >= 1).all())


def test_the_target_itself_can_be_reached():
    generator = seeded()
    furthest = max(int(Pose(12).sample(8, generator=generator)[-1]) for _ in range(200))
    assert furthest == 11


def test_a_text_as_long_as_the_target_has_nowhere_to_skip():
    assert torch.equal(Pose(9).sample(9), torch.arange(9))


def test_a_generator_makes_a_draw_repeatable():
    first, again, other = (Pose(16384).sample(2048, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("text", "length", "target"), [(5, 3, 6), (7, 4, 6), (4, 4, 5), (3, 5, 6)])
def test_every_cut_of_a_text_is_met_and_nothing_else(text, length, target):
    generator = seeded()
    met: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for _ in range(1500):
        taken, at = Pose(target).cut(text, length, generator=generator)
        met.add((tuple(taken.tolist()), tuple(at.tolist())))
    held = min(text, length)
    rule = {
        ((*range(r), *range(end - (held - r), end)), positions(held, r, s))
        for r in range(1, (held + 1) // 2 + 1)
        for end in range(held, text + 1)
        for s in range(target - held + 1)
    }
    assert met == rule


def test_a_cut_takes_the_opening_and_a_later_stretch_of_the_text():
    text = torch.arange(1000, 1500)
    for seed in range(20):
        taken, at = Pose(4096).cut(len(text), 64, generator=seeded(seed))
        assert taken.shape == at.shape == (64,)
        words = text[taken]
        assert int(words[0]) == 1000
        assert bool((taken.diff() >= 1).all())
        assert int(taken[-1]) < len(text)
        assert int((taken.diff() != 1).sum()) <= 1
        jump = (taken.diff() != 1).nonzero()
        moved = (at.diff() != 1).nonzero()
        # Text and positions are cut at the same place.
        assert not len(jump) or not len(moved) or int(jump) == int(moved)


def test_attention_at_skipped_positions_under_a_stretch():
    q, k, v = inputs(t=8)
    at = Pose(32).sample(8, generator=seeded(3))
    assert int(at[-1]) > 7, "this seed skips nothing"
    ours = attend(q, k, v, Scheme(Rope(8, stretch=Interpolate(4)), causal), position=at, key_position=at)

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i:
            return -math.inf
        one, two = rotated(q[b, h, i], at[i] / 4), rotated(k[b, h // 2, j], at[j] / 4)
        return (one * two.conj()).real.sum() / math.sqrt(8)

    assert_same(ours, plain(q, k, v, score))


# What cannot be


@pytest.mark.parametrize(
    ("kind", "value", "error", "text"),
    [
        (Randomized, 0, ValueError, r"Randomized\(longest=0\): longest must be at least 1"),
        (Randomized, -5, ValueError, "longest must be at least 1"),
        (Randomized, 2048.0, TypeError, r"Randomized\(longest=2048.0\): longest must be an integer, not float"),
        (Randomized, True, TypeError, "longest must be an integer, not bool"),
        (Pose, 1, ValueError, r"Pose\(target=1\): target must be at least 2"),
        (Pose, -5, ValueError, "target must be at least 2"),
        (Pose, 16384.0, TypeError, "target must be an integer, not float"),
        (Pose, "16k", TypeError, "target must be an integer, not str"),
    ],
)
def test_wrong_arguments_are_refused(kind, value, error, text):
    with pytest.raises(error, match=text):
        kind(value)


@pytest.mark.parametrize("draw", ["sample", "evenly"])
@pytest.mark.parametrize(
    ("length", "error", "text"),
    [
        (9, ValueError, r"Randomized\(longest=8\): 9 positions do not fit; longest must be at least the longest text"),
        (-1, ValueError, "length must be at least 0"),
        (2.0, TypeError, "length must be an integer, not float"),
    ],
)
def test_texts_that_do_not_fit_a_range_are_refused(draw, length, error, text):
    with pytest.raises(error, match=text):
        getattr(Randomized(8), draw)(length)


@pytest.mark.parametrize(
    ("length", "error", "text"),
    [
        (9, ValueError, r"Pose\(target=8\): a text of 9 tokens is longer than the target already"),
        (0, ValueError, "length must be at least 1"),
        (2.0, TypeError, "length must be an integer, not float"),
    ],
)
def test_texts_that_do_not_fit_a_target_are_refused(length, error, text):
    for ask in (lambda: Pose(8).sample(length), lambda: Pose(8).cut(20, length)):
        with pytest.raises(error, match=text):
            ask()
    with pytest.raises(ValueError, match="text must be at least 1"):
        Pose(8).cut(0, 4)


@pytest.mark.parametrize("sampler", [Randomized(64), Pose(64)])
def test_a_sampler_is_no_part_of_a_scheme(sampler):
    with pytest.raises(TypeError, match=r"is not a part of a scheme, it draws positions: attend\(.*\.sample\(length\)"):
        Scheme(sampler, causal)
