"""Angles in low precision, against angles worked out with sixty digits."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore
from tests.exact import exact_angle


def apart(one: float, two: float) -> float:
    return abs((one - two + math.pi) % math.tau - math.pi)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_errors_are_those_against_sixty_digits(dtype: torch.dtype):
    found = explore.phase_errors(mp.Rope(8), length=256, dtypes=(dtype,))
    name = str(dtype).removeprefix("torch.")
    assert found["from position"].tolist() == [2, 4, 8, 16, 32, 64, 128]
    for n, start in enumerate((2, 4, 8, 16, 32, 64, 128)):
        worst = near = 0.0
        for position in range(start, 2 * start):
            for pair in range(4):
                exact = exact_angle(position, pair, 8)
                step = torch.tensor(10000.0 ** (-2 * pair / 8), dtype=torch.float64).to(dtype)
                angle = float(torch.tensor(position, dtype=torch.float64).to(dtype) * step)
                cos, sin = (float(torch.tensor(f(exact), dtype=torch.float64).to(dtype)) for f in (math.cos, math.sin))
                worst, near = max(worst, apart(angle, exact)), max(near, apart(math.atan2(sin, cos), exact))
        assert found[f"angles in {name}"][n] == pytest.approx(worst, abs=1e-12)
        assert found[f"cos, sin in {name}"][n] == pytest.approx(near, abs=1e-10)


def test_bfloat16_loses_a_radian_where_odd_numbers_end_and_rounded_cosines_lose_nothing():
    found = explore.phase_errors(length=131_072)
    at = found["from position"]
    bf16 = found["angles in bfloat16"]
    assert bf16[at == 256] >= 1
    assert (bf16[at < 256] < 1).all()
    assert (bf16[at >= 1024] > 3).all()
    assert np.isnan(found["angles in float16"][at >= 65_536]).all()
    assert found["angles in float32"][-1] < 0.02
    for name, digits in (("bfloat16", 8), ("float16", 11), ("float32", 24)):
        assert found[f"cos, sin in {name}"].max() < 2.0**-digits
    assert "a whole radian for angles in bfloat16 between 256 and 512, " in found.says


def test_a_curve_that_ends_early_is_named_where_it_ends():
    drawing = ElementTree.fromstring(explore.phase_errors().svg())
    rules = {each.text: float(each.get("y", "0")) for each in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert abs(rules["angles in float16"] - rules["angles in bfloat16"]) < 30
    uses = [float(each.get("y", "0")) for each in drawing.iter("{http://www.w3.org/2000/svg}use")]
    assert max(uses) < 275


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="length must be at least 4"):
        explore.phase_errors(length=2)
    with pytest.raises(ValueError, match="not one of bfloat16"):
        explore.phase_errors(dtypes=(torch.int32,))
    with pytest.raises(ValueError, match="not the position times a frequency"):
        explore.phase_errors(mp.Rope(8, stretch=mp.DynamicNtk(16)))
