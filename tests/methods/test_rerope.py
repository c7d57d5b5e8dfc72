from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Alibi, LeakyRerope, LogN, Rerope, Rope, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain
from tests.oracles import turned as rotated


def dots(q: Tensor, k: Tensor, group: int = 2) -> Tensor:
    """Scores [b h t s] of rotated queries and keys."""
    return (q @ k.repeat_interleave(group, 1).conj().mT).real / math.sqrt(2 * q.shape[-1])


def by_distance(q: Tensor, k: Tensor, v: Tensor, distance: Callable[[int], float], sees_ahead: bool = False) -> Tensor:
    """Each pair turned by the distance that the method gives it, one pair at a time."""
    group, d = q.shape[1] // k.shape[1], q.shape[3]

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i and not sees_ahead:
            return -math.inf
        turned = rotated(q[b, h, i], torch.tensor(distance(i - j), dtype=torch.float64))
        return (turned * rotated(k[b, h // group, j], torch.tensor(0)).conj()).real.sum() / math.sqrt(d)

    return plain(q, k, v, score)


def rectified(w: int) -> Callable[[int], float]:
    return lambda n: math.copysign(min(abs(n), w), n)


def leaky(w: int, factor: float) -> Callable[[int], float]:
    return lambda n: n if abs(n) < w else math.copysign(w + (abs(n) - w) / factor, n)


@pytest.mark.parametrize("sees_ahead", [False, True])
def test_no_two_tokens_stand_further_apart_than_the_window(sees_ahead: bool):
    q, k, v = inputs(dv=5)
    scheme = Scheme(Rope(8), Rerope(4)) if sees_ahead else Scheme(Rope(8), Rerope(4), causal)
    assert_same(attend(q, k, v, scheme), by_distance(q, k, v, rectified(4), sees_ahead))


@pytest.mark.parametrize("sees_ahead", [False, True])
@pytest.mark.parametrize("at", [1, 2, 9])
def test_far_keys_may_stand_elsewhere_than_at_the_window(at: int, sees_ahead: bool):
    q, k, v = inputs(dv=5)
    scheme = Scheme(Rope(8), Rerope(4, at=at)) if sees_ahead else Scheme(Rope(8), Rerope(4, at=at), causal)
    expected = by_distance(q, k, v, lambda n: n if abs(n) < 4 else math.copysign(at, n), sees_ahead)
    assert_same(attend(q, k, v, scheme), expected)


def test_far_keys_at_the_window_are_rerope():
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(Rope(8), Rerope(4, at=4))), attend(q, k, v, Scheme(Rope(8), Rerope(4))))


@pytest.mark.parametrize("sees_ahead", [False, True])
@pytest.mark.parametrize("factor", [3.0, 1 / 16])
def test_distances_leak_past_the_window(factor: float, sees_ahead: bool):
    """A factor below 1 is InvLeaky, which makes far distances larger."""
    q, k, v = inputs(dv=5)
    method = LeakyRerope(4, factor)
    scheme = Scheme(Rope(8), method) if sees_ahead else Scheme(Rope(8), method, causal)
    assert_same(attend(q, k, v, scheme), by_distance(q, k, v, leaky(4, factor), sees_ahead))


def two_scores(q: Tensor, k: Tensor, v: Tensor, w: int, far: Tensor) -> Tensor:
    """The author's form: a = where(|i − j| < w, ⟨R_i q, R_j k⟩, a2) on the causal triangle."""
    i = torch.arange(q.shape[2])
    distance = i[:, None] - i
    scores = torch.where(distance.abs() < w, dots(rotated(q, i), rotated(k, i)), far)
    return scores.masked_fill(distance < 0, -math.inf).softmax(-1) @ v.repeat_interleave(2, 1)


def test_the_two_scores_of_rerope():
    q, k, v = inputs(t=20)
    i = torch.arange(20)
    far = dots(rotated(q, torch.full_like(i, 8)), rotated(k, torch.zeros_like(i)))
    assert_same(attend(q, k, v, Scheme(Rope(8), Rerope(8), causal)), two_scores(q, k, v, 8, far))


def test_the_two_scores_of_leaky_rerope():
    q, k, v = inputs(t=20)
    i, w, factor = torch.arange(20), 8, 4
    ours = attend(q, k, v, Scheme(Rope(8), LeakyRerope(w, factor), causal))
    # The post writes (i − w)/k + w, the code (i + w(k − 1))/k.
    for place in ((i - w).double() / factor + w, (i + w * (factor - 1)).double() / factor):
        assert_same(ours, two_scores(q, k, v, w, dots(rotated(q, place), rotated(k, i.double() / factor))))


def test_decoding_turns_the_keys_back_and_leaves_the_query():
    q, k, v = inputs(t=1, s=14)
    behind = torch.arange(13, -1, -1).clamp(max=5)
    scores = dots(rotated(q, torch.zeros(1)), rotated(k, -behind))
    expected = scores.softmax(-1) @ v.repeat_interleave(2, 1)
    assert_same(attend(q, k, v, Scheme(Rope(8), Rerope(5), causal)), expected)


def test_the_two_scores_turn_keys_ahead_the_wrong_way():
    """They hold keys with j − i ≥ w at +w; a bidirectional model needs sign(i − j) · min(|i − j|, w)."""
    q, k, v = inputs()
    ours = attend(q, k, v, Scheme(Rope(8), Rerope(4)))
    unsigned = by_distance(q, k, v, lambda n: 4 if abs(n) >= 4 else n, sees_ahead=True)
    assert float((ours - unsigned).abs().max()) > 1e-3


@pytest.mark.parametrize("method", [Rerope(5), LeakyRerope(5, 3.0), LeakyRerope(5, 0.25)], ids=str)
def test_at_the_boundary_near_and_far_agree(method: Rerope | LeakyRerope):
    """So that "closer than the window" and "no further than it" are one function."""
    near, behind, ahead = method.place()
    for p in range(5, 30):
        query, key = torch.tensor(p), torch.tensor(p - 5)
        for regime in (near, behind):
            assert float(regime.query(query) - regime.key(key)) == pytest.approx(5, abs=1e-12)
        for regime in (near, ahead):
            assert float(regime.query(key) - regime.key(query)) == pytest.approx(-5, abs=1e-12)


@pytest.mark.parametrize("method", [Rerope(5), LeakyRerope(5, 3.0)], ids=str)
def test_every_pair_lies_in_one_regime(method: Rerope | LeakyRerope):
    p, r = torch.arange(30)[:, None], torch.arange(30)
    assert torch.equal(sum(regime.holds(p, r).long() for regime in method.place()), torch.ones(30, 30).long())


def test_a_factor_of_one_is_rope():
    q, k, v = inputs()
    plain_rope = attend(q, k, v, Scheme(Rope(8), causal))
    assert_same(attend(q, k, v, Scheme(Rope(8), LeakyRerope(4, 1), causal)), plain_rope)


def test_a_huge_factor_is_rerope():
    q, k, v = inputs()
    ours = attend(q, k, v, Scheme(Rope(8), LeakyRerope(4, 1e15)))
    assert_same(ours, attend(q, k, v, Scheme(Rope(8), Rerope(4))))


@pytest.mark.parametrize("method", [Rerope(11), LeakyRerope(11, 7.0)], ids=str)
def test_a_window_as_long_as_the_text_is_rope(method: Rerope | LeakyRerope):
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(Rope(8), method)), attend(q, k, v, Scheme(Rope(8))))


