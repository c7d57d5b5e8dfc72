"""Which backend is chosen, and what is weighed: estimates beside each other, never times."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch

import milepost as mp
from milepost import causal, window
from milepost.backends import BACKENDS


def shaped(t: int, s: int | None = None) -> Any:
    """Queries and keys whose numbers nobody reads."""
    return torch.empty(1, 8, t, 64), torch.empty(1, 2, s or t, 64)


def test_a_window_costs_a_fraction_of_everything_behind():
    q, k = shaped(8192)
    whole = mp.explain(q, k, k, mp.Scheme(mp.Rope(64), causal))
    narrow = mp.explain(q, k, k, mp.Scheme(mp.Rope(64), window(512)))
    assert whole.backend == narrow.backend == "sdpa"
    # 512 of 4096 keys on average, a block's rows besides.
    assert narrow.costs["sdpa"] < whole.costs["sdpa"] / 3
    assert narrow.costs["sdpa"] < narrow.costs["chunked"]


def test_packed_documents_cost_what_each_does():
    q, k = shaped(2048)
    scheme = mp.Scheme(mp.Rope(64), causal)
    packed = mp.explain(q, k, k, scheme, documents=torch.arange(8).repeat_interleave(256))
    assert packed.backend == "sdpa"
    assert packed.costs["sdpa"] < packed.costs["chunked"]


def test_the_cheapest_is_chosen_and_the_specification_never():
    q, k = shaped(1, 512)
    for scheme in (mp.Scheme(mp.Alibi(8), causal), mp.Scheme(mp.Rope(64), mp.Rerope(64), causal)):
        said = mp.explain(q, k, k, scheme)
        assert said.costs[said.backend] == min(said.costs.values()) < math.inf
        assert said.costs["reference"] == math.inf
        assert said.backend != "reference"
        assert set(said.able) | set(said.reasons) == set(BACKENDS)
    assert mp.explain(q, k, k, mp.Scheme(mp.Alibi(8), causal)).backend == "diagonals"


def test_what_was_weighed_is_printed():
    q, k = shaped(512)
    said = mp.explain(q, k, k, mp.Scheme(mp.Alibi(8), causal))
    lines = str(said).splitlines()
    assert lines[0] == f"{said.backend}: runs it"
    assert "sdpa: cannot, Alibi(8) modifies the scores, for which it needs an n × n mask" in lines
    assert "reference: could run it, but is slow: the others are tested against it" in lines
    other = next(name for name in said.able if name not in (said.backend, "reference", "flex"))
    times = said.costs[other] / said.costs[said.backend]
    assert f"{other}: could run it, at about {times:.1f} times the cost" in lines


@pytest.mark.parametrize("backend", ["sdpa", "chunked", "flex", "diagonals", "reference"])
def test_what_is_said_to_be_able_runs(backend: str):
    q, k = (torch.randn_like(each) for each in shaped(12))
    scheme = mp.Scheme(mp.Rope(64), window(5))
    assert backend in mp.explain(q, k, k, scheme).able
    want = mp.attend(q, k, k, scheme, backend="reference")
    assert torch.allclose(mp.attend(q, k, k, scheme, backend=backend), want, atol=1e-5)


def test_a_call_that_looks_like_one_before_is_neither_checked_nor_weighed(monkeypatch: pytest.MonkeyPatch):
    scheme = mp.Scheme(mp.Alibi(2), causal)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    first = mp.attend(q, k, v, scheme)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["milepost.attend"], "resolve", None)
        assert torch.equal(mp.attend(q, k, v, scheme), first)
        assert torch.equal(mp.attend(q, k, v, scheme, documents=None), first)
    assert mp.attend(q, k, v, scheme, dropout=0.5).shape == first.shape


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"docs": None}, "no option is called 'docs'"),
        ({"q": torch.randn(1, 3, 9, 8)}, "3 query heads cannot share 2 key heads"),
        ({"v": torch.randn(1, 2, 8, 8)}, "do not fit together"),
        ({"k": torch.randn(1, 2, 9, 8, dtype=torch.float64)}, "need one floating dtype"),
        ({"dropout": 2.0}, "dropout is a share"),
        ({"backend": "sdpa"}, "cannot run this scheme"),
    ],
    ids=["option", "heads", "lengths", "dtypes", "dropout", "backend"],
)
def test_a_call_that_looks_otherwise_is_checked(change: dict[str, Any], says: str):
    scheme = mp.Scheme(mp.Alibi(2), causal)
    given: dict[str, Any] = {name: torch.randn(1, 2, 9, 8) for name in "qkv"}
    mp.attend(**given, scheme=scheme)
    with pytest.raises((TypeError, ValueError, RuntimeError), match=says):
        mp.attend(**{**given, **change}, scheme=scheme)


def test_a_scheme_whose_weights_are_frozen_is_weighed_anew():
    scheme = mp.Scheme(mp.T5Bias(2), causal)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    assert mp.attend(q, k, v, scheme).requires_grad
    scheme.requires_grad_(False)
    assert not mp.attend(q, k, v, scheme).requires_grad
