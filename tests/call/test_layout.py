"""Indices as ranges: the same call as with tensors, on every backend; and calls in unusual surroundings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import milepost as mp
from milepost import causal, sinks, window
from milepost.backends import BACKENDS
from milepost.call.call import Layout
from milepost.call.resolve import resolve
from tests.oracles import assert_same, inputs

SCHEMES = {
    "Rope": mp.Scheme(mp.Rope(8), causal),
    "window and sinks": mp.Scheme(mp.Rope(8), mp.LogN(4), causal & (window(4) | sinks(7))),
    "Alibi": mp.Scheme(mp.Alibi(4), causal),
    "Rerope": mp.Scheme(mp.Rope(8), mp.Rerope(3), causal),
    "Xpos": mp.Scheme(mp.Xpos(8), causal),
    "everything": mp.Scheme(mp.Rope(8)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(
    ("index", "key_index"),
    [
        (range(4, 15), range(4, 15)),
        (range(9, 20), range(5, 16)),
        (range(30, 41), range(11)),
        (range(11), range(5, 16)),
        (range(1, 23, 2), range(0, 22, 2)),
        (range(10, -1, -1), range(10, -1, -1)),
    ],
    ids=["shifted", "apart", "far", "before", "every other", "backwards"],
)
def test_ranges_are_tensors(name: str, backend: str, index: range, key_index: range):
    q, k, v = inputs(t=11)
    scheme = SCHEMES[name]
    own, keys = torch.tensor(list(index)), torch.tensor(list(key_index))
    want = mp.attend(q, k, v, scheme, index=own, key_index=keys, backend="reference")
    try:
        out = mp.attend(q, k, v, scheme, index=index, key_index=key_index, backend=backend)
    except mp.CannotRun as refusal:
        assert f'"{backend}" cannot run this scheme' in str(refusal)
        return
    assert_same(out, want)


def test_a_range_of_step_one_is_known_without_a_look():
    q, k, v = inputs(t=4, s=9)
    layout = resolve(q, k, v, SCHEMES["Rope"], {"index": range(9, 13), "key_index": range(4, 13)}).layout
    assert layout == Layout(9, 4)
    assert layout is not None
    assert layout.offset == 5
    assert resolve(q, k, v, SCHEMES["Rope"], {}).layout == Layout(5, 0)
    # Queries are the last of the keys, wherever those begin.
    assert resolve(q, k, v, SCHEMES["Rope"], {"key_index": range(4, 13)}).layout == Layout(9, 4)
    assert resolve(q, k, v, SCHEMES["Rope"], {"key_index": range(0, 18, 2)}).layout is None
    assert resolve(q, k, v, SCHEMES["Rope"], {"key_documents": torch.zeros(9, dtype=torch.long)}).layout is None


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"index": range(-2, 9)}, r"index is range\(-2, 9\); indices count from 0"),
        ({"key_index": range(-2, 20, 2)}, "key_index holds -2; indices count from 0"),
        ({"index": range(10)}, r"index is range\(0, 10\), 10 indices for 11 tokens"),
        ({"key_index": range(12)}, r"key_index is range\(0, 12\), 12 indices for 11 tokens"),
        ({"key_index": range(0)}, "0 indices for 11 tokens"),
    ],
)
def test_wrong_ranges(wrong: dict[str, Any], text: str):
    q, k, v = inputs(t=11)
    with pytest.raises(ValueError, match=text):
        mp.attend(q, k, v, SCHEMES["Rope"], **wrong)


def test_more_queries_than_keys_need_both_indices():
    q, k, v = inputs(t=6, s=4)
    with pytest.raises(ValueError, match="6 queries but 4 keys"):
        mp.attend(q, k, v, SCHEMES["Rope"], index=range(6))
    out = mp.attend(q, k, v, SCHEMES["Rope"], index=range(6), key_index=range(4))
    assert_same(out[:, :, :4], mp.attend(q[:, :, :4], k, v, SCHEMES["Rope"]))


@pytest.mark.parametrize("name", SCHEMES)
def test_functional_gradients_are_those_of_autograd(name: str):
    scheme = SCHEMES[name]
    q, k, v = inputs(t=7)
    ours = torch.func.grad(lambda q: mp.attend(q, k, v, scheme).square().sum())(q)
    own = q.clone().requires_grad_()
    (want,) = torch.autograd.grad(mp.attend(own, k, v, scheme, backend="reference").square().sum(), own)
    assert_same(ours, want, within=1e-11)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SCHEMES)
def test_calls_are_mapped_over_an_axis(name: str):
    scheme = SCHEMES[name]
    q, k, v = inputs(t=7)
    many = torch.func.vmap(lambda q: mp.attend(q, k, v, scheme))(torch.stack((q, 2 * q)))
    assert_same(many[1], mp.attend(2 * q, k, v, scheme))


@pytest.mark.parametrize("which", range(3))
def test_one_tensor_alone_may_want_a_gradient(which: int):
    for scheme in SCHEMES.values():
        tensors = list(inputs(t=7))
        tensors[which].requires_grad_()
        ours, want = (
            torch.autograd.grad(mp.attend(*tensors, scheme, backend=backend).square().sum(), tensors[which])[0]
            for backend in (None, "reference")
        )
        assert_same(ours, want, within=1e-11)


def test_autocast_changes_nothing_inside():
    q, k, v = (each.float() for each in inputs(t=9))
    for scheme in SCHEMES.values():
        want = mp.attend(q, k, v, scheme)
        with torch.autocast("cpu", torch.bfloat16):
            cache = mp.Cache(scheme)
            cache.append(k, v)
            assert torch.equal(mp.attend(q, k, v, scheme), want)
            assert_same(mp.attend(q, cache.keys, cache.values, scheme), want, within=1e-5)
