"""Pivot taken apart: with its own pivot the parts are Pivot again."""

from __future__ import annotations

import math

import pytest
import torch

import milepost as mp
from tests.examples import example_of

TURNED = example_of("pivot_ablations").Turned
Q, K, V = torch.randn(3, 2, 2, 40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def seen(*parts: object, backend: str = "reference") -> torch.Tensor:
    return mp.attend(Q, K, V, mp.Scheme(mp.Rope(8), mp.Rerope(8), *parts, mp.causal), backend=backend)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_about_what_near_keys_offer_it_is_pivot(backend: str):
    pivot = mp.attend(Q, K, V, mp.Scheme(mp.Rope(8), mp.Pivot(mp.Rerope(8), 16, strength=0.5), mp.causal))
    torch.testing.assert_close(seen(TURNED(8, 16, 0.5), backend=backend), pivot)
    assert (seen() - pivot).abs().max() > 1e-3


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """RoPE by hand: channels n and n + 4 are one complex number."""
    angles = position * 10000.0 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    made = torch.complex(x[:4], x[4:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([made.real, made.imag])


def test_about_a_number_it_is_the_formula():
    """One query by hand, in a loop over its keys."""
    i, window, trained, strength, pivot = 30, 8, 16, 0.7, 1.5
    scores: list[float] = []
    for j in range(i + 1):
        near = i - j < window
        p, r = (i, j) if near else (window, 0)
        score = float(turned(Q[0, 0, i], p) @ turned(K[0, 0, j], r)) / math.sqrt(8)
        scores.append(score if near else score + strength * math.log((i + 1) / trained) * (score - pivot))
    weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
    found = seen(TURNED(window, trained, strength, pivot))
    torch.testing.assert_close(found[0, 0, i], weights @ V[0, 0, : i + 1])


def test_about_any_number_all_keys_are_sharpened_alike():
    torch.testing.assert_close(seen(TURNED(0, 16, 0.5, 0.0)), seen(TURNED(0, 16, 0.5, 3.0)))
    assert (seen(TURNED(0, 16, 0.5, 0.0)) - seen(TURNED(8, 16, 0.5, 0.0))).abs().max() > 1e-3


def test_without_near_keys_there_is_nothing_to_turn_about():
    with pytest.raises(ValueError, match="with window 0 no key is near"):
        TURNED(0, 16, 0.5)
