"""Neutral parameters equal the plain method."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import milepost as mp
from milepost import causal
from tests.layers import D, H, layer, tokens
from tests.oracles import assert_same

LONG = 1000
"""Longer than any text here."""


def rope(stretch: object = None) -> mp.Rope:
    return mp.Rope(D, theta=100.0, stretch=stretch)  # pyright: ignore


def still(*parts: object) -> mp.Scheme:
    """A scheme whose weights are all zero."""
    scheme = mp.Scheme(*parts).double()
    for weight in scheme.parameters():
        weight.detach().zero_()
    return scheme


PLAIN = {
    "Rope": lambda: mp.Scheme(rope(), causal),
    "Nope": lambda: mp.Scheme(mp.Nope(), causal),
}
NEUTRAL: dict[str, tuple[str, Callable[[], mp.Scheme]]] = {
    "Interpolate(1)": ("Rope", lambda: mp.Scheme(rope(mp.Interpolate(1)), causal)),
    "Ntk(1)": ("Rope", lambda: mp.Scheme(rope(mp.Ntk(1)), causal)),
    "DynamicNtk within the trained length": ("Rope", lambda: mp.Scheme(rope(mp.DynamicNtk(LONG, factor=4.0)), causal)),
    "Yarn(1)": ("Rope", lambda: mp.Scheme(rope(mp.Yarn(1, 16)), causal)),
    "DynamicYarn within the trained length": ("Rope", lambda: mp.Scheme(rope(mp.DynamicYarn(LONG)), causal)),
    "Llama3(1)": ("Rope", lambda: mp.Scheme(rope(mp.Llama3(1, 16)), causal)),
    "LongRope of ones": ("Rope", lambda: mp.Scheme(rope(mp.LongRope((1.0,) * 4, (1.0,) * 4, 5)), causal)),
    "Partial of all channels": ("Rope", lambda: mp.Scheme(mp.Partial(rope(), of=D), causal)),
    "AxialRope on plain positions": ("Rope", lambda: mp.Scheme(mp.AxialRope(D, (2, 1, 1), theta=100.0), causal)),
    "Xpos that hardly fades": ("Rope", lambda: mp.Scheme(mp.Xpos(D, theta=100.0, fade=1e15, pairs="halves"), causal)),
    "Rerope wider than the text": ("Rope", lambda: mp.Scheme(rope(), mp.Rerope(LONG), causal)),
    "LeakyRerope(w, 1)": ("Rope", lambda: mp.Scheme(rope(), mp.LeakyRerope(4, 1), causal)),
    "SelfExtend in groups of one": ("Rope", lambda: mp.Scheme(rope(), mp.SelfExtend(1, 4), causal)),
    "DualChunk longer than the text": ("Rope", lambda: mp.Scheme(rope(), mp.DualChunk(LONG, 10), causal)),
    "Stream longer than the text": ("Rope", lambda: mp.Scheme(rope(), mp.Stream(4, LONG))),
    "LogN within the trained length": ("Rope", lambda: mp.Scheme(rope(), mp.LogN(LONG), causal)),
    "everything": ("Rope", lambda: mp.Scheme(rope(), causal & mp.everything)),
    "a window longer than the text": ("Rope", lambda: mp.Scheme(rope(), mp.window(LONG))),
    "Scale(1/√d)": ("Nope", lambda: mp.Scheme(mp.Scale(D**-0.5), causal)),
    "SoftCap without end": ("Nope", lambda: mp.Scheme(mp.SoftCap(1e9), causal)),
    "T5Bias of zeros": ("Nope", lambda: still(mp.T5Bias(H), causal)),
    "Fire of zeros": ("Nope", lambda: still(mp.Fire(H), causal)),
    "Shaw of zeros": ("Nope", lambda: still(mp.Shaw(D, value_dim=6), causal)),
    "TransformerXL of zeros": ("Nope", lambda: still(mp.TransformerXL(8, H, D), causal)),
    "Cope of zeros": ("Nope", lambda: still(mp.Cope(D, 4), causal)),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_parameters_change_nothing(name: str):
    plain, make = NEUTRAL[name]
    x = tokens()
    assert_same(layer(make().double(), x), layer(PLAIN[plain](), x))


def test_the_two_plain_methods_differ():
    x = tokens()
    assert float((layer(PLAIN["Rope"](), x) - layer(PLAIN["Nope"](), x)).abs().max()) > 0.01
