"""Rotations on a grid of patches, against sums of cosines over the pairs."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore


def interleaved(i: int) -> int:
    """Qwen3-VL, (24, 20, 20): i%3 == 1 and i < 60 is the row, i%3 == 2 and i < 60 the column, else the time."""
    return i % 3 if i < 60 else 0


def chunked(i: int) -> int:
    """Qwen2-VL, (16, 24, 24)."""
    return 0 if i < 16 else 1 if i < 40 else 2


def test_each_pair_has_the_coordinate_that_published_models_give_it():
    found = explore.patch_scores()
    assert found["coordinate of M-RoPE, blocks"].tolist() == [chunked(i) for i in range(64)]
    assert found["coordinate of M-RoPE, interleaved"].tolist() == [interleaved(i) for i in range(64)]
    assert found["coordinate of axial"].tolist() == [i // 32 for i in range(64)]
    assert found["coordinate of two parts"].tolist() == [i // 32 for i in range(64)]
    plain = [10000.0 ** (-2 * i / 128) for i in range(64)]
    for name in ("M-RoPE, blocks", "M-RoPE, interleaved"):
        np.testing.assert_allclose(found[f"step of {name}"], plain, rtol=1e-12)
    for name in ("axial", "two parts"):
        np.testing.assert_allclose(
            found[f"step of {name}"], [10000.0 ** (-2 * (i % 32) / 64) for i in range(64)], rtol=1e-12
        )


@pytest.mark.parametrize(("name", "axis_of"), [("M-RoPE, blocks", chunked), ("M-RoPE, interleaved", interleaved)])
def test_scores_of_equal_patches_are_the_mean_of_cosines(name: str, axis_of: Any):
    found = explore.patch_scores(rows=5, columns=7, at=(1, 4))
    for y in range(5):
        for x in range(7):
            away = (0, 1 - y, 4 - x)
            mean = sum(math.cos(away[axis_of(i)] * 10000.0 ** (-2 * i / 128)) for i in range(64)) / 64
            assert found[name][y, x] == pytest.approx(mean, abs=1e-12)


def test_contents_are_rotated_pair_by_pair():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(8, generator=generator, dtype=torch.float64) for _ in range(2))
    found = explore.patch_scores({"a": mp.AxialRope(8, (1, 3))}, rows=3, columns=4, at=(2, 1), q=q, k=k)
    for y in range(3):
        for x in range(4):
            total = 0.0
            for n in range(4):
                angle = (2 - y if n == 0 else 1 - x) * 10000.0 ** (-2 * n / 8)
                a, b, c, d = (float(each) for each in (q[n], q[n + 4], k[n], k[n + 4]))
                total += math.cos(angle) * (a * c + b * d) + math.sin(angle) * (a * d - b * c)
            assert found["a"][y, x] == pytest.approx(total / math.sqrt(8), abs=1e-12)


def test_sections_in_blocks_hardly_see_columns_and_dealt_out_ones_see_both_ways_alike():
    found = explore.patch_scores()
    blocks, dealt = found["M-RoPE, blocks"], found["M-RoPE, interleaved"]
    assert 1 - blocks[12, -1] < (1 - blocks[-1, 12]) / 100
    assert 0.5 < (1 - dealt[12, -1]) / (1 - dealt[-1, 12]) < 2
    assert np.abs(found["axial"] - found["two parts"]).max() < 1e-12
    assert found["axial"][12, 12] == pytest.approx(1)
    assert "0.964 down and 1.000 across for M-RoPE, blocks" in found.says
    ElementTree.fromstring(found.svg())


def test_bars_show_of_each_coordinate_its_pairs_and_how_fast_they_turn():
    found = explore.patch_scores()
    bars: Any = found.pictures[0]
    shown = {name: row[0].values[0] for name, row in zip(bars.rows, bars.tiles, strict=True)}
    assert list(shown)[:2] == ["axial: down, 32", "axial: across, 32"]
    for name, coordinates in (("axial", ("down", "across")), ("M-RoPE, interleaved", ("time", "down", "across"))):
        owner, step = found[f"coordinate of {name}"], found[f"step of {name}"]
        for which, coordinate in enumerate(coordinates):
            bar = next(values for row, values in shown.items() if row.startswith(f"{name}: {coordinate},"))
            assert np.array_equal(np.isfinite(bar), owner == which)
            np.testing.assert_allclose(10 ** bar[owner == which], step[owner == which])
    # Both ways of the axial one begin as fast, and across of the blocks has none but slow ones.
    assert shown["axial: down, 32"][0] == shown["axial: across, 32"][32] == bars.limits[1]
    assert np.nanmax(shown["M-RoPE, blocks: across, 24"]) < np.nanmin(shown["M-RoPE, blocks: time, 16"])


def test_axial_and_two_parts_pair_the_channels_that_the_picture_says():
    x = torch.zeros(1, 1, 1, 128)
    x[..., 0] = 1
    for rope, partner in ((mp.AxialRope(128, (32, 32), own=True), 64), (mp.TwoPartRope(128), 32)):
        turned = rope.turn(x, torch.tensor([[[1, 1]]]), "query")[0, 0, 0]
        assert turned.nonzero().flatten().tolist() == [0, partner]


@pytest.mark.parametrize(
    ("ropes", "given", "message"),
    [
        ({"RoPE": mp.Rope(8)}, {}, "RoPE is Rope.* reads 1 coordinates"),
        ({}, {}, "at least one by its name"),
        (None, {"at": (24, 0)}, "there are 24 rows and 24 columns"),
        (None, {"rows": 0}, "rows must be at least 1"),
        (None, {"q": torch.ones(3)}, r"q must be \[128\]"),
    ],
)
def test_wrong_arguments_are_refused(ropes: Any, given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        explore.patch_scores(ropes, **given)