def test_a_bias_reads_the_same_distance():
    q, k, v = inputs()
    ours = attend(q, k, v, Scheme(Alibi(4), Rerope(4), causal))

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i:
            return -math.inf
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) - 2.0 ** (-2 * (h + 1)) * min(i - j, 4)

    assert_same(ours, plain(q, k, v, score))


def test_the_author_sharpens_queries_by_the_logarithm_of_their_index():
    """Past the trained length the patch multiplies q by ln(i + 1)/ln(trained)."""
    q, k, v = inputs()
    factor = torch.tensor([max(1.0, math.log(i + 1) / math.log(5)) for i in range(11)], dtype=torch.float64)
    expected = by_distance(q * factor[:, None], k, v, rectified(4))
    assert_same(attend(q, k, v, Scheme(Rope(8), Rerope(4), LogN(trained=5), causal)), expected)


@pytest.mark.parametrize("method", [Rerope, lambda window: LeakyRerope(window, 2.0)], ids=["Rerope", "LeakyRerope"])
def test_the_window_is_a_positive_integer(method: Callable[..., object]):
    for wrong in (0, -4):
        with pytest.raises(ValueError, match=rf"Rerope\(window={wrong}\): window must be at least 1"):
            method(wrong)
    with pytest.raises(TypeError, match=r"Rerope\(window=4.5\): window must be an integer, not float"):
        method(4.5)


def test_the_factor_is_a_positive_number():
    for wrong in (0, -2.0):
        with pytest.raises(ValueError, match=rf"LeakyRerope\(factor={wrong}\): factor must be greater than 0"):
            LeakyRerope(4, wrong)
    for wrong in (math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"LeakyRerope\(factor={wrong}\): factor must be finite"):
            LeakyRerope(4, wrong)
    with pytest.raises(TypeError, match=r"LeakyRerope\(factor='2'\): factor must be a number, not str"):
        LeakyRerope(4, "2")


def test_far_keys_put_further_than_the_text_is_long_have_their_own_row_of_a_table():
    part = mp.TransformerXL(8, 1, 8).double()
    scheme = mp.Scheme(mp.Rerope(2, at=9), part, mp.causal)
    q, k = torch.randn(2, 1, 1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = mp.scores(q, k, scheme)
    for i in range(5):
        for j in range(i + 1):
            angle = (i - j if i - j < 2 else 9) * 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
            row = part.project.weight @ torch.cat((angle.sin(), angle.cos()))
            score = (q[0, 0, i] + part.u[0]) @ k[0, 0, j] + (q[0, 0, i] + part.v[0]) @ row
            assert_same(found[0, 0, i, j], score / math.sqrt(8))
