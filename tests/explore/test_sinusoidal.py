"""Sinusoidal tables: their values, the periods of a component, and the distance of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import milepost as mp
from milepost import explore


def test_periods_and_least_distances_by_base():
    found = explore.sinusoidal_map(mp.Sinusoidal(100), bases=(2, 10, 100, 1_000, 10_000, 1_000_000))
    assert found["period"][1:5].round(1).tolist() == [10.0, 15.8, 25.0, 39.6]
    assert found["least distance"][[0, 4, 5]].round(2).tolist() == [5.10, 1.76, 1.49]
    # In 100 positions base 10,000 makes two periods and a half, and rows lie closer the larger the base.
    assert 100 / found["period"][4] == pytest.approx(2.52, abs=0.005)
    assert (np.diff(found["least distance"]) < 0).all()


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_every_number_is_that_of_the_formula(layout: str):
    d, length, pair = 12, 9, 4
    encoding = mp.Sinusoidal(d, layout=layout)
    found = explore.sinusoidal_map(encoding, length=length, pair=pair, bases=(5, 300))
    for row, base in enumerate((5.0, 300.0)):
        rows = [
            [f(i * base ** (-2 * n / d)) for n in range(d // 2) for f in (math.sin, math.cos)] for i in range(length)
        ]
        assert found["period"][row] == pytest.approx(math.tau * base ** (2 * pair / d), rel=1e-12)
        apart = [[math.dist(a, b) for b in rows] for a in rows]
        least = min(apart[i][j] for i in range(length) for j in range(i))
        assert found["least distance"][row] == pytest.approx(least, rel=1e-12)
        for i in range(length):
            assert found["component"][row, i] == pytest.approx(rows[i][2 * pair], abs=1e-13)
            assert found["distance of rows"][row, i] == pytest.approx(apart[0][i], abs=1e-12)
    for i in range(length):
        for n in range(d // 2):
            sine, cosine = (2 * n, 2 * n + 1) if layout == "interleaved" else (n, n + d // 2)
            angle = i * 10000.0 ** (-2 * n / d)
            assert found["table"][i, sine] == pytest.approx(math.sin(angle), abs=1e-13)
            assert found["table"][i, cosine] == pytest.approx(math.cos(angle), abs=1e-13)


def test_the_distance_of_two_rows_depends_on_their_distance_alone():
    found = explore.sinusoidal_map(mp.Sinusoidal(16), length=40, pair=3)
    drawn = found.pictures[1].values
    for apart in range(40):
        np.testing.assert_allclose(np.diagonal(drawn, apart), found["distance of rows"][-1, apart], atol=1e-12)


def test_what_is_no_table_or_no_pair_of_it_is_refused():
    with pytest.raises(TypeError, match="such as Sinusoidal"):
        explore.sinusoidal_map(mp.Rope(64))
    with pytest.raises(ValueError, match="Sinusoidal\\(8\\) has 4 pairs"):
        explore.sinusoidal_map(mp.Sinusoidal(8))
    with pytest.raises(ValueError, match="theta must be greater than 1"):
        explore.sinusoidal_map(mp.Sinusoidal(64), bases=(1.0,))


def test_the_table_shows_sines_and_then_cosines():
    found = explore.sinusoidal_map(mp.Sinusoidal(16), length=20, pair=2)
    drawn: Any = found.pictures[0]
    table = found["table"]
    assert np.array_equal(drawn.values[:, :8], table[:, 0::2])
    assert np.array_equal(drawn.values[:, 8:], table[:, 1::2])
    assert drawn.border == (8.0, "sines", "cosines")
    for n in range(8):
        assert drawn.values[:, n] == pytest.approx(np.sin(np.arange(20) * 10000.0 ** (-n / 8)), abs=1e-6)
    halves: Any = explore.sinusoidal_map(mp.Sinusoidal(16, layout="concatenated"), length=20, pair=2).pictures[0]
    assert halves.values == pytest.approx(drawn.values)
    assert drawn.signed
