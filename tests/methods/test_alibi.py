from __future__ import annotations

import itertools
import math

import pytest
import torch

from milepost import Alibi, LearnedAlibi, Scheme, SplitAlibi, attend, causal
from tests.oracles import assert_same, dots, hidden_future, inputs, plain


def slopes_of(method: Alibi) -> tuple[float, ...]:
    """The slope of each head, as the method says it."""
    return tuple(method.slopes().behind.tolist())


def slopes(heads: int) -> list[float]:
    """The authors' rule: 2^(−8h/n) for a power of two n; otherwise every second slope of the next finer list joins."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def softmax_over(q, k, v, bias):
    """Attention with a bias [… h t s] added to scaled scores, as implementations with a dense bias have it."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[3]) + bias, -1) @ v


# Alibi


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 7), (12, 4)])
def test_each_score_is_lowered_by_slope_times_distance(heads, groups):
    q, k, v = inputs(b=1, h=heads, g=groups, t=7, dv=5)
    m, dot = slopes(heads), dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) - m[h] * (i - j) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(Alibi(heads), causal)), oracle)


def test_without_a_mask_the_penalty_is_symmetric():
    q, k, v = inputs(dv=5)
    m, dot = slopes(4), dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: dot(b, h, i, j) - m[h] * abs(i - j))
    assert_same(attend(q, k, v, Scheme(Alibi(4))), oracle)


def test_symmetric_heads_cannot_tell_left_from_right():
    q, k, v = inputs()
    forward = attend(q, k, v, Scheme(Alibi(4)))
    assert_same(attend(q.flip(2), k.flip(2), v.flip(2), Scheme(Alibi(4))).flip(2), forward)


def test_distance_is_between_positions_and_the_mask_between_indices():
    q, k, v = inputs()
    place = torch.randn(11, dtype=torch.float64).cumsum(0) * 3
    m, dot = slopes(4), dots(q, k)
    oracle = plain(
        q, k, v, lambda b, h, i, j: dot(b, h, i, j) - m[h] * abs(float(place[i] - place[j])) if j <= i else -math.inf
    )
    assert_same(attend(q, k, v, Scheme(Alibi(4), causal), position=place, key_position=place), oracle)


def test_the_published_slopes():
    assert slopes_of(Alibi(1)) == (2**-8,)
    assert slopes_of(Alibi(3)) == (0.0625, 0.00390625, 0.25)
    assert slopes_of(Alibi(6)) == (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
    assert slopes_of(Alibi(8)) == tuple(2.0**-h for h in range(1, 9))
    assert [round(m, 6) for m in slopes_of(Alibi(12))[8:]] == [0.707107, 0.353553, 0.176777, 0.088388]
    assert slopes_of(Alibi(12))[:8] == slopes_of(Alibi(8))


@pytest.mark.parametrize("heads", [2, 4, 16, 32, 128])
def test_slopes_are_geometric_from_the_ratio_itself_down_to_a_256th(heads):
    ours = slopes_of(Alibi(heads))
    assert abs(ours[0] - 2 ** (-8 / heads)) < 1e-15
    assert ours[-1] == 2**-8
    for one, next_one in itertools.pairwise(ours):
        assert abs(next_one / one - ours[0]) < 1e-14


def test_slopes_follow_the_authors_for_every_head_count():
    for heads in range(1, 130):
        ours, authors = (torch.tensor(each, dtype=torch.float64) for each in (slopes_of(Alibi(heads)), slopes(heads)))
        assert_same(ours, authors, within=1e-15)


def test_slopes_equal_those_of_bloom():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    for heads in range(1, 130):
        # Two tokens: BLOOM's tensor is 0 and the slope.
        peer = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].double()
        ours = Alibi(heads).slopes().behind
        # Theirs raises a float32 base to a power of up to 128: 128 half-units in the last place and some.
        assert float((ours / peer - 1).abs().max()) < 160 * 2**-24


def test_slopes_equal_those_of_mpt():
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    for heads in range(1, 130):
        peer = -mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0].double()
        ours = Alibi(heads).slopes().behind
        assert float((ours / peer - 1).abs().max()) < 4 * 2**-24


