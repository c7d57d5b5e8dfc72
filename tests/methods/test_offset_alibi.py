"""OffsetAlibi: ALiBi on both sides, with keys behind half a step nearer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Alibi, OffsetAlibi, Scheme, attend, causal
from tests.oracles import assert_same, dots, inputs, plain


def slopes(heads: int) -> list[float]:
    """The authors' rule: 2^(−8h/n) for a power of two n; otherwise every second slope of the next finer list joins."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def below(rows: int, columns: int, k: int) -> Tensor:
    """np.tri: ones on and below diagonal k."""
    return torch.ones(rows, columns, dtype=torch.float64).tril(k)


def deepmind(heads: int, t: int, s: int) -> Tensor:
    """Their construction, [h t s]: triangles stacked on both sides, and half of one taken back below the diagonal."""
    bias = torch.zeros(t, s, dtype=torch.float64)
    for n in range(1, t):
        bias = bias - below(t, s, -n)
    for n in range(1, s):
        bias = bias - below(s, t, -n).T
    bias = bias + 0.5 * below(t, s, -1)
    return bias * torch.tensor(slopes(heads), dtype=torch.float64)[:, None, None]


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (4, 2), (6, 3)])
@pytest.mark.parametrize("offset", [0.5, 0.0, -1.25])
def test_keys_behind_are_lowered_less_than_keys_ahead(heads, groups, offset):
    q, k, v = inputs(b=1, h=heads, g=groups, t=8, dv=5)
    m, dot = slopes(heads), dots(q, k)

    def score(b, h, i, j):
        return dot(b, h, i, j) - m[h] * (i - j - offset if j < i else j - i)

    assert_same(attend(q, k, v, Scheme(OffsetAlibi(heads, offset=offset))), plain(q, k, v, score))


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
@pytest.mark.parametrize(("t", "s"), [(9, 9), (6, 10), (10, 6)])
def test_the_bias_is_that_of_deepmind(heads, t, s):
    ours = Scheme(OffsetAlibi(heads)).bias(torch.arange(t), torch.arange(s), dtype=torch.float64)
    assert_same(ours[0], deepmind(heads, t, s), within=1e-14)


def test_their_bias_gives_our_attention():
    q, k, v = inputs(h=6, g=6, t=9)
    weights = torch.softmax(q @ k.mT / math.sqrt(8) + deepmind(6, 9, 9), -1)
    assert_same(attend(q, k, v, Scheme(OffsetAlibi(6))), weights @ v)


def test_it_can_tell_left_from_right():
    q, k, v = inputs()
    for method, tells in ((OffsetAlibi(4), True), (OffsetAlibi(4, offset=0.0), False)):
        forward = attend(q, k, v, Scheme(method))
        backward = attend(*(x.flip(2) for x in (q, k, v)), Scheme(method)).flip(2)
        assert (float((forward - backward).abs().max()) > 1e-3) == tells


def test_without_an_offset_it_is_alibi():
    q, k, v = inputs()
    for visible in ((), (causal,)):
        ours = attend(q, k, v, Scheme(OffsetAlibi(4, offset=0.0), *visible))
        assert_same(ours, attend(q, k, v, Scheme(Alibi(4), *visible)))


def test_a_token_itself_is_not_behind():
    # So under a causal mask the offset is no constant of the row, and the method is not ALiBi.
    bias = Scheme(OffsetAlibi(8), causal).bias(torch.arange(4), torch.arange(4))[0, 0]
    assert bias[3].tolist() == [-1.25, -0.75, -0.25, 0.0]


def test_behind_is_told_by_positions():
    q, k, v = inputs()
    place = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    m, dot = slopes(4), dots(q, k)

    def score(b, h, i, j):
        distance = float(place[i] - place[j])
        return dot(b, h, i, j) - m[h] * (distance - 0.5 if distance > 0 else -distance)

    ours = attend(q, k, v, Scheme(OffsetAlibi(4)), position=place, key_position=place)
    assert_same(ours, plain(q, k, v, score))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"heads": 0}, ValueError, r"OffsetAlibi\(heads=0\): heads must be at least 1"),
        ({"heads": -4}, ValueError, r"OffsetAlibi\(heads=-4\): heads must be at least 1"),
        ({"heads": 4.0}, TypeError, r"OffsetAlibi\(heads=4.0\): heads must be an integer, not float"),
        ({"offset": math.inf}, ValueError, r"OffsetAlibi\(offset=inf\): offset must be finite"),
        ({"offset": math.nan}, ValueError, r"OffsetAlibi\(offset=nan\): offset must be finite"),
        ({"offset": "0.5"}, TypeError, r"OffsetAlibi\(offset='0.5'\): offset must be a number, not str"),
        ({"offset": True}, TypeError, r"OffsetAlibi\(offset=True\): offset must be a number, not bool"),
    ],
)
def test_wrong_arguments_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        OffsetAlibi(**({"heads": 4} | options))


def test_queries_of_another_head_count_are_refused():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"OffsetAlibi\(8\) was given q with 4 heads"):
        attend(q, k, v, Scheme(OffsetAlibi(8)))
