"""KeepSinks, against its formula pair by pair in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from milepost import Cache, Dilute, KeepSinks, LeakyRerope, Pivot, Rerope, Rope, Scheme, SelfExtend, attend, causal
from tests.methods.test_dilute import by_pairs
from tests.oracles import assert_same, inputs

NEAR, TRAINED, SINKS = 4, 6, 2


@pytest.mark.parametrize("backend", ["reference", "chunked", "flex"])
@pytest.mark.parametrize(("strength", "pivot"), [(1.5, 0.0), (0.0, 0.7), (1.5, 0.7)])
def test_sinks_are_spared_and_count_as_near(strength: float, pivot: float, backend: str):
    q, k, v = inputs(t=14, dv=5)
    place: Any = KeepSinks(Rerope(NEAR), sinks=SINKS)
    place = Pivot(place, TRAINED, strength=pivot) if pivot else place
    place = Dilute(place, TRAINED, strength=strength) if strength else place
    with torch.no_grad():
        found = attend(q, k, v, Scheme(Rope(8), place, causal), backend=backend)
    assert_same(found, by_pairs(q, k, v, NEAR, TRAINED, strength, pivot, SINKS))


def test_gradients_are_the_specifications():
    q, k, v = (each.requires_grad_() for each in inputs(t=14))
    scheme = Scheme(Rope(8), Dilute(Pivot(KeepSinks(Rerope(NEAR), sinks=SINKS), TRAINED), TRAINED), causal)
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
    scheme = Scheme(Rope(8), Dilute(KeepSinks(Rerope(NEAR), sinks=SINKS), TRAINED), causal)
    documents = torch.tensor([0] * 11 + [1] * 13)
    apart = [attend(*(each[:, :, part] for each in (q, k, v)), scheme) for part in (slice(0, 11), slice(11, 24))]
    assert_same(attend(q, k, v, scheme, documents=documents), torch.cat(apart, 2))


def test_a_decoding_step_equals_a_fresh_pass():
    scheme = Scheme(Rope(8), Dilute(Pivot(KeepSinks(Rerope(NEAR), sinks=SINKS), TRAINED), TRAINED), causal)
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
        (lambda: KeepSinks(Rerope(4), sinks=0), "sinks"),
        (lambda: KeepSinks(Dilute(Rerope(4), 6)), r"write Dilute\(KeepSinks\(Rerope\(.*4.*\)\), …\)"),
        (lambda: KeepSinks(Pivot(Rerope(4), 6)), r"write Pivot\(KeepSinks\("),
        (lambda: KeepSinks(Dilute(Pivot(Rerope(4), 6), 6)), r"write Dilute\(Pivot\(KeepSinks\(Rerope"),
        (lambda: KeepSinks(Rerope(4), sinks=2**31), "no text is that long"),
        (lambda: KeepSinks(Rerope), r"this is a class; make one: Rerope\(…\)"),
        (lambda: Pivot(Rerope, 6), r"this is a class; make one: Rerope\(…\)"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any, says: str):
    with pytest.raises((TypeError, ValueError), match=says):
        wrong()