def test_the_forms_in_use_agree_with_ours_after_the_softmax():
    t, heads = 11, 6
    q, k, v = inputs(h=heads, t=t)
    m = torch.tensor(slopes(heads), dtype=torch.float64).view(-1, 1, 1)
    j = torch.arange(t, dtype=torch.float64)
    ours = attend(q, k, v, Scheme(Alibi(heads), causal))
    # The authors, fairseq and Baichuan: m·j, a row-constant away from −m·(i − j).
    assert_same(softmax_over(q, k, v, m * j + hidden_future(t)), ours)
    # MPT: m·(j − (L − 1)).
    assert_same(softmax_over(q, k, v, m * (j - (t - 1)) + hidden_future(t)), ours)


def test_the_tensor_of_mpt_gives_our_attention():
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    q, k, v = inputs()
    peer = softmax_over(q, k, v, mpt.build_mpt_alibi_tensor(4, 11).double() + hidden_future(11))
    # Four heads have slopes that float32 holds exactly.
    assert_same(attend(q, k, v, Scheme(Alibi(4), causal)), peer)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_padded_tensor_of_bloom_gives_our_attention(side):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    t = 9
    q, k, v = inputs(t=t)
    real = torch.ones(2, t, dtype=torch.int64)
    real[1, slice(0, 3) if side == "left" else slice(6, 9)] = 0
    alibi = bloom.build_alibi_tensor(real, 4, torch.float64).view(2, 4, 1, t)
    hidden = torch.where(real[:, None, None, :] == 1, 0.0, -math.inf) + hidden_future(t)
    peer = softmax_over(q, k, v, alibi + hidden)
    ours = attend(q, k, v, Scheme(Alibi(4), causal), documents=real - 1)
    seen = real.bool()[:, None, :, None].expand_as(ours)
    assert_same(ours[seen], peer[seen])
    assert not ours[~seen].any()


def test_far_keys_keep_their_slope_in_bfloat16():
    s = 4096
    q, k = torch.zeros(1, 8, 1, 2, dtype=torch.bfloat16), torch.zeros(1, 8, s, 2, dtype=torch.bfloat16)
    v = torch.zeros(1, 8, s, 1, dtype=torch.bfloat16)
    v[:, :, -1] = 1
    # A bias that grows with the key, rounded to bfloat16, merges the newest keys and loses their weights.
    rounded = (0.5 * torch.arange(s)).bfloat16()
    assert rounded[-20:].unique().numel() == 2
    assert round(float(torch.softmax(rounded.float(), -1)[-1]), 3) == 0.125
    weight = float(attend(q, k, v, Scheme(Alibi(8), causal))[0, 0, 0, 0])
    assert abs(weight - 0.393) < 0.0015


def test_queries_of_another_head_count_are_refused():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"Alibi\(8\) was given q with 4 heads"):
        attend(q, k, v, Scheme(Alibi(8), causal))


# SplitAlibi


@pytest.mark.parametrize(("heads", "groups"), [(2, 1), (4, 2), (6, 3)])
def test_one_half_of_the_heads_looks_left_and_the_other_right(heads, groups):
    q, k, v = inputs(b=1, h=heads, g=groups, t=8, dv=5)
    half = heads // 2
    m, dot = slopes(half) * 2, dots(q, k)

    def score(b, h, i, j):
        seen = j <= i if h < half else j >= i
        return dot(b, h, i, j) - m[h] * abs(i - j) if seen else -math.inf

    assert_same(attend(q, k, v, Scheme(SplitAlibi(heads))), plain(q, k, v, score))


def test_the_left_half_is_causal_alibi_and_the_right_half_its_mirror():
    q, k, v = inputs(h=6, g=6)
    ours = attend(q, k, v, Scheme(SplitAlibi(6)))
    left = [x[:, :3] for x in (q, k, v)]
    right = [x[:, 3:].flip(2) for x in (q, k, v)]
    assert_same(ours[:, :3], attend(*left, Scheme(Alibi(3), causal)))
    assert_same(ours[:, 3:], attend(*right, Scheme(Alibi(3), causal)).flip(2))


