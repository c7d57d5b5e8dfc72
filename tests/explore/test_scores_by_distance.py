"""Scores by distance: in bands, before and after a stretch, and past the trained length."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore

PLAIN = mp.Rope(128)


def drawn(n: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, n, d, generator=draw, dtype=torch.float64)
    return q, k


def by_hand(q: Any, k: Any, theta: float, pairs: range, distance: float, neighbours: bool) -> float:
    """Return the mean over rows of q · k, pair by pair, q turned by distance · θ_n."""
    d, total = q.shape[1], 0.0
    for n in pairs:
        one, two = (2 * n, 2 * n + 1) if neighbours else (n, n + d // 2)
        cos, sin = (wave(distance * theta ** (-2 * n / d)) for wave in (math.cos, math.sin))
        for row in range(len(q)):
            first, second = float(q[row, one]), float(q[row, two])
            total += (first * cos - second * sin) * float(k[row, one])
            total += (first * sin + second * cos) * float(k[row, two])
    return total / len(q)


def test_slow_pairs_fall_within_training_and_fast_ones_swing_everywhere():
    found = explore.score_bands(PLAIN, points=8192)
    slow, fast = found["16 slowest pairs"], found["16 fastest pairs"]
    assert slow[[0, 1000, 4096]] == pytest.approx([16, 14.1, 0.7], abs=0.05)
    assert np.sqrt((fast[1:] ** 2).mean()) == pytest.approx(2.8, abs=0.05)
    assert "go from 16.0 at distance 0 to 0.7 at 4,096" in found.says


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_bands_are_the_formula_pair_by_pair_and_sum_to_the_whole(pairs: Any):
    q, k = drawn(3, 16)
    rope = mp.Rope(16, theta=100.0, pairs=pairs)
    found = explore.score_bands(rope, trained=50, length=200, q=q, k=k, band=3, points=20)
    bands = {"3 slowest pairs": range(5, 8), "2 pairs between": range(3, 5), "3 fastest pairs": range(3)}
    for name, part in bands.items():
        wanted = [by_hand(q, k, 100.0, part, at, pairs == "neighbours") for at in found["distance"]]
        assert np.allclose(found[name], wanted, rtol=0, atol=1e-12)
    parts = sum(found[name] for name in bands)
    assert np.allclose(parts, found["all 8 pairs"], rtol=0, atol=1e-12)
    whole = mp.scores(q[:, None, None], k[:, None, None].expand(3, 1, 200, 16), mp.Scheme(rope, mp.causal))
    assert np.allclose(
        found["all 8 pairs"], 4 * whole.mean(0)[0, 0].flip(0).numpy()[found["distance"].astype(int)], atol=1e-12
    )


def test_a_base_change_brings_the_slowest_pairs_back_to_what_training_met():
    unit = torch.full((128,), 0.5**0.5)
    found = explore.before_after(unit, unit)
    slow = "16 slowest pairs"
    past = found["distance"] > 4096
    for when, theta in (("before", 1e4), ("after", 1e6)):
        wanted = [sum(math.cos(s * theta ** (-n / 64)) for n in range(48, 64)) for s in found["distance"]]
        assert np.allclose(found[f"{slow}, {when}"], wanted, rtol=0, atol=1e-5)
    assert found[f"{slow}, before"][past].min() < found[f"{slow}, before"][~past].min()
    assert found[f"{slow}, after"][past].min() > found[f"{slow}, before"][~past].min()


def test_ntk_is_a_base_change_and_an_interpolation_reads_trained_distances():
    q, k = drawn(2, 32)
    base = mp.Rope(32, theta=1e4 * 8 ** (32 / 30))
    found = explore.before_after(q, k, before=base, after=mp.Rope(32, stretch=mp.Ntk(8)), trained=50, length=400)
    assert np.allclose(found["all 16 pairs, before"], found["all 16 pairs, after"], rtol=0, atol=1e-10)
    squeezed = mp.Rope(32, stretch=mp.Interpolate(8))
    found = explore.before_after(q, k, before=mp.Rope(32), after=squeezed, trained=50, length=400, points=400)
    assert np.allclose(found["all 16 pairs, after"][::8], found["all 16 pairs, before"][:50], rtol=0, atol=1e-12)


def test_a_score_that_is_small_in_training_explodes_past_it_by_its_ridge():
    found = explore.score_bound(PLAIN)
    assert 0.3 < found["largest at trained distances"] < 2
    assert 4.6e3 <= found["largest past them"] < 4.6e5
    assert found["largest at all distances, stretched"] == pytest.approx(found["largest at trained distances"], rel=0.1)
    assert found["outside, by ridge, without a ridge"] > 1e8
    outside, inside = found["outside, by ridge"], found["inside, by ridge"]
    assert outside[0] > 1e6 * outside[-1]
    assert (np.diff(outside) < 0).sum() >= len(outside) - 2
    assert inside.max() < 2
    # What explodes is what cancels: no score is larger than the sum of its coefficients.
    assert (outside <= 128 * found["coefficient, by ridge"]).all()


def test_the_bound_is_the_ridge_regression_of_its_waves():
    found = explore.score_bound(mp.Rope(8), trained=40, length=100, ridge=0.5, targets=60, seed=3)
    draw = torch.Generator().manual_seed(3)
    places = torch.randint(41, (60,), generator=draw).numpy()
    places[[0, -1]] = 0, 40
    wanted = (2 * torch.rand(60, generator=draw, dtype=torch.float64) - 1).numpy()
    steps = [10_000.0 ** (-2 * n / 8) for n in range(4)]
    rows = np.array([[wave(s * step) for wave in (math.cos, math.sin) for step in steps] for s in range(100)])
    fit = rows[places]
    best: Any = np.linalg.solve(fit.T @ fit + 0.5 * np.eye(8), fit.T @ wanted)
    assert np.allclose(found["score"], (rows @ best)[found["distance"].astype(int)], rtol=0, atol=1e-12)
    assert found["largest past them"] == pytest.approx(np.abs(rows @ best)[41:].max(), rel=1e-12)


@pytest.mark.parametrize("rope", [mp.Rope(16, stretch=mp.Ntk(4)), mp.LearnedRope(16), mp.Rope(16)])
def test_a_bound_is_interpolated_in_the_rotations_own_frequencies(rope: Any):
    found = explore.score_bound(rope, trained=50, length=200, targets=60, points=200)
    at = found["distance"].astype(int)
    assert np.array_equal(at, np.arange(200))
    # A quarter of each distance: every fourth one is a trained distance of the same fit.
    assert np.allclose(found["score, stretched"][::4], found["score"][:50], rtol=0, atol=1e-9)
    assert found["largest at all distances, stretched"] == pytest.approx(found["largest at trained distances"], rel=0.5)


def test_a_whole_scheme_is_refused_and_its_rotation_named():
    rope = mp.Rope(64, stretch=mp.Yarn(4, 4096))
    scheme, words = mp.Scheme(rope, mp.LogN(4096), mp.causal), "give its rotation, Rope(64, stretch=Yarn(4, 4096))"
    for draw in (
        explore.score_bands,
        explore.score_bound,
        lambda each: explore.angles_seen(each, trained=4096, length=16_384),
        lambda each: explore.angles_seen(rope, trained=4096, length=16_384, stretched=each),
        lambda each: explore.wavelengths({"mine": each}, trained=4096, length=16_384),
    ):
        with pytest.raises(TypeError, match=re.escape(f"this is a whole scheme; {words}")):
            draw(scheme)
    with pytest.raises(TypeError, match="this is a whole scheme; it has none"):
        explore.score_bands(mp.Scheme(mp.Alibi(8), mp.causal))


def test_what_has_no_bands_is_refused():
    with pytest.raises(TypeError, match=re.escape("score_bands: AxialRope(8, (2, 2)) does not turn all channels")):
        explore.score_bands(mp.AxialRope(8, (2, 2)))
    with pytest.raises(ValueError, match=re.escape("score_bands(band=4): of 8 pairs none is left between two bands")):
        explore.score_bands(mp.Rope(16), band=4)
    with pytest.raises(ValueError, match=re.escape("score_bands(length=4096): length must be at least 4097")):
        explore.score_bands(PLAIN, length=4096)
    with pytest.raises(ValueError, match="score_bands: give both q and k, or neither"):
        explore.score_bands(PLAIN, q=torch.ones(128))
    with pytest.raises(ValueError, match=re.escape("before_after: q and k are both [d] or both [n d], with the 128")):
        explore.before_after(torch.ones(64), torch.ones(64), before=PLAIN)
    with pytest.raises(ValueError, match=r"score_bound\(ridge=-1\): ridge must be at least 0"):
        explore.score_bound(PLAIN, ridge=-1)


def test_values_met_at_trained_distances_are_read_at_every_one():
    found = explore.score_bands(PLAIN)
    cosines = np.array([[math.cos(s * 10_000.0 ** (-n / 64)) for n in range(64)] for s in range(8192)])
    bands = {"all 64 pairs": (0, 64), "16 fastest pairs": (0, 16), "32 pairs between": (16, 48)}
    bands |= {"16 slowest pairs": (48, 64)}
    pictures: Any = found.pictures
    assert [each.title.removeprefix("The score of ").removeprefix("the ") for each in pictures] == [*bands]
    for picture, (name, (first, last)) in zip(pictures, bands.items(), strict=True):
        values = cosines[:, first:last].sum(1)
        met, past = values[:4096], values[4096:]
        assert picture.outlined[:2] == pytest.approx((met.min(), met.max()), abs=1e-9)
        assert found[f"{name}: least past it"] == pytest.approx(past.min(), abs=1e-9)
        assert found[f"{name}: distances below"] == (past < met.min()).sum()
        assert min(point.y for point in picture.ranges[0]) == pytest.approx(values.min(), abs=1e-9)
        assert max(point.y for point in picture.ranges[0]) == pytest.approx(values.max(), abs=1e-9)
        # The mean of 257 distances, and none where fewer are around.
        at = found["distance"].astype(int)
        inside = (at >= 128) & (at < 8192 - 128)
        line = {point.x: point.y for point in picture.panel.curves[0].points if math.isfinite(point.y)}
        assert [*line] == at[inside].tolist()
        assert [*line.values()] == pytest.approx([values[n - 128 : n + 129].mean() for n in at[inside]], abs=1e-9)
    below = {name: int(found[f"{name}: distances below"]) for name in bands}
    assert [*below.values()] == [141, 2, 0, 4096]
    assert [float(found[f"{name}: least in training"]) for name in bands] == pytest.approx(
        [-8.363, -9.318, -9.744, 0.696], abs=5e-4
    )
    assert float(found["all 64 pairs: least past it"]) == pytest.approx(-13.587, abs=5e-4)
    assert float(found["16 fastest pairs: least past it"]) == pytest.approx(-10.173, abs=5e-4)
    assert "and to -1.3 past it" in found.says
    assert found.title.endswith(
        "past it the 16 slowest pairs stay below every value met in training; the sum dips below at 141 of 4,096 "
        "distances"
    )
    assert "mean of the 257 distances around" in found.settings
    # How many distances are drawn changes nothing of what was met.
    assert explore.score_bands(PLAIN, points=9).says == found.says
    # The slowest pair is past its trough, and comes back.
    calm = explore.score_bands(mp.Rope(16), trained=12_000, length=13_000, band=1)
    assert calm.title == "Scores do not jump at the trained length"


def test_the_mean_over_many_queries_is_read_from_two():
    q, k = drawn(9, 16)
    found = explore.before_after(q, k, before=mp.Rope(16), after=mp.Xpos(16), trained=50, length=120, points=120)
    for when, rope in (("before", mp.Rope(16)), ("after", mp.Xpos(16))):
        scheme = mp.Scheme(rope, mp.Scale(1.0), mp.causal)
        wanted = scheme.curve(q, k, torch.arange(120), 120).mean(0).numpy()
        assert np.allclose(found[f"all 8 pairs, {when}"], wanted, rtol=0, atol=1e-12)
