"""What falls with distance: dot products of positions, the bound on a rotated score, and scores of ones."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore

BOUND = {0: 32.5, 1: 31.538, 10: 17.954, 50: 12.629, 100: 10.227, 200: 7.245, 500: 6.19, 1000: 4.471, 4096: 4.883}
ONES = {0: 64, 10: 42.82, 100: 30.54, 500: 19.10, 2000: 1.86, 4096: -3.38, 8192: 1.59}


def test_the_bound_of_rope_at_nine_distances():
    found = explore.decay_bound(mp.Rope(128))["bound, Rope(128)"]
    assert {at: round(float(found[at]), 3) for at in BOUND} == BOUND


def test_scores_of_ones_at_seven_distances():
    found = explore.decay_bound(mp.Rope(128), schedules=(), distances=sorted(ONES))["ones, Rope(128)"]
    assert found.round(2).tolist() == list(ONES.values())


def test_a_linear_schedule_comes_back():
    found = explore.decay_bound(mp.Rope(128))
    share = found["ones, linear"] / 64
    assert share[128:].argmax() + 128 == 3217
    assert share[3217] == pytest.approx(1.0, abs=2e-5)
    assert "linear 1.00 at 3,217" in found.says
    # It repeats every πd tokens, of which 3217 is nearly a whole multiple.
    assert 3217 / (128 * math.pi) == pytest.approx(8, abs=1e-4)


@pytest.mark.parametrize(
    ("schedule", "step"),
    [
        (("exponential",), lambda t: 300.0**-t),
        (("linear",), lambda t: 1 - t),
        (("power",), lambda t: (1 - t) ** 2),
        ({"own": lambda t: math.cos(t)}, math.cos),
    ],
)
def test_bound_and_ones_are_those_of_the_formula(schedule: Any, step: Any):
    found = explore.decay_bound(mp.Rope(10, theta=300.0), schedules=schedule, distances=(0, 3, 17, 90))
    name = next(iter(schedule))
    for row, apart in enumerate((0, 3, 17, 90)):
        turned = [cmath.exp(1j * apart * step(2 * n / 10)) for n in range(5)]
        assert found[f"bound, {name}"][row] == pytest.approx(sum(abs(sum(turned[:j])) for j in range(1, 6)) / 5)
        assert found[f"ones, {name}"][row] == pytest.approx(sum(each.real for each in turned))


def test_the_pictures_are_relative_and_show_every_peak():
    found = explore.decay_bound(mp.Rope(128))
    bound, ones = found.pictures
    assert bound.title == "Relative upper bound, mean of |Sⱼ|"
    assert ones.title == "Score of vectors of ones, as a share of d/2"
    for picture, name, size in ((bound, "bound", 1.0), (ones, "ones", 64.0)):
        for shown, own in zip(picture.lines, ("Rope(128)", "linear", "power"), strict=True):  # type: ignore[attr-defined]
            values = found[f"{name}, {own}"] / size
            runs = [values[start : start + 26] for start in range(0, 4097, 26)]
            low, high = picture.ranges[shown]  # type: ignore[attr-defined]
            # The line is the largest, which a mean would hide.
            assert picture.lines[shown].tolist() == high.tolist()  # type: ignore[attr-defined]
            assert low.tolist() == [each.min() for each in runs]
            assert high.tolist() == [each.max() for each in runs]
    # A share of d/2 is at most 1, and 1 at distance 0.
    assert ones.limits[1] == 1  # type: ignore[attr-defined]
    # The tops of ones / (d/2): 0.997 at 402, 0.959 at 1,608, 1.000 at 3,217.
    assert found.title.endswith(
        "past 128 tokens vectors of ones come back to 45 % under RoPE, and to 96 % or more every 402 tokens under "
        "'linear' frequencies"
    )
    share = found["ones, linear"] / 64
    tops = [n for n in range(1, 4096) if share[n] > 0.9 and share[n] >= max(share[n - 1], share[n + 1])]
    assert [round(each / 402, 2) for each in tops] == list(range(1, 11))
    assert round(float(share[tops].min()), 3) == 0.959
    once = explore.decay_bound(mp.Rope(128), schedules=("power",))
    assert "come back to 45 % under RoPE" in once.title
    # The bound is a product, and · separates facts: it is on a line of its own.
    assert found.settings.splitlines()[-1].startswith("score ≤ d/2 × (mean of |Sⱼ|) × ")


def test_the_bound_holds_for_scores_of_attention():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    distances = torch.arange(0, 200)
    scheme = mp.Scheme(mp.Rope(16, pairs="neighbours"), mp.Scale(1.0))
    scores = scheme.curve(q[0], k[0], distances, 200)[0]
    h = torch.view_as_complex(q.view(8, 2)) * torch.view_as_complex(k.view(8, 2)).conj()
    change = (torch.cat([h[1:], h.new_zeros(1)]) - h).abs().max()
    bound = explore.decay_bound(mp.Rope(16), distances=distances.tolist())["bound, Rope(16)"] * 8 * float(change)
    assert (scores.abs().numpy() <= bound + 1e-9).all()
    assert (scores.abs().numpy() > bound / 3).any()


def test_products_of_positions_fall_and_those_of_independent_vectors_do_not():
    found = explore.dot_products(mp.Sinusoidal(128), draws=1024)
    at = {int(each): n for n, each in enumerate(found["distance"])}
    rows = [at[0], at[10], at[100]]
    assert found["p₀ · p_k"][rows].round(2).tolist() == [64, 42.82, 30.54]
    # In the mean |q|² = d, and each pair of channels keeps cos(k·θ) of its part.
    expected = [2 * sum(math.cos(k * 10000 ** (-n / 64)) for n in range(64)) for k in at]
    assert np.abs(found["RoPE: q = k, mean"] - expected).max() < 4 * 16 / math.sqrt(1024)
    assert found["RoPE: q = k, mean"][at[0]] == pytest.approx(128, abs=2)
    assert found["RoPE: q = k, mean"][at[1000]] == pytest.approx(20.4, abs=1)
    assert np.abs(found["RoPE: independent, rms"] - math.sqrt(128)).max() < 1.2
    assert np.abs(found["RoPE: independent, mean"]).max() < 4 * math.sqrt(128 / 1024)


def test_draws_are_turned_and_added_as_the_formulas_have_it():
    distances = (0, 3, 50)
    found = explore.dot_products(mp.Sinusoidal(8), rope=mp.Rope(8, theta=50.0), distances=distances, draws=5, seed=7)
    q, k = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).tolist()
    waves = [[f(at * 10000.0 ** (-n / 4)) for n in range(4) for f in (math.sin, math.cos)] for at in distances]
    for row, apart in enumerate(distances):

        def score(a: list[float], b: list[float], apart: int = apart) -> float:
            pairs = ((complex(a[n], a[n + 4]), complex(b[n], b[n + 4]), 50.0 ** (-n / 4)) for n in range(4))
            return sum((x * y.conjugate() * cmath.exp(1j * apart * step)).real for x, y, step in pairs)

        def added(a: list[float], b: list[float], row: int = row) -> float:
            return sum((x + p) * (y + r) for x, y, p, r in zip(a, b, waves[0], waves[row], strict=True))

        alike, others = [score(each, each) for each in q], [score(a, b) for a, b in zip(q, k, strict=True)]
        assert found["RoPE: q = k, mean"][row] == pytest.approx(sum(alike) / 5)
        assert found["RoPE: independent, mean"][row] == pytest.approx(sum(others) / 5)
        assert found["RoPE: independent, rms"][row] == pytest.approx(math.sqrt(sum(x * x for x in others) / 5))
        assert found["RoPE: independent, one draw"][row] == pytest.approx(others[0])
        assert found["added: equal tokens, mean"][row] == pytest.approx(sum(added(each, each) for each in q) / 5)
        assert found["added: independent, one draw"][row] == pytest.approx(added(q[0], k[0]))


def test_the_largest_score_is_a_share_of_all_pairs_wherever_the_distances_start():
    whole = explore.decay_bound(mp.Rope(128), distances=range(4097)).says
    part = explore.decay_bound(mp.Rope(128), distances=range(129, 4097)).says
    assert "linear 1.00 at 3,217" in whole
    assert whole.partition(" Largest")[2] == part.partition(" Largest")[2]


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="schedules must be one of 'exponential', 'linear', 'power'"):
        explore.decay_bound(mp.Rope(8), schedules=("quadratic",))
    with pytest.raises(TypeError, match="a schedule is a function of t"):
        explore.decay_bound(mp.Rope(8), schedules={"own": 3})
    with pytest.raises(TypeError, match="a rotation of fixed angles"):
        explore.decay_bound(mp.Rope(8, stretch=mp.DynamicNtk(64)))
    with pytest.raises(ValueError, match="each larger than the one before"):
        explore.decay_bound(mp.Rope(8), distances=(3, 1))
    with pytest.raises(TypeError, match="such as Sinusoidal"):
        explore.dot_products(mp.Rope(8))
    with pytest.raises(ValueError, match="give a rotation of 8 channels"):
        explore.dot_products(mp.Sinusoidal(8), rope=mp.Rope(64))
