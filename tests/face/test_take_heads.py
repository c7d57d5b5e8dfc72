"""Some heads of a scheme do what they do among all: outputs, gradients of weights, facets, every backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from milepost.backends import BACKENDS
from tests.agreement import small_blocks
from tests.cases import CASES
from tests.facets import facets_mean_what_verbs_do, facets_of
from tests.layers import D, G, H, embedded, fresh, project, tokens
from tests.oracles import assert_same, inputs

BY_HEAD = {name: make for name, make in CASES.items() if name != "FloaterLayer"}
TAKEN = [(0, 2), (2, 2), (1, 1), (0, 4)]


def of_heads(name: str, first: int, count: int, backend: str | None) -> None:
    scheme = fresh(CASES[name])
    leaves = [each.detach().requires_grad_() for each in project(embedded(scheme, tokens()))]
    scheme, weights = scheme.attention, list(scheme.attention.parameters())
    keys = slice(first * G // H, -(-(first + count) * G // H))
    want = mp.attend(*leaves, scheme, backend="reference")[:, first : first + count]
    q, k, v = leaves
    some = scheme.take_heads(first, count)
    try:
        out = mp.attend(q[:, first : first + count], k[:, keys], v[:, keys], some, backend=backend)
    except mp.CannotRun:
        return
    assert_same(out, want)
    assert {id(each) for each in some.parameters()} == {id(each) for each in weights}
    grads = [torch.autograd.grad(each.square().sum(), [*leaves, *weights], allow_unused=True) for each in (out, want)]
    for ours, theirs in zip(*grads, strict=True):
        zero = torch.zeros(())
        assert float(((zero if ours is None else ours) - (zero if theirs is None else theirs)).abs().max()) < 1e-11


@pytest.mark.parametrize(("first", "count"), TAKEN)
@pytest.mark.parametrize("name", BY_HEAD)
def test_heads_are_as_they_are_among_all(name: str, first: int, count: int):
    of_heads(name, first, count, None)


@pytest.mark.sample(40)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BY_HEAD)
def test_heads_are_as_they_are_among_all_on_every_backend(name: str, backend: str):
    with small_blocks():
        of_heads(name, 2, 2, backend)


@pytest.mark.parametrize("name", BY_HEAD)
def test_some_heads_answer_the_facets_that_all_do(name: str):
    scheme = fresh(CASES[name]).attention
    for part, whole in zip(scheme.take_heads(2, 2).parts, scheme.parts, strict=True):
        assert facets_of(part) == facets_of(whole)
        assert getattr(part, "relative", False) == getattr(whole, "relative", False)


TWICE = {
    "Alibi": lambda: mp.Alibi(2 * H), "AlibiDynamicNtk": lambda: mp.Alibi(2 * H, stretch=mp.AlibiDynamicNtk(5)),
    "OffsetAlibi": lambda: mp.OffsetAlibi(2 * H), "SplitAlibi": lambda: mp.SplitAlibi(2 * H),
    "LearnedAlibi": lambda: mp.LearnedAlibi(2 * H), "T5Bias": lambda: mp.T5Bias(2 * H, buckets=8, reach=9),
    "Kerple": lambda: mp.Kerple(2 * H), "Sandwich": lambda: mp.Sandwich(2 * H, 12),
    "Fire": lambda: mp.Fire(2 * H, trained=6, width=5), "TransformerXL": lambda: mp.TransformerXL(10, 2 * H, D),
    "Deberta": lambda: mp.Deberta(10, 2 * H, D, reach=5),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_facets_of_some_heads_mean_what_their_verbs_do(name: str):
    scheme = fresh(lambda: mp.Scheme(TWICE[name](), causal))
    part = scheme.take_heads(H - 1, H).parts[0]
    assert facets_of(part)
    facets_mean_what_verbs_do(part)


class Louder:
    """A class of a user's, which reads the head and says nothing of it."""

    relative = True

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score * (head + 1) + batch


def test_a_class_of_a_users_is_given_the_heads_number_among_all():
    scheme, (q, k, v) = mp.Scheme(Louder(), causal), inputs()
    want = mp.attend(q, k, v, scheme, backend="reference")
    for backend in (None, *BACKENDS):
        try:
            found = mp.attend(q[:, 2:], k[:, 1:], v[:, 1:], scheme.take_heads(2, 2), backend=backend)
        except mp.CannotRun:
            continue
        assert_same(found, want[:, 2:])


def test_heads_of_heads():
    scheme, (q, k, v) = mp.Scheme(mp.Alibi(4), mp.SinkLogit(4), causal).double(), inputs()
    want = mp.attend(q, k, v, scheme)[:, 3:]
    assert_same(mp.attend(q[:, 3:], k[:, 1:], v[:, 1:], scheme.take_heads(2, 2).take_heads(1, 1)), want)


def test_heads_that_are_not_there_and_parts_that_know_all_heads_are_refused():
    with pytest.raises(ValueError, match=r"take_heads\(first=3, count=2\): the scheme has 4 heads, and these end at 5"):
        mp.Scheme(mp.Alibi(4)).take_heads(3, 2)
    with pytest.raises(ValueError, match=r"take_heads\(count=0\): count must be at least 1"):
        mp.Scheme(mp.Alibi(4)).take_heads(3, 0)
    with pytest.raises(ValueError, match=r"take_heads: FloaterLayer\(4, 8.* turns keys head by head"):
        CASES["FloaterLayer"]().take_heads(0, 2)
    with pytest.raises(ValueError, match=r"take_heads: Cope\(.* makes keys for all heads"):
        mp.Scheme(mp.Cope(8, 6, gates="own", model_dim=32, key_heads=2), causal).take_heads(0, 2)
