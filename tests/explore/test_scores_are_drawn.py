"""The analyses of scores, distances and caches draw themselves, and every picture names its axes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import milepost as mp
from milepost import explore
from milepost.explore.pictures.curves import Curves
from milepost.explore.pictures.maps import Map

MADE: dict[str, Callable[[], explore.Analysis]] = {
    "score_bands": lambda: explore.score_bands(mp.Rope(16), trained=50, length=100),
    "before_after": lambda: explore.before_after(torch.ones(16), torch.ones(16), trained=50, length=100),
    "score_bound": lambda: explore.score_bound(mp.Rope(16), trained=50, length=100),
    "attention_entropy": lambda: explore.attention_entropy(lengths=(8, 16), trained=8),
    "distance_map": lambda: explore.distance_map(length=64),
    "bias_curves": lambda: explore.bias_curves(length=64),
    "stream_cache": lambda: explore.stream_cache(length=64),
}


@pytest.mark.parametrize("name", MADE)
def test_every_picture_is_whole(name: str, tmp_path: Path):
    found = MADE[name]()
    assert found.name == name
    assert 1 <= len(found.pictures) <= 4
    assert found.says.endswith(".")
    for picture in found.pictures:
        assert picture.title
        if isinstance(picture, Curves):
            assert picture.panel.x_name
            assert picture.panel.y_name
        if isinstance(picture, Map):
            assert picture.row_name
            assert picture.column_name
    ElementTree.fromstring(found.svg())
    assert found.to_csv()
    assert found.to_json()
    pytest.importorskip("matplotlib")
    assert found.save(tmp_path / "a.png").stat().st_size > 10_000
