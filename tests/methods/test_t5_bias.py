from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scale, Schedule, Scheme, T5Bias, attend, causal
from tests.oracles import assert_same, inputs, plain


def bucket(distance: int, buckets: int, reach: int, bidirectional: bool) -> int:
    """The bucket of a distance i − j, as the paper's code finds it, in whole numbers and one logarithm."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance < 0 else 0
        distance = abs(distance)
    else:
        distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    grown = math.log(distance / exact) / math.log(reach / exact) * (buckets - exact)
    return first + min(exact + math.floor(grown), buckets - 1)


def bias(heads: int, **options) -> T5Bias:
    method = T5Bias(heads, **options).double()
    torch.nn.init.normal_(method.table)
    return method


SETTINGS = [(32, 128), (8, 20), (16, 64), (64, 512), (4, 100), (32, 37), (128, 300)]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_each_score_gains_the_number_of_its_bucket(bidirectional):
    q, k, v = inputs(t=13, dv=5)
    method = bias(4, buckets=8, reach=10, bidirectional=bidirectional)

    def score(b, h, i, j):
        return q[b, h, i] @ k[b, h // 2, j] + method.table[bucket(i - j, 8, 10, bidirectional), h].detach()

    assert_same(attend(q, k, v, Scheme(method, Scale(1.0))), plain(q, k, v, score))


def test_the_number_is_added_after_the_scale_where_there_is_one():
    q, k, v = inputs()
    method = bias(4, buckets=8, reach=10)

    def score(b, h, i, j):
        if j > i:
            return -math.inf
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) + method.table[bucket(i - j, 8, 10, False), h].detach()

    assert_same(attend(q, k, v, Scheme(method, causal)), plain(q, k, v, score))


def test_the_published_buckets_of_both_sides():
    # The first distance of each of the buckets 8 … 15, behind the query.
    starts = [8, 12, 16, 23, 32, 46, 64, 91]
    method = T5Bias(1, bidirectional=True)
    for distance in range(601):
        behind = distance if distance < 8 else 7 + sum(distance >= start for start in starts)
        ahead = behind + 16 if distance else 0
        assert method.bucket(torch.tensor([distance, -distance])).tolist() == [behind, ahead]
    # rel = j − i of −1 and +1: the sides do not share a bucket.
    assert method.bucket(torch.tensor([1, -1])).tolist() == [1, 17]
    assert method.bucket(torch.tensor([-8, -91, -600])).tolist() == [24, 31, 31]


def test_the_published_buckets_of_keys_behind():
    # The first distance of each of the buckets 16 … 31.
    starts = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    expected = [d if d < 16 else 15 + sum(d >= start for start in starts) for d in range(601)]
    assert T5Bias(1).bucket(torch.arange(601)).tolist() == expected
    assert T5Bias(1).bucket(-torch.arange(601)).tolist() == [0] * 601


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), SETTINGS)
def test_buckets_equal_those_of_transformers(buckets, reach, bidirectional):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-600, 601)
    ours = T5Bias(2, buckets=buckets, reach=reach, bidirectional=bidirectional).bucket(distance)
    assert ours.dtype == torch.int64
    peer = t5.T5Attention._relative_position_bucket(-distance, bidirectional, buckets, reach)
    assert torch.equal(ours, peer)


def test_the_logarithm_is_taken_in_float32_as_t5_takes_it():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    # At distance 25752 a float64 logarithm falls on the other side of the boundary.
    distance = torch.arange(25_000, 26_500)
    peer = t5.T5Attention._relative_position_bucket(-distance, False, 256, 93_312)
    for dtype in (torch.int64, torch.float64):
        assert torch.equal(T5Bias(1, buckets=256, reach=93_312).bucket(distance.to(dtype)), peer)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_past_the_reach_all_distances_share_the_last_bucket(bidirectional):
    far = torch.tensor([50, 51, 10**6, 10**9])
    last = 7 if bidirectional else 15
    assert T5Bias(1, buckets=16, reach=50, bidirectional=bidirectional).bucket(far).tolist() == [last] * 4


@pytest.mark.parametrize("decoder", [False, True])
def test_it_equals_the_attention_of_t5(decoder):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(
        d_model=16, d_kv=6, num_heads=4, relative_attention_num_buckets=8, relative_attention_max_distance=12,
        is_decoder=decoder, dropout_rate=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    peer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    for weight in peer.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    x = torch.randn(2, 15, 16, dtype=torch.float64)
    hidden = torch.full((15, 15), -math.inf, dtype=torch.float64).triu(1) if decoder else None
    theirs = peer(x, mask=hidden)[0]

    method = T5Bias(4, buckets=8, reach=12, bidirectional=not decoder).double()
    method.table.data.copy_(peer.relative_attention_bias.weight)
    scheme = Scheme(method, Scale(1.0), *([causal] if decoder else []))
    q, k, v = (project(x).view(2, 15, 4, 6).transpose(1, 2) for project in (peer.q, peer.k, peer.v))
    ours = peer.o(attend(q, k, v, scheme).transpose(1, 2).reshape(2, 15, 24))
    assert_same(ours, theirs)


def test_the_table_has_a_number_for_each_bucket_and_head():
    assert T5Bias(12).table.shape == (32, 12)
    assert sum(weight.numel() for weight in T5Bias(12).parameters()) == 32 * 12


def test_a_bucket_learns_once_for_every_pair_in_it():
    method = T5Bias(1, buckets=4, reach=6).double()
    one = torch.zeros(1, dtype=torch.int64)
    i, j = torch.arange(8)[:, None], torch.arange(8)
    method.bend(torch.zeros(8, 8, dtype=torch.float64), one, one, i, j).sum().backward()
    counts = [0] * 4
    for query in range(8):
        for key in range(8):
            counts[bucket(query - key, 4, 6, False)] += 1
    assert method.table.grad is not None
    assert method.table.grad[:, 0].tolist() == counts


def test_one_object_in_every_layer_is_one_shared_table():
    shared = T5Bias(4)
    schedule = Schedule([Scheme(shared, causal) for _ in range(3)])
    assert len(list(schedule.parameters())) == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"heads": 0}, ValueError, r"T5Bias\(heads=0\): heads must be at least 1"),
        ({"heads": 4.0}, TypeError, r"T5Bias\(heads=4.0\): heads must be an integer, not float"),
        ({"heads": 4, "buckets": 7}, ValueError, r"T5Bias\(buckets=7\): buckets must be even, because half of them"),
        ({"heads": 4, "buckets": 0}, ValueError, r"T5Bias\(buckets=0\): buckets must be at least 2"),
        ({"heads": 4, "buckets": True}, TypeError, r"buckets must be an integer, not bool"),
        (
            {"heads": 4, "buckets": 2, "bidirectional": True},
            ValueError,
            r"T5Bias\(buckets=2\): buckets must be at least 4",
        ),
        (
            {"heads": 4, "buckets": 6, "bidirectional": True},
            ValueError,
            r"buckets must be a multiple of 4, half for each",
        ),
        ({"heads": 4, "reach": -1}, ValueError, r"T5Bias\(reach=-1\): reach must be at least 1"),
        ({"heads": 4, "reach": 16}, ValueError, r"T5Bias\(reach=16\): the first 16 distances have a bucket each"),
        ({"heads": 4, "reach": 8, "bidirectional": True}, ValueError, r"the first 8 distances have a bucket each"),
        ({"heads": 4, "reach": 128.0}, TypeError, r"T5Bias\(reach=128.0\): reach must be an integer, not float"),
    ],
)
def test_buckets_that_cannot_be_made_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        T5Bias(**options)


@pytest.mark.parametrize(("window", "factor"), [(2, 2.5), (10, 1.1), (8, 1.6), (3, 1 / 3)])
def test_buckets_of_slowed_distances_are_those_of_exact_ones_wherever_the_text_begins(window: int, factor: float):
    q, k, v = inputs(t=40)
    part = T5Bias(4, buckets=16, reach=30).double()
    torch.nn.init.normal_(part.table, generator=torch.Generator().manual_seed(1))
    scheme = Scheme(part, mp.LeakyRerope(window, factor), causal)
    exact = Fraction(factor).limit_denominator(100)

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if j > i:
            return -math.inf
        moved = Fraction(i - j) if i - j < window else window + (i - j - window) / exact
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) + part.table[_bucket_of(moved), h]

    def _bucket_of(moved: Fraction) -> int:
        if moved < 8:
            return math.floor(moved)
        # No distance here lies so near a bound that the width of the logarithm would matter.
        return min(15, 8 + math.floor(8 * math.log(moved / 8) / math.log(30 / 8) + 1e-9))

    want = plain(q, k, v, score)
    for first in (0, 7, 10**6 + 3):
        told = {"index": range(first, first + 40), "key_index": range(first, first + 40)}
        for backend in (None, "reference", "chunked", "flex") if first == 7 else (None,):
            with torch.no_grad():
                assert_same(attend(q, k, v, scheme, **told, backend=backend), want)  # pyright: ignore
