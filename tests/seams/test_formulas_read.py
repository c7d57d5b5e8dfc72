"""The printed formulas, read as arithmetic, are what the methods compute."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.seams.arguments import spell
from milepost.seams.formula import formula_lines
from tests.seams.reading import definitions, value
from tests.stretches import assert_ratio, stretched

DIM, THETA = 16, 50.0

STRETCHES = [
    mp.Interpolate(4.0),
    mp.Ntk(2.5),
    mp.NtkMixed(4.0),
    mp.NtkMixed(3.0, b=0.25),
    mp.Llama3(8.0, 64),
    mp.Llama3(8.0, 100, low=0.5, high=3.25),
    mp.Proportional(0.4, factor=1.5),
    mp.DynamicLinear(20),
    mp.DynamicNtk(20),
    mp.DynamicNtk(20, factor=2.5),
    mp.ByParts(4.0, 64, fast=6.0, slow=1.5),
    mp.ByParts(4.0, 64, ramp="paper", fast=6.0, slow=1.5),
    mp.Yarn(4.0, 64, fast=6.0, truncate=False),
    mp.Yarn(4.0, 64, ramp="paper", fast=6.0),
    mp.Yarn(4.0, 4096),
    mp.DynamicYarn(20, fast=3.0),
    mp.DynamicYarn(20, ramp="paper", fast=3.0),
]


def frequency(lines: list[tuple[str, str]], n: int, length: int) -> float:
    """The frequency of pair n as the lines say, for a text of so many tokens."""
    names: dict[str, Any] = {"n": n, "L": length}
    order = [each for each in lines if each[0] == "θ_n"]
    names["theta_n"] = value(order[0][1], **names)
    for name, formula in lines:
        if name == "low, high" and "turns" in formula:
            known = re.fullmatch(r"the n with (.*) · θ_n/2π = (.*) and (.*) turns, within 0 … (.*)", formula)
            assert known is not None
            trained, fast, slow, most = map(float, known.groups())
            pairs = [DIM / 2 * math.log(trained / (2 * math.pi * turns)) / math.log(THETA) for turns in (fast, slow)]
            names["low"], names["high"] = max(0.0, pairs[0]), min(most, pairs[1])
        elif name == "low, high":
            assert formula == "⌊low⌋, ⌈high⌉"
            names["low"], names["high"] = math.floor(names["low"]), math.ceil(names["high"])
    # What a formula names is defined after it.
    for name, formula in reversed(lines):
        if re.fullmatch(r"a|s|base|γ_n", name):
            names[name.replace("γ", "gamma")] = value(formula, **names)
    return value(order[1][1], **names)


@pytest.mark.parametrize("stretch", STRETCHES, ids=spell)
@pytest.mark.parametrize("length", [1, 20, 33])
def test_frequencies(stretch: Any, length: int):
    lines = definitions(mp.Rope(DIM, theta=THETA, stretch=stretch))
    computed, _ = stretched(stretch, DIM, THETA, length)
    printed = [frequency(lines, n, length) for n in range(DIM // 2)]
    if 0.0 in printed:
        assert computed.tolist() == pytest.approx(printed, rel=1e-9)
    else:
        assert_ratio(computed, printed, 1e-9)


@pytest.mark.parametrize(
    "part",
    [
        mp.LogN(512),
        mp.LogN(512, clip=False),
        mp.LogN(None),
        mp.LogN(None, clip=False),
        mp.LogN(8, most=100),
        mp.Llama4Scale(),
        mp.Llama4Scale(16, weight=0.25, offset=0),
        mp.DeepseekScale(40.0, weight=0.707),
        mp.DeepseekScale(0.5),
    ],
    ids=spell,
)
def test_temperatures(part: Any):
    lines = dict(definitions(part))
    for i in (0, 1, 7, 15, 16, 511, 5000, 100000):
        n = value(lines["n"], i=i) if "n" in lines else None
        computed = part.sharpen(torch.tensor([[i]]), torch.tensor([[i + 1]]))
        assert float(computed) == pytest.approx(value(lines["sharpen(i)"], i=i, n=n), rel=1e-12)


@pytest.mark.parametrize(
    "part", [mp.SoftCap(30.0), mp.OffsetAlibi(4, offset=0.25), mp.OffsetAlibi(4, offset=-0.5), mp.Alibi(4)], ids=spell
)
def test_biases(part: Any):
    lines = definitions(part)
    slopes = [-float(each) for each in mp.Alibi(4).bend(*map(torch.tensor, (0.0, 0, [0, 1, 2, 3], 1, 0)))]
    for head, slope in enumerate(slopes):
        for p, r in ((3, 3), (9, 2), (2, 9)):
            computed = part.bend(torch.tensor(1.5, dtype=torch.float64), *map(torch.tensor, (0, head, p, r)))
            printed = value(lines[0][1], score=1.5, slope_h=slope, p=p, r=r)
            assert float(computed) == pytest.approx(printed, rel=1e-7)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12, 20])
def test_slopes_as_the_docstring_of_alibi_defines_them(heads: int):
    found = re.fullmatch(r"slope_h  =  (.*),   c = 2\^⌊log2 heads⌋,   e_h = (.*)", formula_lines(mp.Alibi)[1])
    assert found is not None
    c = 2 ** math.floor(math.log2(heads))
    for bias_max in (8.0, 6.5):
        exponents = [value(found[2], h=h, c=c) for h in range(heads)]
        slopes = [value(found[1], bias_max=bias_max, e_h=each, c=c) for each in exponents]
        assert mp.Alibi(heads, bias_max=bias_max).slopes().behind.tolist() == pytest.approx(slopes, rel=1e-12)


@pytest.mark.parametrize(
    "part", [mp.T5Bias(4), mp.T5Bias(4, buckets=64, reach=500), mp.T5Bias(4, bidirectional=True)], ids=spell
)
def test_buckets_of_t5(part: mp.T5Bias):
    lines = dict(definitions(part))
    names: dict[str, Any] = {"r": 0, "e": value(lines["e"])}
    names["bucket"] = lambda n: value(lines["bucket(n)"], n=n, **names)
    for distance in (-1000, -129, -30, -8, -1, 0, 1, 5, 15, 16, 17, 40, 100, 127, 128, 129, 600):
        assert int(part.bucket(torch.tensor(distance))) == value(lines["b"], p=distance, **names)


def placed(part: Any, p: int, r: int) -> float:
    """The distance at which a part places two tokens."""
    at = torch.tensor(p), torch.tensor(r)
    (regime,) = (each for each in part.place() if bool(each.holds(*at)))
    query, key = regime.query(at[0]), regime.key(at[1])
    assert isinstance(query, Tensor)
    return float(query - key)


@pytest.mark.parametrize("part", [mp.Rerope(8), mp.LeakyRerope(8, 2.5), mp.SelfExtend(4, 8)], ids=spell)
def test_distances(part: Any):
    formula = ",   ".join(formula for _, formula in definitions(part))
    for p, r in ((3, 3), (10, 3), (11, 3), (12, 3), (50, 7), (101, 2)):
        assert placed(part, p, r) == pytest.approx(value(formula, p=p, r=r), rel=1e-12)
