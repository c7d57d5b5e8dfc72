"""Angles that training met, wavelengths, and positions as digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import milepost as mp
from milepost import explore

PLAIN = mp.Rope(128)


@pytest.mark.parametrize(
    ("stretch", "fresh", "widest"),
    [
        (None, 18, 0.87),
        (mp.Ntk(8), 17, 0.35),
        (mp.Ntk(16), 2, 0.05),
        (mp.Interpolate(8), 0, 0.0),
        (mp.Yarn(8, trained=4096), 0, 0.0),
        (mp.Llama3(8, 4096), 0, 0.0),
    ],
)
def test_which_angles_are_new_at_eight_times_the_length(stretch: Any, fresh: int, widest: float):
    found = explore.angles_seen(PLAIN, trained=4096, length=32_768, stretched=mp.Rope(128, stretch=stretch))
    assert (found["turns in training"] >= 1).sum() == 46
    assert (found["unseen arc"] > 0).sum() == fresh
    assert found["unseen arc"].max() == pytest.approx(widest, abs=0.005)


def test_unseen_arcs_are_those_that_no_position_of_training_had():
    found = explore.angles_seen(mp.Rope(16, theta=100.0), trained=50, length=200)
    for n in range(8):
        step = 100.0 ** (-2 * n / 16)
        before, after = ((step * np.linspace(0, length, 200_001)) % math.tau for length in (50, 200))
        bins = np.linspace(0, math.tau, 2001)
        new = (np.histogram(after, bins)[0] > 0) & (np.histogram(before, bins)[0] == 0)
        assert found["unseen arc"][n] == pytest.approx(new.mean(), abs=2e-3)


def test_wavelengths_of_ntk_keep_the_first_and_stretch_the_last_exactly():
    ropes = {"RoPE": PLAIN, "NTK": mp.Rope(128, stretch=mp.Ntk(8))}
    found = explore.wavelengths(ropes, trained=4096, length=32_768)
    ratio = found["RoPE"] / found["NTK"]
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(1 / 8, rel=1e-14)
    assert found["RoPE"][0] == pytest.approx(math.tau)


def test_the_title_counts_the_pairs_that_meet_new_angles():
    found = explore.angles_seen(mp.Rope(128), trained=4096, length=32_768)
    new = sum(1 for n in range(64) if 4096 * 10000.0 ** (-n / 64) < math.tau)
    assert found.title == f"{new} of 64 pairs meet angles that training never had"
    none = explore.angles_seen(mp.Rope(128), trained=4096, length=4096)
    assert none.title == "None of 64 pairs meets angles that training never had"
