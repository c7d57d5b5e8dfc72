"""NEZHA: Shaw's formula with fixed sinusoids for vectors (arXiv:1909.00204, and the code published with it)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Nezha, Scheme, Shaw, attend, causal
from tests.oracles import assert_same, attention, inputs


def clip(offset: int, reach: int) -> int:
    return max(-reach, min(reach, offset))


def wave(n: int, dim: int) -> Tensor:
    """a[2m] = sin(n · 10000^(−2m/d)), a[2m + 1] = cos of the same."""
    angles = [n * 10000 ** (-2 * m / dim) for m in range(dim // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)


def paper(q: Tensor, k: Tensor, v: Tensor, reach: int, origin: int, values: bool = True, ahead: bool = True) -> Tensor:
    """e_ij = q_i·(k_j + a_ij)/√d, o_i = Σ weight_ij (v_j + a_ij), a_ij = wave(clip(j − i) + origin)."""
    group, behind = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]

    def vector(i: int, j: int, dim: int) -> Tensor:
        return wave(clip(j - i - behind, reach) + origin, dim)

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if not ahead and j > i + behind:
            return -math.inf
        return q[b, h, i] @ (k[b, h // group, j] + vector(i, j, q.shape[3])) / math.sqrt(q.shape[3])

    def value(b: int, h: int, i: int, j: int) -> Tensor:
        return v[b, h // group, j] + (vector(i, j, v.shape[3]) if values else 0)

    return attention((*q.shape[:3], k.shape[2]), score, value)


@pytest.mark.parametrize(("count", "origin"), [("row", 3), ("distance", 0)])
def test_keys_and_values_gain_the_wave_of_their_clipped_distance(count, origin):
    q, k, v = inputs()
    ours = attend(q, k, v, Scheme(Nezha(8, reach=3, count=count)))
    assert_same(ours, paper(q, k, v, 3, origin))


def test_values_may_have_a_width_of_their_own_and_more_keys_than_queries():
    q, k, v = inputs(t=5, s=12, dv=6)
    ours = attend(q, k, v, Scheme(Nezha(8, reach=4, value_dim=6), causal))
    assert_same(ours, paper(q, k, v, 4, 4, ahead=False))


def test_values_are_left_alone_if_asked():
    q, k, v = inputs(dv=5)
    ours = attend(q, k, v, Scheme(Nezha(8, reach=2, values=False), causal))
    assert_same(ours, paper(q, k, v, 2, 2, values=False, ahead=False))


@torch.no_grad()
@pytest.mark.parametrize("visible", [(), (causal,)])
@pytest.mark.parametrize(("count", "origin"), [("row", 4), ("distance", 0)])
def test_it_is_shaw_with_a_fixed_table(count, origin, visible):
    q, k, v = inputs(dv=6)
    shaw = Shaw(8, reach=4, value_dim=6).double()
    for n in range(-4, 5):
        shaw.key_table[n + 4] = wave(n + origin, 8)
        shaw.value_table[n + 4] = wave(n + origin, 6)
    ours = attend(q, k, v, Scheme(Nezha(8, reach=4, value_dim=6, count=count), *visible))
    assert_same(ours, attend(q, k, v, Scheme(shaw, *visible)))


def test_the_published_code_numbers_the_waves_by_row():
    # Its table is sin and cos of 0 … 2·reach, read at clip(j − i) + reach and added as a tensor of all pairs.
    t, dim, reach = 11, 8, 3
    q, k, v = inputs(t=t, g=4, d=dim)
    angle = torch.arange(2.0 * reach + 1, dtype=torch.float64)[:, None] * torch.exp(
        torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim)
    )
    table = torch.zeros(2 * reach + 1, dim, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    at = torch.arange(t)
    pairs = table[(at[None] - at[:, None]).clamp(-reach, reach) + reach]
    scores = (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, pairs)) / math.sqrt(dim)
    weights = scores.softmax(-1)
    peer = weights @ v + torch.einsum("bhij,ijd->bhid", weights, pairs)
    assert_same(attend(q, k, v, Scheme(Nezha(dim, reach=reach))), peer)
    by_distance = attend(q, k, v, Scheme(Nezha(dim, reach=reach, count="distance")))
    assert float((by_distance - peer).abs().max()) > 1e-2


def test_the_paper_counts_from_the_query_itself():
    rows = Nezha(4, reach=2, count="distance").rows(4)
    assert rows.shape == (5, 4)
    assert rows[2].tolist() == [0, 1, 0, 1]
    # Sines are odd and cosines even.
    assert_same(rows[0] * torch.tensor([-1, 1, -1, 1]), rows[4], within=0)
    assert Nezha(4, reach=2).rows(4)[0].tolist() == [0, 1, 0, 1]


def test_keys_past_the_reach_share_a_vector():
    method = Nezha(8, reach=3)
    offsets = torch.arange(-6, 7)
    assert method.relate(0).keys.find(-offsets).tolist() == [clip(n, 3) + 3 for n in range(-6, 7)]
    q, k, v = inputs(t=1, s=9)
    # Keys 0 … 5 stand at the reach or past it, so they may be swapped.
    order = torch.tensor([5, 0, 3, 4, 1, 2, 6, 7, 8])
    scheme = Scheme(method)
    index, key_index = torch.tensor([8]), torch.arange(9)
    mixed = attend(q, k[:, :, order], v[:, :, order], scheme, index=index, key_index=key_index)
    assert_same(mixed, attend(q, k, v, scheme, index=index, key_index=key_index))


def test_it_has_nothing_to_learn():
    assert list(Scheme(Nezha(8)).parameters()) == []
    assert Nezha(8, reach=3) == Nezha(8, reach=3)


@pytest.mark.parametrize("name", ["head_dim", "value_dim"])
def test_widths_must_be_positive_and_even(name):
    sizes = {"head_dim": 8, "reach": 4}
    with pytest.raises(ValueError, match=rf"Nezha\({name}=7\): {name} must be even, because each wavelength gives"):
        Nezha(**(sizes | {name: 7}))
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=rf"Nezha\({name}={wrong}\): {name} must be at least 1"):
            Nezha(**(sizes | {name: wrong}))
    with pytest.raises(TypeError, match=rf"Nezha\({name}=8.0\): {name} must be an integer, not float"):
        Nezha(**(sizes | {name: 8.0}))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"reach": 0}, ValueError, r"Nezha\(reach=0\): reach must be at least 1"),
        ({"reach": 2.5}, TypeError, r"Nezha\(reach=2.5\): reach must be an integer, not float"),
        ({"values": "no"}, TypeError, r"Nezha\(values='no'\): values is True or False, not str"),
        ({"count": "offset"}, ValueError, r"Nezha\(count='offset'\): count must be one of 'row', 'distance'"),
    ],
)
def test_wrong_arguments_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        Nezha(8, **options)


def test_tensors_of_another_width_are_refused_by_name():
    q, k, v = inputs(dv=5)
    with pytest.raises(ValueError, match=r"Nezha\(head_dim=16\): given a tensor of 8 channels"):
        attend(q, k, v, Scheme(Nezha(16)))
    with pytest.raises(ValueError, match=r"Nezha\(8\): adds vectors of 8 channels to values of 5 .* value_dim=5, or"):
        attend(q, k, v, Scheme(Nezha(8)))
