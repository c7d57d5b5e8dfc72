"""ALiBi: its bias, the weight it leaves, and how far each head sees."""

from __future__ import annotations

import math

import numpy as np
import pytest

import milepost as mp
from milepost import explore


def test_the_field_of_view_is_ln_100_over_the_slope():
    found = explore.alibi_view(mp.Alibi(8))
    for h in range(8):
        slope = 2.0 ** -(h + 1)
        assert found["slope, ALiBi"][h] == slope
        assert found["field of view, ALiBi"][h] == pytest.approx(math.log(100) / slope, rel=1e-15)
        assert found["field of view, AlibiInterpolate(4)"][h] == pytest.approx(4 * math.log(100) / slope, rel=1e-15)


def test_ntk_keeps_the_steepest_head_and_flattens_the_last_by_the_factor():
    found = explore.alibi_view(mp.Alibi(8), factor=4)
    printed = [0.5, 0.205084, 0.084119, 0.034503, 0.014152, 0.005805, 0.002381, 0.000977]
    assert found["slope, AlibiNtk(4)"] == pytest.approx(printed, abs=5e-7)
    for h in range(8):
        assert found["slope, AlibiNtk(4)"][h] == pytest.approx(2.0 ** -(h + 1) * 4 ** (-h / 7), rel=1e-14)
    widened = found["field of view, AlibiNtk(4)"] / found["field of view, ALiBi"]
    assert widened[0] == 1
    assert widened[-1] == pytest.approx(4, rel=1e-15)


def test_twelve_heads_have_the_slopes_of_the_authors_and_are_drawn_by_rank():
    found = explore.alibi_view(mp.Alibi(12), factor=4)
    slopes = [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]
    assert found["slope, ALiBi"] == pytest.approx(slopes, rel=1e-14)
    for rank, head in enumerate(sorted(range(12), key=lambda n: -slopes[n])):
        assert found["slope, AlibiNtk(4)"][head] == pytest.approx(slopes[head] * 4 ** (-rank / 11), rel=1e-14)
    drawn = [[point.y for point in curve.points] for curve in found.pictures[4].panel.curves]
    assert all(each == sorted(each) for each in drawn)


def test_bias_and_weights_are_those_of_the_formula():
    found = explore.alibi_view(mp.Alibi(4), length=10, head=2)
    slope = 2.0 ** (-8 * 3 / 4)
    for i in range(10):
        for j in range(10):
            assert found["bias, head 2"][i, j] == (-slope * (i - j) if j <= i else -math.inf)
    for h in range(4):
        for at, distance in enumerate(found["distance"]):
            expected = math.exp(-(2.0 ** (-2 * (h + 1))) * distance)
            assert found["weight left, ALiBi"][h, at] == pytest.approx(expected, rel=1e-13)
            with_ntk = math.exp(-(2.0 ** (-2 * (h + 1))) * 4 ** (-h / 3) * distance)
            assert found["weight left, AlibiNtk(4)"][h, at] == pytest.approx(with_ntk, rel=1e-13)


@pytest.mark.parametrize("form", ["ALiBi", "AlibiInterpolate(4)", "AlibiNtk(4)"])
def test_what_is_left_at_the_field_of_view_is_what_was_asked_for(form: str):
    found = explore.alibi_view(mp.Alibi(6), left=0.05)
    for h in range(6):
        at = np.searchsorted(found["distance"], found[f"field of view, {form}"][h])
        assert found[f"weight left, {form}"][h, at - 1] > 0.05
        assert at == len(found["distance"]) or found[f"weight left, {form}"][h, at] <= 0.05


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(TypeError, match="give an Alibi without a stretch"):
        explore.alibi_view(mp.Alibi(8, stretch=mp.AlibiNtk(2)))
    with pytest.raises(ValueError, match="8 heads, 0 … 7"):
        explore.alibi_view(mp.Alibi(8), head=8)
    with pytest.raises(ValueError, match="left is a share of the weight"):
        explore.alibi_view(mp.Alibi(8), left=1.0)
    with pytest.raises(ValueError, match="factor must be greater than 0"):
        explore.alibi_view(mp.Alibi(8), factor=0)


def test_every_form_has_its_map_and_shares_are_in_percent():
    found = explore.alibi_view(mp.Alibi(4), left=0.05)
    assert [each.title for each in found.pictures[1:4]] == [
        f"Weight left by distance: {name}"
        for name in ("ALiBi", "interpolated by 4, every head × 4", "NTK by 4, × 1 to × 4")
    ]
    wanted = "ALiBi: interpolated, every head sees 4 times as far; by NTK the steepest 1, the flattest 4 times"
    assert found.title == wanted
    for each, name in zip(found.pictures[1:4], ("ALiBi", "AlibiInterpolate(4)", "AlibiNtk(4)"), strict=True):
        assert (each.values == found[f"weight left, {name}"]).all()  # type: ignore[attr-defined]
    assert found.says.startswith("5 % of a weight is left at")
