"""The padding leak, drawn: against a convolution written as sums."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from milepost import explore


def test_zero_padding_is_felt_one_position_further_with_every_layer():
    found = explore.padding_leak_map()
    assert found["positions that feel a border"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    for n in range(1, 9):
        row = found["leak"][n - 1]
        assert (row[n:-n] == 0).all()
        assert (row[:n] > 0).all()
        assert (row[-n:] > 0).all()
    wide = explore.padding_leak_map(depth=3, kernel=5)
    assert wide["positions that feel a border"].tolist() == [2, 4, 6]


def test_no_other_padding_tells_anything():
    found = explore.padding_leak_map()
    for name in ("circular", "reflect", "replicate"):
        assert np.abs(found[f"padding {name}"]).max() < 1e-12
    none = found["padding none"]
    assert np.isnan(none[:8]).all()
    assert np.isnan(none[-8:]).all()
    assert np.abs(none[8:-8]).max() < 1e-12


def test_one_layer_is_the_convolution_of_ones():
    found = explore.padding_leak_map(9, depth=1, channels=2, seed=3)
    generator = torch.Generator().manual_seed(3)
    weight = (torch.randn(2, 1, 3, generator=generator, dtype=torch.float64) / 3).tolist()
    bias = (torch.randn(2, generator=generator, dtype=torch.float64) / 3).tolist()
    out = [
        [
            math.tanh(bias[c] + sum(weight[c][0][n] for n in range(3) if 0 <= position + n - 1 < 9))
            for c in range(2)
        ]
        for position in range(9)
    ]  # fmt: skip
    assert found["leak"][0] == pytest.approx([math.dist(each, out[4]) for each in out], abs=1e-12)


def test_the_picture_and_what_is_refused():
    ElementTree.fromstring(explore.padding_leak_map().svg())
    with pytest.raises(ValueError, match="depth must be at least 1"):
        explore.padding_leak_map(depth=0)
    with pytest.raises(ValueError, match="every place would see a border"):
        explore.padding_leak_map(8, depth=4)


def test_paddings_that_feel_nothing_are_one_line_over_all_positions():
    found = explore.padding_leak_map()
    picture = found.pictures[1]
    curves = {curve.name: curve for curve in picture.panel.curves}  # type: ignore[attr-defined]
    assert list(curves) == ["zeros", "all others"]
    # Without padding there is output in the middle alone; the line is that of all of them together.
    assert [point.x for point in curves["all others"].points] == list(range(41))
    assert max(point.y for point in curves["all others"].points) <= 1e-12
    assert "none, which leaves no output at the ends" in found.settings