def test_a_token_sees_itself_in_both_halves():
    q, k, v = inputs(t=5)
    ours = attend(q, k, v, Scheme(SplitAlibi(4)))
    assert_same(ours[:, :2, 0], v[:, :1, 0].expand(2, 2, 8))
    assert_same(ours[:, 2:, -1], v[:, 1:, -1].expand(2, 2, 8))


# LearnedAlibi


def trained_slopes(heads: int) -> LearnedAlibi:
    method = LearnedAlibi(heads).double()
    torch.nn.init.normal_(method.left)
    torch.nn.init.normal_(method.right)
    return method


def test_slopes_are_squashed_weights_of_their_own_on_each_side():
    q, k, v = inputs(dv=5)
    method, dot = trained_slopes(4), dots(q, k)
    left = [1 / (1 + math.exp(-a)) for a in method.left.tolist()]
    right = [1 / (1 + math.exp(-a)) for a in method.right.tolist()]

    def score(b, h, i, j):
        return dot(b, h, i, j) - (left[h] * (i - j) if j <= i else right[h] * (j - i))

    assert_same(attend(q, k, v, Scheme(method)), plain(q, k, v, score))


def test_weights_that_squash_to_the_fixed_slopes_are_alibi():
    q, k, v = inputs()
    method = LearnedAlibi(4).double()
    with torch.no_grad():
        for side in (method.left, method.right):
            side.copy_(torch.tensor(slopes(4), dtype=torch.float64).logit())
    assert_same(attend(q, k, v, Scheme(method)), attend(q, k, v, Scheme(Alibi(4))))


def test_slopes_stay_parameters_through_two_backward_passes_and_a_step():
    q, k, v = inputs()
    scheme = Scheme(LearnedAlibi(4).double())
    names = dict(scheme.named_parameters())
    assert set(names) == {"0.left", "0.right"}
    assert all(weight.is_leaf and weight.shape == (4,) for weight in names.values())
    before = [weight.detach().clone() for weight in names.values()]
    optimiser = torch.optim.SGD(scheme.parameters(), lr=1.0)
    for _ in range(2):
        optimiser.zero_grad()
        attend(q, k, v, scheme).square().sum().backward()
        assert all(weight.grad is not None and (weight.grad != 0).all() for weight in names.values())
        optimiser.step()
    after = dict(scheme.named_parameters())
    assert all(after[name] is weight for name, weight in names.items())
    assert all((weight != old).all() for weight, old in zip(after.values(), before, strict=True))
    assert set(scheme.state_dict()) == set(names)


def test_under_a_causal_mask_the_right_side_learns_nothing():
    q, k, v = inputs()
    scheme = Scheme(trained_slopes(4), causal)
    attend(q, k, v, scheme).square().sum().backward()
    left, right = scheme.parameters()
    assert left.grad is not None
    assert (left.grad != 0).all()
    assert right.grad is None or not right.grad.any()


def test_slopes_start_around_the_squashed_minus_two():
    torch.manual_seed(0)
    for weights in LearnedAlibi(40_000).state_dict().values():
        # Mean and deviation of 40000 draws are known to 0.005 and 0.0035; five of each are allowed.
        assert abs(weights.mean().item() + 2) < 0.025
        assert abs(weights.std().item() - 1) < 0.018


# What cannot be made


@pytest.mark.parametrize("method", [Alibi, SplitAlibi, LearnedAlibi])
@pytest.mark.parametrize(
    ("heads", "error", "text"),
    [
        (0, ValueError, r"\(heads=0\): heads must be at least 1"),
        (-4, ValueError, r"\(heads=-4\): heads must be at least 1"),
        (8.0, TypeError, r"\(heads=8.0\): heads must be an integer, not float"),
        (True, TypeError, r"\(heads=True\): heads must be an integer, not bool"),
        ("8", TypeError, r"\(heads='8'\): heads must be an integer, not str"),
    ],
)
def test_head_counts_that_are_none_are_refused(method, heads, error, text):
    with pytest.raises(error, match=method.__name__ + text):
        method(heads)


def test_an_odd_number_of_heads_cannot_be_split():
    with pytest.raises(ValueError, match=r"SplitAlibi\(heads=5\): heads must be even, because half of the heads look"):
        SplitAlibi(5)
