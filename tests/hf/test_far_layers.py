"""Which layers see further than a model reads."""

from __future__ import annotations

import math

import pytest

import milepost as mp
from milepost import causal, chunks, sinks, window
from milepost.hf.config.far_layers import sees
from milepost.seams.visible import Visible


@pytest.mark.parametrize(
    ("visible", "keys"),
    [
        (causal, math.inf),
        (window(7), 7),
        (chunks(5) & causal, 5),
        (chunks(5) & window(3), 3),
        # The first keys stay in sight however far back they are, and their distances grow with the text.
        (causal & (window(7) | sinks(2)), math.inf),
        (causal & sinks(2), math.inf),
        (~window(3) & causal, math.inf),
    ],
    ids=repr,
)
def test_how_far_back_a_layer_looks(visible: Visible, keys: float):
    assert sees(mp.Scheme(mp.Rope(8), visible)) == keys


def test_a_layer_that_hides_nothing_looks_back_to_the_start():
    assert sees(mp.Scheme(mp.Rope(8))) == math.inf
