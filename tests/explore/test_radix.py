"""Positions as numbers: the places of a rotation, and how a stretch writes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_a_larger_base_is_ntk_and_a_mixed_one_is_ntk_mixed(factor: float):
    found = explore.odometer(mp.Rope(128), trained=4096, factor=factor)
    base, last, every = 10000.0 ** (2 / 128), factor ** (2 / 126), factor ** (2 / 128)
    assert found["base, larger base"] == pytest.approx(base * last, rel=1e-15)
    for n in range(64):
        assert found["step, direct"][n] == pytest.approx(base**-n, rel=1e-14)
        assert found["step, interpolated"][n] == pytest.approx(base**-n / factor, rel=1e-14)
        assert found["step, larger base"][n] == pytest.approx((base * last) ** -n, abs=2.3e-16)
        # Every place is slowed, the first among them: λ^(n + 1).
        assert found["step, mixed"][n] == pytest.approx(base**-n * every ** -(n + 1), abs=2.3e-16)


def test_digits_are_those_of_the_position_in_its_base():
    found = explore.odometer(mp.Rope(8), positions=(0, 7, 999, 1749, 7999))
    for row, position in enumerate(found["position"].astype(int)):
        for name, number, base in (("direct", position, 10), ("larger base", position, 20)):
            written = [number // base**n % base for n in range(4)]
            assert found[f"digit, {name}"][row].tolist() == written
        squeezed = [position / 8 % 10, *(position // 8 // 10**n % 10 for n in (1, 2, 3))]
        assert found["digit, interpolated"][row].tolist() == squeezed
        for n in range(4):
            assert found["angle, direct"][row, n] == pytest.approx(position / 10**n % math.tau, abs=1e-9)


def test_past_the_trained_length_only_the_direct_form_meets_new_angles_in_its_first_place():
    found = explore.odometer(mp.Rope(8))
    assert found["largest digit in training"].tolist() == [9, 9, 9, 0]
    assert found["digit, direct"][:, 3].tolist() == [0, 0, 1, 4, 7]
    assert (found["digit, larger base"][:, 3] == 0).all()
    new = {name: np.flatnonzero(found[f"unseen arc, {name}"]).tolist() for name in ("direct", "interpolated", "mixed")}
    assert new == {"direct": [3], "interpolated": [], "mixed": []}
    assert not found["unseen arc, larger base"].any()


def test_what_is_new_agrees_with_the_angles_seen():
    ropes = {"direct": mp.Rope(128), "larger base": mp.Rope(128, stretch=mp.Ntk(8))}
    found = explore.odometer(mp.Rope(128), trained=4096)
    for name, rope in ropes.items():
        other = explore.angles_seen(mp.Rope(128), trained=4096, length=32_768, stretched=rope)["unseen arc"]
        np.testing.assert_allclose(found[f"unseen arc, {name}"], other, atol=1e-12)


def test_the_picture_marks_digits_and_angles_that_are_new():
    direct, interpolated, larger, mixed, _, key = explore.odometer(mp.Rope(8)).pictures
    assert direct.larger()[:, 0].tolist() == [False, False, True, True, True]
    assert direct.unseen()[:, 0].tolist() == [False, False, True, True, True]
    assert not direct.larger()[:, 1:].any()
    assert not interpolated.larger().any()
    assert larger.larger().any()
    assert not larger.unseen().any()
    assert not mixed.unseen().any()
    # Stripes, which warn, are for new angles alone; a digit that is larger at a known angle is in a box.
    for each, striped in ((direct, 3), (interpolated, 0), (larger, 0), (mixed, 0)):
        drawing = str(each.body())
        assert drawing.count('fill="url(#larger)"') == striped
        assert drawing.count("<rect") == each.larger().sum()
    # The key has one of each sign, and 1.749 and 7.999 − τ, which look alike, are told of.
    assert str(key.body()).count('fill="url(#larger)"') == 1
    assert str(key.body()).count("<rect") == 2
    assert "digits six apart, as 1 and 7, nearly share a hand" in str(direct.body())
    assert explore.odometer(mp.Rope(128)).pictures[0].note == ""
    # The columns of the dials are the pairs of the chart.
    assert direct.pairs == (3, 2, 1, 0)


def test_a_rotation_of_more_than_one_base_is_refused():
    for given in (mp.Rope(8, stretch=mp.Ntk(8)), mp.Rope, mp.Xpos(8)):
        with pytest.raises(TypeError, match="give a Rope without a stretch"):
            explore.odometer(given)
    with pytest.raises(ValueError, match=r"odometer\(factor=1"):
        explore.odometer(mp.Rope(8), factor=1)
    with pytest.raises(TypeError, match="positions must be an integer"):
        explore.odometer(mp.Rope(8), positions=(1.5,))


def test_other_stretches_are_written_in_the_base_of_the_rotation():
    yarn = mp.Yarn(8, trained=1000)
    found = explore.odometer(mp.Rope(8), positions=(0, 999, 7999), more={"YaRN": yarn})
    step = mp.Rope(8, stretch=yarn).angles(torch.ones(1, dtype=torch.float64))[0].numpy()
    np.testing.assert_array_equal(found["step, YaRN"], step)
    for row, position in enumerate((0, 999, 7999)):
        for n in range(4):
            digit = position * step[n] % 10 if n == 0 else math.floor(position * step[n] + 1e-9) % 10
            assert found["digit, YaRN"][row, n] == pytest.approx(digit, abs=1e-9)
    with pytest.raises(ValueError, match="'direct' is the name of a form"):
        explore.odometer(mp.Rope(8), more={"direct": yarn})
