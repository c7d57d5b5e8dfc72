from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import DualChunk, LeakyRerope, LogN, Pivot, Rerope, Rope, Scheme, SelfExtend, attend, causal, window
from tests.oracles import assert_same, inputs
from tests.oracles import turned as rotated


def by_pairs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    far: Callable[[int], bool],
    distance: Callable[[int], float],
    strength: Callable[[int], float],
    seen: Callable[[int, int], bool] = lambda i, j: j <= i,
    sharp: Callable[[int], float] = lambda n: 1.0,
) -> Tensor:
    """Row by row: scores, then far ones turned about the log of the summed weights of near ones, then a softmax."""
    group, d = q.shape[1] // k.shape[1], q.shape[3]
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores: dict[int, float] = {}
                for j in filter(lambda j: seen(i, j), range(k.shape[2])):
                    turned = rotated(q[b, h, i], torch.tensor(distance(i - j), dtype=torch.float64))
                    dot = (turned * rotated(k[b, h // group, j], torch.tensor(0)).conj()).real.sum()
                    scores[j] = float(dot) / math.sqrt(d) * sharp(i + 1)
                near = [score for j, score in scores.items() if not far(i - j)]
                level = math.log(sum(math.exp(score) for score in near)) if near else 0.0
                for j, score in scores.items():
                    if far(i - j):
                        scores[j] = score + strength(i + 1) * (score - level)
                total = sum(math.exp(score) for score in scores.values())
                for j, score in scores.items():
                    out[b, h, i] += math.exp(score) / total * v[b, h // group, j]
    return out


def growing(trained: int, strength: float) -> Callable[[int], float]:
    return lambda n: strength * math.log(max(1.0, n / trained))


METHODS: dict[str, tuple[Any, Callable[[int], bool], Callable[[int], float]]] = {
    "rerope": (Rerope(4), lambda n: abs(n) >= 4, lambda n: math.copysign(min(abs(n), 4), n)),
    "leaky": (
        LeakyRerope(4, 3.0),
        lambda n: abs(n) >= 4,
        lambda n: n if abs(n) < 4 else math.copysign(4 + (abs(n) - 4) / 3, n),
    ),
}


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
@pytest.mark.parametrize("name", METHODS)
def test_far_scores_are_turned_about_what_near_keys_offer(name: str, backend: str):
    q, k, v = inputs(t=13, dv=5)
    method, far, distance = METHODS[name]
    scheme = Scheme(Rope(8), Pivot(method, trained=5, strength=0.7), causal)
    with torch.no_grad():
        assert_same(attend(q, k, v, scheme, backend=backend), by_pairs(q, k, v, far, distance, growing(5, 0.7)))


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
def test_where_no_near_key_is_seen_near_is_0(backend: str):
    q, k, v = inputs(t=13, dv=5)
    method, far, distance = METHODS["rerope"]
    scheme = Scheme(Rope(8), Pivot(method, trained=5, strength=0.7), causal & ~window(4))
    expected = by_pairs(q, k, v, far, distance, growing(5, 0.7), lambda i, j: j <= i - 4)
    with torch.no_grad():
        assert_same(attend(q, k, v, scheme, backend=backend), expected)


def test_encoders_count_the_whole_text():
    q, k, v = inputs(t=11, dv=5)
    method, _, distance = METHODS["rerope"]
    scheme = Scheme(Rope(8), Pivot(method, trained=5, count="length"))
    far: Callable[[int], bool] = lambda n: not -4 < n < 4  # noqa: E731
    expected = by_pairs(q, k, v, far, distance, lambda n: growing(5, 0.5)(11), lambda i, j: True)
    assert_same(attend(q, k, v, scheme), expected)


def test_an_encoder_read_backwards_answers_the_same_backwards():
    q, k, v = inputs(t=6, dv=5)
    # Negating the second of each pair of channels turns every rotation the other way, as reading backwards does.
    sign = torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=torch.float64)
    for method in (Rerope(2), LeakyRerope(2, 4.0)):
        scheme = Scheme(Rope(8), Pivot(method, 1, strength=1.0, count="length"))
        backwards = attend((q * sign).flip(2), (k * sign).flip(2), v.flip(2), scheme).flip(2)
        assert_same(attend(q, k, v, scheme), backwards)


def test_without_causal_a_method_that_needs_it_is_refused():
    with pytest.raises(ValueError, match="keys behind the query only"):
        Scheme(Rope(8), Pivot(DualChunk(3, 1), 4))


def test_it_comes_after_what_sharpens():
    q, k, v = inputs(t=12, dv=5)
    method, far, distance = METHODS["rerope"]
    scheme = Scheme(Rope(8), Pivot(method, trained=5), LogN(5), causal)
    sharp: Callable[[int], float] = lambda n: max(1.0, math.log(n) / math.log(5))  # noqa: E731
    expected = by_pairs(q, k, v, far, distance, growing(5, 0.5), sharp=sharp)
    assert_same(attend(q, k, v, scheme), expected)


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
def test_where_no_near_key_is_seen_far_ones_share_what_there_is(backend: str):
    q, k, v = inputs(t=12, dv=5)
    method, far, distance = METHODS["rerope"]
    hidden = causal & ~window(5)
    scheme = Scheme(Rope(8), Pivot(method, trained=5), hidden)
    with torch.no_grad():
        ours = attend(q, k, v, scheme, backend=backend)
    expected = by_pairs(q, k, v, far, distance, growing(5, 0.5), lambda i, j: i - j >= 5)
    assert_same(ours[:, :, 5:], expected[:, :, 5:])
    assert (ours[:, :, :5] == 0).all()


def test_within_the_trained_length_nothing_changes():
    q, k, v = inputs(t=12)
    for method in (Rerope(4), SelfExtend(2, 4)):
        plain = attend(q, k, v, Scheme(Rope(8), method, causal))
        assert torch.equal(attend(q, k, v, Scheme(Rope(8), Pivot(method, trained=12), causal)), plain)
        assert torch.equal(attend(q, k, v, Scheme(Rope(8), Pivot(method, trained=3, strength=0.0), causal)), plain)


def test_a_far_key_that_outweighs_the_near_ones_rises_and_others_sink():
    q = torch.zeros(1, 1, 64, 8, dtype=torch.float64)
    q[..., -1, :4] = 4.0
    k, v = torch.zeros_like(q), torch.zeros_like(q)
    # One far key matches the last query; every frequency is zero, so that scores do not depend on positions.
    still = Rope(8, stretch=mp.Proportional(0.0))
    k[0, 0, 10, :4] = 4.0
    v[0, 0, 10, 0] = 1.0
    weights = [
        float(attend(q, k, v, Scheme(still, method, causal))[0, 0, -1, 0])
        for method in (Rerope(8), Pivot(Rerope(8), trained=16))
    ]
    score, n = 64 / math.sqrt(8), math.log(64 / 16) / 2
    near = math.log(8)
    assert weights[0] == pytest.approx(math.exp(score) / (63 + math.exp(score)))
    risen, sunk = math.exp(score + n * (score - near)), 55 * math.exp(-n * near)
    assert weights[1] == pytest.approx(risen / (8 + sunk + risen))
    assert weights[1] > weights[0]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"method": Rope(8)},
            TypeError,
            r"Pivot\(Rope\(head_dim=8.*must move far keys and do nothing else, as Rerope\(256\)",
        ),
        ({"method": mp.Stream(2, 4)}, TypeError, r"must move far keys and do nothing else"),
        ({"trained": 0}, ValueError, r"Pivot\(trained=0\): trained must be at least 1"),
        ({"strength": -1.0}, ValueError, r"Pivot\(strength=-1.0\): strength must be at least 0"),
        ({"strength": math.nan}, ValueError, r"strength must be finite"),
        ({"count": "keys"}, ValueError, r"Pivot\(count='keys'\): .*one of 'index', 'length'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        Pivot(**({"method": Rerope(4), "trained": 8} | options))


def test_flex_refuses_its_gradient():
    q, k, v = (each.requires_grad_() for each in inputs(t=6))
    with pytest.raises(RuntimeError, match="FlexAttention"):
        attend(q, k, v, Scheme(Rope(8), Pivot(Rerope(4), 4), causal), backend="flex")
