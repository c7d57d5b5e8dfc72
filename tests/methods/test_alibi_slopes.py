"""ALiBi with another largest exponent, as MPT has it; and that a bias with slopes is no stretch of them."""

from __future__ import annotations

import math

import pytest

from milepost import Alibi, LearnedAlibi, OffsetAlibi, Scheme, attend, causal
from tests.oracles import assert_same, dots, inputs, plain


@pytest.mark.parametrize("bias_max", [1, 4.5, 16])
def test_another_largest_exponent_is_that_of_mpt(bias_max):
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    # Written otherwise, their slopes are the authors' for every number of heads.
    for heads in range(1, 70):
        peer = -mpt.build_mpt_alibi_tensor(heads, 2, alibi_bias_max=bias_max)[:, 0, 0].double()
        ours = Alibi(heads, bias_max=bias_max).slopes().behind
        assert float((ours / peer - 1).abs().max()) < 8 * 2**-24


@pytest.mark.parametrize("heads", [4, 6])
def test_the_largest_exponent_stands_in_place_of_the_eight(heads):
    q, k, v = inputs(b=1, h=heads, g=2, t=7)
    # 6 heads have the slopes of 4, and every second one of 8.
    exponents = [(h + 1) / 4 for h in range(4)] + [(2 * n + 1) / 8 for n in range(2)]
    m, dot = [2 ** (-3 * each) for each in exponents], dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) - m[h] * (i - j) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(Alibi(heads, bias_max=3.0), causal)), oracle)


def test_what_is_no_largest_exponent_is_refused():
    for wrong in (0, -8.0):
        with pytest.raises(ValueError, match=rf"Alibi\(bias_max={wrong}\): bias_max must be greater than 0"):
            Alibi(8, bias_max=wrong)
    with pytest.raises(TypeError, match=r"Alibi\(bias_max='8'\): bias_max must be a number, not str"):
        Alibi(8, bias_max="8")  # pyright: ignore


def test_a_bias_that_has_slopes_stretches_none():
    for bias in (Alibi(4), OffsetAlibi(4), LearnedAlibi(4)):
        with pytest.raises(TypeError, match=r"Alibi\(stretch=.*\(.*4.*\)\): a stretch is a method such as AlibiNtk"):
            Alibi(4, stretch=bias)  # pyright: ignore
