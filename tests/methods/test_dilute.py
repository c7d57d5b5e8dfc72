"""Dilute, against its formula pair by pair in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import (
    Cache,
    Dilute,
    DualChunk,
    LeakyRerope,
    Learned,
    Pivot,
    Rerope,
    Rope,
    Scheme,
    SelfExtend,
    attend,
    causal,
)
from tests.oracles import assert_same, inputs
from tests.oracles import turned as rotated


def by_pairs(
    q: Tensor, k: Tensor, v: Tensor, near: int, trained: int, strength: float, pivot: float = 0.0, sinks: int = 0
) -> Tensor:
    """Row by row: ReRoPE's scores; those of far keys that are no sinks are set off against all others, and lowered by
    the logarithm of how many more there are; then a softmax.
    """
    group, d = q.shape[1] // k.shape[1], q.shape[3]
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores: list[float] = []
                for j in range(i + 1):
                    turned = rotated(q[b, h, i], torch.tensor(min(i - j, near), dtype=torch.float64))
                    dot = (turned * rotated(k[b, h // group, j], torch.tensor(0)).conj()).real.sum()
                    scores.append(float(dot) / math.sqrt(d))
                far = range(sinks, i + 1 - near)
                level = math.log(sum(math.exp(score) for j, score in enumerate(scores) if j not in far))
                many = max(1.0, (i + 1 - near) / (trained - near))
                for j in far:
                    scores[j] += pivot * math.log(max(1.0, (i + 1) / trained)) * (scores[j] - level)
                    scores[j] -= strength * math.log(many)
                total = sum(math.exp(score) for score in scores)
                for j, score in enumerate(scores):
                    out[b, h, i] += math.exp(score) / total * v[b, h // group, j]
    return out


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
@pytest.mark.parametrize("strength", [1.0, 2.5])
def test_far_scores_are_lowered_by_how_many_there_are(strength: float, backend: str):
    q, k, v = inputs(t=14, dv=5)
    scheme = Scheme(Rope(8), Dilute(Rerope(4), trained=6, strength=strength), causal)
    with torch.no_grad():
        assert_same(attend(q, k, v, scheme, backend=backend), by_pairs(q, k, v, 4, 6, strength))


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
def test_beside_a_pivot_it_comes_last(backend: str):
    q, k, v = inputs(t=14, dv=5)
    expected = by_pairs(q, k, v, 4, 6, 1.0, pivot=0.7)
    for place in (Dilute(Pivot(Rerope(4), 6, strength=0.7), 6), Pivot(Dilute(Rerope(4), 6), 6, strength=0.7)):
        with torch.no_grad():
            assert_same(attend(q, k, v, Scheme(Rope(8), place, causal), backend=backend), expected)


def test_gradients_are_the_specifications():
    q, k, v = (each.requires_grad_() for each in inputs(t=14))
    scheme = Scheme(Rope(8), Dilute(Rerope(4), 6), causal)
    found = [
        torch.autograd.grad(attend(q, k, v, scheme, backend=backend).square().sum(), (q, k, v))
        for backend in ("reference", "chunked")
    ]
    for ours, exact in zip(found[1], found[0], strict=True):
        assert_same(ours, exact)


def test_within_the_trained_length_nothing_changes():
    q, k, v = inputs(t=12)
    for method in (Rerope(4), SelfExtend(2, 4), LeakyRerope(4, 3.0), DualChunk(6, 2)):
        plain = attend(q, k, v, Scheme(Rope(8), method, causal))
        for same in (Dilute(method, trained=12), Dilute(method, trained=7, strength=0.0)):
            assert torch.equal(attend(q, k, v, Scheme(Rope(8), same, causal)), plain)


def test_all_far_keys_together_weigh_what_they_did_in_training():
    """Keys that are all alike: the far ones' share stays that of the trained length, however long the text is."""
    q = torch.zeros(1, 1, 400, 8, dtype=torch.float64)
    v = torch.zeros_like(q)
    v[:, :, : 400 - 8, 0] = 1.0
    share = float(attend(q, q, v, Scheme(Rope(8), Dilute(Rerope(8), 32), causal))[0, 0, -1, 0])
    assert share == pytest.approx((32 - 8) / 32)
    plain = float(attend(q, q, v, Scheme(Rope(8), Rerope(8), causal))[0, 0, -1, 0])
    assert plain == pytest.approx((400 - 8) / 400)


def test_a_decoding_step_equals_a_fresh_pass():
    scheme = Scheme(Rope(8), Dilute(Rerope(4), 6), causal)
    q, k, v = inputs(t=15)
    whole, cache = attend(q, k, v, scheme), Cache(scheme)
    with torch.no_grad():
        for n in range(15):
            cache.append(k[:, :, n : n + 1], v[:, :, n : n + 1])
            assert_same(attend(q[:, :, n : n + 1], cache.keys, cache.values, scheme), whole[:, :, n : n + 1])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Dilute(Rope(8), 5), "must move far keys and do nothing else"),
        (lambda: Dilute(Learned(8, 4), 5), "must move far keys and do nothing else"),
        (lambda: Dilute(Rerope(4), 4), "4 keys are near, so that none was far in training"),
        (lambda: Dilute(Rerope(4), 0), "trained"),
        (lambda: Dilute(Rerope(4), 6, strength=-1.0), "strength"),
        (lambda: Scheme(Rope(8), Dilute(Rerope(4), 6)), "keys behind the query only"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any, says: str):
    with pytest.raises((TypeError, ValueError), match=says):
        wrong()


def test_what_is_around_a_method_that_goes_by_the_length_does_so_too():
    by_length, by_index = (mp.Pivot(mp.Rerope(4), 8, count=count) for count in ("length", "index"))
    assert mp.Dilute(by_length, 8).by_length
    assert not mp.Dilute(by_index, 8).by_length
