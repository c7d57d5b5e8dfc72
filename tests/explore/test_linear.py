"""The rotated denominator of linear attention, against its sums, one pair at a time."""

from __future__ import annotations

import math
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore


def feature(x: float) -> float:
    return x + 1 if x > 0 else math.exp(x)


def test_the_ratio_is_that_of_the_sums():
    found = explore.negative_denominators({"a": mp.Rope(4, theta=50.0)}, tokens=9, draws=2, seed=7)
    drawn = torch.Generator().manual_seed(7)
    q, k = (torch.randn(1, 2, 9, 4, generator=drawn, dtype=torch.float64)[0].tolist() for _ in range(2))
    for draw in range(2):
        for i in range(9):
            rotated = plain = 0.0
            for j in range(i + 1):
                a, b = ([feature(each) for each in x[draw][n]] for x, n in ((q, i), (k, j)))
                plain += sum(one * two for one, two in zip(a, b, strict=True))
                for n in range(2):
                    angle = (i - j) * 50.0 ** (-2 * n / 4)
                    dot, cross = a[n] * b[n] + a[n + 2] * b[n + 2], a[n] * b[n + 2] - a[n + 2] * b[n]
                    rotated += math.cos(angle) * dot + math.sin(angle) * cross
            assert found["a, ratio"][draw, i] == pytest.approx(rotated / plain, abs=1e-12)


def test_rotated_denominators_become_negative_and_usual_heads_take_long():
    found = explore.negative_denominators()
    narrow, usual, small = (found[f"{name}, ratio"] for name in ("8 channels", "64 channels", "64 channels, base 100"))
    assert (narrow < 0).any()
    assert (small < 0).mean() > 0.3
    assert usual.min() > 0.1
    assert (found["8 channels, not positive"] == (narrow <= 0).mean(0)).all()
    assert np.allclose(narrow[:, 0], 1)
    ElementTree.fromstring(found.svg())


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="at least one by its name"):
        explore.negative_denominators({})
    with pytest.raises(ValueError, match="draws must be at least 1"):
        explore.negative_denominators(draws=0)


def test_the_share_of_the_small_base_falls_where_its_slowest_pair_comes_around():
    found = explore.negative_denominators()
    step = 100.0 ** (-62 / 64)
    mean = np.cumsum(np.cos(step * np.arange(600))) / np.arange(1, 601)
    assert f"turns once in {math.tau / step:.0f} tokens" in found.settings
    least = int(re.findall(r"is least at (\d+)", found.settings)[0])
    assert abs(least - int(mean.argmin())) <= 1
    assert "base 100" not in explore.negative_denominators({"a": mp.Rope(8)}, tokens=20, draws=2).settings


def test_what_is_not_positive_is_shaded():
    found = explore.negative_denominators()
    picture: Any = found.pictures[0]
    assert picture.shaded == (picture.limits[0], 0.0, "not positive")
    assert picture.limits[0] == min(found[f"{name}, ratio"][0].min() for name in NAMES)
    assert list(picture.lines) == ["8 channels, base 10,000", "64 channels, base 10,000", "64 channels, base 100"]
    assert found.title == "Linear attention: its denominator can fall to 0 and below if it is rotated too"
    calm = explore.negative_denominators({"a": mp.Rope(64)}, tokens=20, draws=2)
    assert "fall" not in calm.title


NAMES = "8 channels", "64 channels", "64 channels, base 100"
