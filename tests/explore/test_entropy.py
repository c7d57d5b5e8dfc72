"""The entropy of attention by the number of keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore

AT = (512, 1024, 4096, 16_384)
PAST, ALWAYS = "log-n past the trained length", "log-n at every length"


def test_entropy_grows_as_the_logarithm_and_more_slowly_with_log_n():
    found = explore.attention_entropy(lengths=AT)
    assert found["plain"] == pytest.approx([5.73, 6.42, 7.81, 9.19], abs=0.05)
    assert found[PAST] == pytest.approx([5.73, 6.30, 7.42, 8.47], abs=0.05)
    # Normal scores of variance λ² have ln n − λ²/2, as long as their sum has no single large part.
    for name, form in (
        ("plain", lambda n: 1.0),
        (PAST, lambda n: math.log(n) / math.log(512)),
    ):
        assert found[name] == pytest.approx([math.log(n) - form(n) ** 2 / 2 for n in AT], abs=0.05)
    assert np.array_equal(found[PAST], found[ALWAYS])
    assert (np.diff(found["ln n by itself"]) < 0.1).all()


def test_only_a_clipped_factor_leaves_short_texts_as_they_were():
    found = explore.attention_entropy(lengths=(64, 128, 512))
    assert np.array_equal(found["plain"], found[PAST])
    assert (found[ALWAYS][:2] > found["plain"][:2] + 0.1).all()
    assert found[ALWAYS][2] == found["plain"][2]


def test_entropies_are_those_of_the_formula():
    found = explore.attention_entropy(trained=8, lengths=(5, 20), head_dim=4, heads=8, seed=7)
    for place, n in enumerate((5, 20)):
        draw = torch.Generator().manual_seed(7)
        q = torch.randn(1, 8, 1, 4, generator=draw).double()[0, :, 0].numpy()
        k = torch.randn(1, 4, n, 4, generator=draw).double()[0].numpy()
        factors = {
            "plain": 1.0,
            PAST: max(1, math.log(n) / math.log(8)),
            "ln n by itself": math.log(n),
        }
        for name, factor in factors.items():
            total = 0.0
            for head in range(8):
                scores = [factor * float(q[head] @ key) / 2 for key in k[head // 2]]
                whole = sum(math.exp(each) for each in scores)
                total -= sum(math.exp(each) / whole * math.log(math.exp(each) / whole) for each in scores)
            assert found[name][place] == pytest.approx(total / 8, abs=1e-5)


def test_a_window_stops_the_growth():
    found = explore.attention_entropy(
        {"window": mp.Scheme(mp.Rope(64), mp.causal & mp.window(100))}, lengths=(100, 400, 1600)
    )
    assert found["window"] == pytest.approx(math.log(100) - 0.5, abs=0.1)


def test_what_is_no_table_of_schemes_is_refused():
    with pytest.raises(TypeError, match="attention_entropy: give"):
        explore.attention_entropy({"RoPE": mp.Rope(64)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"attention_entropy\(lengths=\(\)\): give at least one length"):
        explore.attention_entropy(lengths=())
    with pytest.raises(ValueError, match=r"attention_entropy\(trained=1\): trained must be at least 2"):
        explore.attention_entropy(trained=1)


def test_what_is_less_than_even_weights_is_drawn_beside():
    found = explore.attention_entropy(lengths=(64, 256, 1024))
    whole, less = found.pictures
    assert whole.panel.y.knots[0][0] <= 0  # type: ignore[attr-defined]
    names = [curve.name for curve in less.panel.curves]  # type: ignore[attr-defined]
    assert names == ["plain: s", "log-n past 512: s·max(1, ln n/ln 512)", "log-n at every length: s·ln n/ln 512"]
    for curve, name in zip(less.panel.curves, ("plain", PAST, ALWAYS), strict=True):  # type: ignore[attr-defined]
        assert [point.y for point in curve.points] == pytest.approx(found[name] - np.log(found["keys"]))
    assert whole.panel.upright == (512.0, "reference length, 512")  # type: ignore[attr-defined]
    assert "nothing is trained" in found.settings
