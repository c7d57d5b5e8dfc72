"""LogN against its formula: a query's scores times the logarithm of how many keys it has."""

from __future__ import annotations

import math

import pytest
import torch

from milepost import Alibi, LogN, Scheme, attend, causal, window
from tests.oracles import assert_same, dots, inputs, plain


@pytest.mark.parametrize("clip", [True, False])
def test_a_query_is_sharpened_by_the_logarithm_of_how_many_keys_it_has(clip):
    q, k, v = inputs(dv=5)
    dot = dots(q, k)

    def score(b, h, i, j):
        factor = math.log(i + 1) / math.log(4)
        return dot(b, h, i, j) * (max(1.0, factor) if clip else factor) if j <= i else -math.inf

    assert_same(attend(q, k, v, Scheme(LogN(4, clip=clip), causal)), plain(q, k, v, score))


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("trained", [4, 64])
def test_an_encoder_counts_the_whole_text(clip, trained):
    q, k, v = inputs(dv=5)
    dot = dots(q, k)
    factor = math.log(11) / math.log(trained)
    factor = max(1.0, factor) if clip else factor
    ours = attend(q, k, v, Scheme(LogN(trained, clip=clip, count="length")))
    assert_same(ours, plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) * factor))


def test_the_length_is_that_of_the_keys_not_of_the_queries():
    q, k, v = inputs(t=3, s=11)
    dot = dots(q, k)
    factor = math.log(11) / math.log(4)
    ours = attend(q, k, v, Scheme(LogN(4, count="length")))
    assert_same(ours, plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) * factor))


def test_late_queries_count_from_the_start_of_the_text():
    q, k, v = inputs(t=3, s=11)
    dot = dots(q, k)

    def score(b, h, i, j):
        return dot(b, h, i, j) * math.log(i + 9) / math.log(4) if j <= i + 8 else -math.inf

    assert_same(attend(q, k, v, Scheme(LogN(4), causal)), plain(q, k, v, score))


def test_at_the_trained_length_the_factor_is_one():
    index, length = torch.tensor([[3, 63, 511, 4095]]), torch.tensor([[512]])
    for clip in (True, False):
        assert LogN(512, clip=clip).sharpen(index, length)[0, 2].item() == 1.0
        assert LogN(512, clip=clip, count="length").sharpen(index, length).item() == 1.0
    # ln 4096 / ln 512 = 12/9 and ln 4 / ln 512 = 2/9.
    assert LogN(512).sharpen(index, length)[0].tolist() == pytest.approx([1, 1, 1, 4 / 3], abs=1e-15)
    assert LogN(512, clip=False).sharpen(index, length)[0].tolist() == pytest.approx(
        [2 / 9, 6 / 9, 1, 4 / 3], abs=1e-15
    )


def test_up_to_the_trained_length_the_clipped_factor_changes_nothing():
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(LogN(11), causal)), attend(q, k, v, Scheme(causal)))


def test_the_first_query_has_a_factor_of_zero_and_one_key():
    q, k, v = inputs()
    assert LogN(64, clip=False).sharpen(torch.tensor([[0]]), torch.tensor([[1]])).item() == 0
    ours = attend(q, k, v, Scheme(LogN(64, clip=False), causal))
    assert_same(ours[:, :, 0], v[:, :, 0].repeat_interleave(2, 1))


def test_it_sharpens_dot_products_and_leaves_the_penalty_of_alibi_alone():
    q, k, v = inputs()
    dot = dots(q, k)

    def score(b, h, i, j):
        factor = max(1.0, math.log(i + 1) / math.log(3))
        return dot(b, h, i, j) * factor - 2 ** (-2 * (h + 1)) * (i - j) if j <= i else -math.inf

    for parts in ((LogN(3), Alibi(4)), (Alibi(4), LogN(3))):
        assert_same(attend(q, k, v, Scheme(*parts, causal)), plain(q, k, v, score))


def test_attention_over_more_keys_spreads_less_with_it():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 1, 1, 64, generator=generator, dtype=torch.float64)
    k = torch.randn(1, 1, 1024, 64, generator=generator, dtype=torch.float64)

    def entropy(n: int, *parts: LogN) -> float:
        # The values are one-hot, so that the output is the weights.
        weights = attend(q, k[:, :, :n], torch.eye(n, dtype=torch.float64)[None, None], Scheme(*parts))
        return float(-(weights * weights.log()).sum())

    assert math.isclose(entropy(512, LogN(512)), entropy(512), rel_tol=1e-12)
    assert entropy(1024, LogN(512)) < entropy(1024)
    # It slows the growth; it does not stop it.
    assert entropy(1024, LogN(512)) > entropy(512)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"trained": 1}, ValueError, r"LogN\(trained=1\): trained must be at least 2"),
        ({"trained": 0}, ValueError, r"LogN\(trained=0\): trained must be at least 2"),
        ({"trained": -512}, ValueError, r"LogN\(trained=-512\): trained must be at least 2"),
        ({"trained": 512.0}, TypeError, r"LogN\(trained=512.0\): trained must be an integer, not float"),
        ({"trained": math.inf}, TypeError, r"trained must be an integer, not float"),
        (
            {"trained": 512, "count": "keys"},
            ValueError,
            r"LogN\(count='keys'\): count must be one of 'index', 'length'",
        ),
    ],
)
def test_a_length_without_a_logarithm_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        LogN(**options)


def test_no_more_keys_are_counted_than_a_window_shows():
    q, k, v = inputs(t=12)
    windowed = Scheme(LogN(3, most=4), causal & window(4))

    def score(b: int, h: int, i: int, j: int):
        if not i - 4 < j <= i:
            return -math.inf
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) * max(1.0, math.log(min(i + 1, 4)) / math.log(3))

    assert_same(attend(q, k, v, windowed), plain(q, k, v, score))
    with pytest.raises(ValueError, match=r"LogN\(most=0\): most must be at least 1"):
        LogN(3, most=0)
