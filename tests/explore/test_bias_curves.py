"""What methods add to scores by distance, and how scores fade with it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore


def test_sandwich_has_its_published_sums():
    # λ_h = H/(8h) is 1/8 in the last of 8 heads, and 1 in the first.
    for start, sums in ((0, [64, 62.0937, 42.82, 30.5435, 10.1777]), (1, [64, 62.5534, 44.6591, 30.6811, 10.6104])):
        part = mp.Sandwich(8, 128, start=start)
        found = explore.bias_curves({"it": part}, length=1001, points=1001, head=0)
        assert found["it"][[0, 1, 10, 100, 1000]] == pytest.approx(sums, abs=5e-5)
    port = {"it": mp.Sandwich(8, 64, start=1, zeroed=True)}
    wanted = np.array([0, -0.62347, -9.1093, -13.9877, -22.64141])
    for head, factor in ((0, 1.0), (7, 1 / 8)):
        found = explore.bias_curves(port, length=1001, points=1001, head=head)
        assert found["it"][[0, 1, 10, 100, 1000]] == pytest.approx(wanted * factor, abs=5e-5)


@pytest.mark.parametrize(
    ("query", "distance", "share"),
    [
        (1, 1, 0.024098),
        (100, 100, 0.606282),
        (511, 511, 0.999515),
        (512, 512, 1.0),
        (2000, 1, 0.017972),
        (2000, 1000, 0.870235),
    ],
)
def test_fire_reads_the_published_shares_of_the_querys_position(query: int, distance: int, share: float):
    found = explore.bias_curves(length=query + 1, points=query + 1)
    assert found["FIRE"][distance] == pytest.approx(-8 * share, abs=1e-5)


def test_the_others_are_their_formulas():
    found = explore.bias_curves(length=1500, points=1500)
    at = found["distance"]
    assert np.allclose(found["ALiBi"], -at / 256, rtol=1e-12, atol=0)
    assert np.allclose(found["KERPLE, log"], [-math.log(1 + 0.5 * each) for each in at], rtol=1e-6)
    steps, waves = [10_000 ** (-2 * n / 64) for n in range(32)], []
    for s in at:
        fades = [((2 * n / 64 + 0.4) / 1.4) ** (s / 512) for n in range(32)]
        waves.append(sum(math.cos(s * step) * fade for step, fade in zip(steps, fades, strict=True)) / 32)
    assert np.allclose(found["xPos"], waves, rtol=0, atol=1e-10)
    assert np.allclose(found["RoPE"], [sum(math.cos(s * step) for step in steps) / 32 for s in at], rtol=0, atol=1e-10)


def test_xpos_fades_what_rope_leaves_and_fire_stays_within_bounds():
    found = explore.bias_curves(length=20_000)
    far = found["distance"] > 10_000
    assert np.abs(found["xPos"][far]).max() < 0.5 * np.abs(found["RoPE"][far]).max()
    assert found["FIRE"].min() >= -8
    assert found["ALiBi"][-1] < 5 * found["KERPLE, log"][-1]


def test_a_learned_part_is_drawn_as_mp_scores_has_it():
    torch.manual_seed(0)
    part = mp.T5Bias(4)
    found = explore.bias_curves({"T5": part}, length=200, points=200, heads=4, head=2)
    nothing = torch.zeros(1, 4, 200, 2, dtype=torch.float64)
    wanted = mp.scores(nothing, nothing, mp.Scheme(part, mp.causal), rows=[199])[0, 2, 0].flip(0)
    assert np.allclose(found["T5"], wanted.detach().numpy(), rtol=0, atol=1e-12)
    assert [each.title for each in found.pictures] == ["What head 2 of 4 adds to a score"]


def test_what_does_neither_is_refused():
    with pytest.raises(
        TypeError, match=re.escape("bias_curves: LogN(512) neither rotates nor says that it adds a number")
    ):
        explore.bias_curves({"log-n": mp.LogN(512)})
    with pytest.raises(ValueError, match=re.escape("bias_curves(head=8): there are 8 heads, 0 to 7")):
        explore.bias_curves(head=8)


def test_a_temperature_is_said_and_the_share_at_distance_0_is_1():
    rope = mp.Rope(64, stretch=mp.Yarn(8, trained=512))
    found = explore.bias_curves({"YaRN": rope, "RoPE": mp.Rope(64)}, length=1024, points=1024)
    temperature = (0.1 * math.log(8) + 1) ** 2
    unit = torch.full((1, 64), 1 / 8, dtype=torch.float64)
    scores = mp.Scheme(rope, mp.Scale(1.0), mp.causal).curve(unit, unit, torch.arange(1024), 1024)[0]
    assert found["YaRN"][0] == found["RoPE"][0] == pytest.approx(1, abs=1e-12)
    assert np.allclose(found["YaRN"] * temperature, scores.numpy(), rtol=0, atol=1e-12)
    assert "YaRN makes every score 1.46 times as large, which is divided out" in found.says
    assert "RoPE makes" not in found.says


def test_what_swings_is_drawn_as_a_running_mean_and_its_range_and_the_mildest_head_is_named():
    found = explore.bias_curves()
    added, shares = found.pictures
    ranges = dict(zip((curve.name for curve in added.panel.curves), added.ranges, strict=True))  # type: ignore[attr-defined]
    assert [name for name, each in ranges.items() if each] == ["Sandwich, 128 channels"]
    line = next(curve for curve in added.panel.curves if curve.name.startswith("Sandwich"))  # type: ignore[attr-defined]
    # The mean of the 513 distances around, between those that are drawn too.
    middle = int(line.points[200].x)
    every = explore.bias_curves(points=8192)["Sandwich"][middle - 256 : middle + 257]
    assert line.points[200].y == pytest.approx(every.mean())
    assert "Sandwich: mean of the 513 distances around, their range pale" in found.settings
    assert "ALiBi's slope is 1/2 in head 0, the steepest, and 1/256 in the head drawn" in found.settings
    assert list(shares.lines) == ["RoPE", "xPos"]  # type: ignore[attr-defined]
    assert "FIRE, ends at −8 at every length above 512" in ranges
    for length in (513, 8192):
        assert explore.bias_curves(length=length)["FIRE"][-1] == pytest.approx(-8, abs=1e-5)
    assert explore.bias_curves(length=100)["FIRE"][-1] > -7
    assert "FIRE: −8·ln(1 + 0.1n)/ln(1 + 0.1·8,191)" in found.settings
    for n in (1, 100, 8191):
        at = int(np.abs(found["distance"] - n).argmin())
        exact = -8 * math.log(1 + 0.1 * found["distance"][at]) / math.log(1 + 0.1 * 8191)
        assert found["FIRE"][at] == pytest.approx(exact, abs=0.02)
