"""Near and far keys joined on the CPU: against the specification in float64, for every way in which they can meet."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import milepost as mp
from milepost import Dilute, KeepSinks, LeakyRerope, LogN, Pivot, Rerope, Rope, Scheme, SelfExtend, attend, causal
from milepost.backends import joined
from tests.oracles import assert_same, inputs

chunked = importlib.import_module("milepost.backends.chunked")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more number for every call that was joined; blocks are small, and so may texts be."""
    found: list[int] = []
    own = chunked.in_fields

    def counted(*given: Any) -> Any:
        found.append(len(given))
        return own(*given)

    monkeypatch.setattr(chunked, "in_fields", counted)
    monkeypatch.setattr(joined, "LEAST", 2)
    monkeypatch.setattr(joined, "ROWS", 8)
    return found


PLACES: dict[str, Any] = {
    "far keys at one place": lambda w: Rerope(w, at=2),
    "far keys slowed down": lambda w: LeakyRerope(w, 3.0),
    "set off": lambda w: Pivot(SelfExtend(1, w), w + 2),
    "diluted": lambda w: Dilute(Rerope(w), 2 * w + 5),
    "both, within the trained length": lambda w: Dilute(Pivot(Rerope(w), 100), 100),
    "sinks kept": lambda w: Dilute(Pivot(KeepSinks(Rerope(w), sinks=3), w + 2), 2 * w + 5),
    "all far keys are sinks": lambda w: Pivot(KeepSinks(LeakyRerope(w, 2.0), sinks=100), w + 2),
}


@pytest.mark.parametrize("window", [2, 9, 30])
@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_it_is_the_specification(name: str, window: int, calls: list[int]):
    given = inputs(t=35)
    scheme = Scheme(Rope(8), PLACES[name](window), LogN(9), causal)
    ours, exact = (attend(*given, scheme, backend=each, return_lse=True) for each in ("chunked", "reference"))
    assert calls == [3]
    for mine, true in zip(ours, exact, strict=True):
        assert_same(mine, true)


@pytest.mark.parametrize(
    "parts",
    [
        (Rerope(9), mp.SoftCap(3.0)),
        (Rerope(9), mp.SinkLogit(4)),
        (mp.DualChunk(12, 4),),
        (Rerope(40),),
        (Rerope(1),),
        (mp.Stream(2, 9),),
    ],
    ids=["bent", "rest", "three regimes", "nothing is far", "nothing is near", "a window"],
)
@torch.no_grad()
def test_whatever_else_is_asked_goes_the_long_way(parts: tuple[Any, ...], calls: list[int]):
    given = inputs(t=35)
    seen = () if isinstance(parts[0], mp.Stream) else (causal,)
    scheme = Scheme(Rope(8), *parts, *seen).double()
    assert_same(attend(*given, scheme, backend="chunked"), attend(*given, scheme, backend="reference"))
    assert calls == []


def test_gradients_packed_rows_and_later_queries_go_the_long_way(calls: list[int]):
    q, k, v = inputs(t=35)
    scheme = Scheme(Rope(8), Rerope(9), causal)
    documents = torch.arange(35) // 20
    for given, how in (
        ((q.requires_grad_(), k, v), {}),
        ((q.detach(), k, v), {"documents": documents}),
        ((q.detach()[:, :, -9:], k, v), {}),
        ((q.detach(), k, v), {"index": torch.arange(3, 38), "key_index": torch.arange(3, 38)}),
    ):
        ours, exact = (attend(*given, scheme, backend=each, **how) for each in ("chunked", "reference"))
        assert_same(ours, exact)
    assert calls == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [1, 12, 34])
@torch.no_grad()
def test_a_key_that_is_not_finite_harms_those_who_see_it(at: int, value: float, calls: list[int]):
    q, k, v = inputs(t=35)
    k[..., at, 2] = value
    scheme = Scheme(Rope(8), Pivot(KeepSinks(Rerope(9), sinks=2), 12), causal)
    ours, exact = (attend(q, k, v, scheme, backend=each) for each in ("chunked", "reference"))
    assert calls == [3]
    assert torch.equal(ours.isfinite(), exact.isfinite())
    assert_same(ours[exact.isfinite()], exact[exact.isfinite()])


@torch.no_grad()
def test_a_long_text_of_few_key_heads_in_float32(calls: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(joined, "ROWS", 256)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 700, 16) for heads in (4, 2, 2))
    scheme = Scheme(Rope(16), Pivot(KeepSinks(Rerope(128)), 200), causal)
    exact = attend(q.double(), k.double(), v.double(), scheme, backend="reference")
    torch.testing.assert_close(attend(q, k, v, scheme).double(), exact, rtol=1e-4, atol=1e-5)
    assert calls == [3]
