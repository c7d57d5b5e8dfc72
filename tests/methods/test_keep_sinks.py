"""KeepSinks, against its formula pair by pair in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from milepost import Cache, Dilute, KeepSinks, LeakyRerope, Pivot, Rerope, Rope, Scheme, SelfExtend, attend, causal
from tests.oracles import assert_same, inputs
from tests.oracles import turned as rotated

NEAR, TRAINED, SINKS = 4, 6, 2


def by_pairs(q: Tensor, k: Tensor, v: Tensor, strength: float, pivot: float) -> Tensor:
    """Row by row: ReRoPE's scores; those of far keys that are no sinks are set off against all others, and lowered."""
    group, d = q.shape[1] // k.shape[1], q.shape[3]
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores: list[float] = []
                for j in range(i + 1):
                    turned = rotated(q[b, h, i], torch.tensor(min(i - j, NEAR), dtype=torch.float64))
                    dot = (turned * rotated(k[b, h // group, j], torch.tensor(0)).conj()).real.sum()
                    scores.append(float(dot) / math.sqrt(d))
                far = [j for j in range(i + 1) if i - j >= NEAR and j >= SINKS]
                level = math.log(sum(math.exp(scores[j]) for j in range(i + 1) if j not in far))
                for j in far:
                    scores[j] += pivot * math.log(max(1.0, (i + 1) / TRAINED)) * (scores[j] - level)
                    scores[j] -= strength * math.log(max(1.0, (i + 1 - NEAR) / (TRAINED - NEAR)))
                total = sum(math.exp(score) for score in scores)
                for j, score in enumerate(scores):
                    out[b, h, i] += math.exp(score) / total * v[b, h // group, j]
    return out


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
@pytest.mark.parametrize(("strength", "pivot"), [(1.5, 0.0), (0.0, 0.7), (1.5, 0.7)])
def test_sinks_are_spared_and_count_as_near(strength: float, pivot: float, backend: str):
    q, k, v = inputs(t=14, dv=5)
    place: Any = KeepSinks(Rerope(NEAR), SINKS)
    place = Pivot(place, TRAINED, pivot) if pivot else place
    place = Dilute(place, TRAINED, strength) if strength else place
    with torch.no_grad():
        found = attend(q, k, v, Scheme(Rope(8), place, causal), backend=backend)
    assert_same(found, by_pairs(q, k, v, strength, pivot))


def test_gradients_are_the_specifications():
    q, k, v = (each.requires_grad_() for each in inputs(t=14))
    scheme = Scheme(Rope(8), Dilute(Pivot(KeepSinks(Rerope(NEAR), SINKS), TRAINED), TRAINED), causal)
    found = [
        torch.autograd.grad(attend(q, k, v, scheme, backend=backend).square().sum(), (q, k, v))
        for backend in ("reference", "chunked")
    ]
    for ours, exact in zip(found[1], found[0], strict=True):
        assert_same(ours, exact)


@pytest.mark.parametrize("method", [Rerope(4), SelfExtend(2, 4), LeakyRerope(4, 3.0)])
def test_alone_it_changes_nothing(method: Any):
    q, k, v = inputs(t=14)
    plain = attend(q, k, v, Scheme(Rope(8), method, causal))
    assert_same(attend(q, k, v, Scheme(Rope(8), KeepSinks(method), causal)), plain)


def test_the_sinks_of_packed_documents_are_their_own_first_keys():
    q, k, v = inputs(t=24)
    scheme = Scheme(Rope(8), Dilute(KeepSinks(Rerope(NEAR), SINKS), TRAINED), causal)
    documents = torch.tensor([0] * 11 + [1] * 13)
    apart = [attend(*(each[:, :, part] for each in (q, k, v)), scheme) for part in (slice(0, 11), slice(11, 24))]
    assert_same(attend(q, k, v, scheme, documents=documents), torch.cat(apart, 2))


def test_a_decoding_step_equals_a_fresh_pass():
    scheme = Scheme(Rope(8), Dilute(Pivot(KeepSinks(Rerope(NEAR), SINKS), TRAINED), TRAINED), causal)
    q, k, v = inputs(t=15)
    whole, cache = attend(q, k, v, scheme), Cache(scheme)
    with torch.no_grad():
        for n in range(15):
            cache.append(k[:, :, n : n + 1], v[:, :, n : n + 1])
            assert_same(attend(q[:, :, n : n + 1], cache.keys, cache.values, scheme), whole[:, :, n : n + 1])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: KeepSinks(Rope(8)), "must move far keys and do nothing else"),
        (lambda: KeepSinks(Rerope(4), 0), "sinks"),
        (lambda: KeepSinks(Dilute(Rerope(4), 6)), r"write Dilute\(KeepSinks\(Rerope\(.*4.*\)\), …\)"),
        (lambda: KeepSinks(Pivot(Rerope(4), 6)), r"write Pivot\(KeepSinks\("),
        (lambda: KeepSinks(Dilute(Pivot(Rerope(4), 6), 6)), r"write Dilute\(Pivot\(KeepSinks\(Rerope"),
        (lambda: KeepSinks(Rerope(4), 2**31), "no text is that long"),
        (lambda: KeepSinks(Rerope), r"this is a class; make one: Rerope\(…\)"),
        (lambda: Pivot(Rerope, 6), r"this is a class; make one: Rerope\(…\)"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any, says: str):
    with pytest.raises((TypeError, ValueError), match=says):
        wrong()
