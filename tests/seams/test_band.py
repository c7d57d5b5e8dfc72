"""The normal form of what is visible: four numbers that say the same as the expression, or none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milepost import Stream, causal, chunks, everything, sinks, window
from milepost.seams.band import Band, common
from milepost.seams.visible import Visible
from tests.regions import in_band

T = 26
INF = math.inf


def shown(band: Band) -> Tensor:
    """Which pairs a band holds, one at a time."""
    return torch.tensor([[in_band(band, i, j) for j in range(T)] for i in range(T)])


def seen(visible: Visible | Stream) -> Tensor:
    zero, at = torch.tensor(0), torch.arange(T)
    return visible.see(zero, zero, at[:, None], at).expand(T, T)


COMMON = [
    (everything, Band(INF, INF, 0, None)),
    (causal, Band(INF, 0, 0, None)),
    (window(8), Band(8, 0, 0, None)),
    (window(8, ahead=7), Band(8, 7, 0, None)),
    (causal & window(8), Band(8, 0, 0, None)),
    (causal & window(8, ahead=7), Band(8, 0, 0, None)),
    (sinks(2), Band(-INF, INF, 2, None)),
    (causal & sinks(2), Band(-INF, 0, 2, None)),
    (causal & (window(8) | sinks(2)), Band(8, 0, 2, None)),
    ((window(8) | sinks(2)) & causal, Band(8, 0, 2, None)),
    (window(8) | causal & sinks(2), Band(8, 0, 2, None)),
    (causal & (sinks(2) | sinks(4) | window(3) | window(8)), Band(8, 0, 4, None)),
    (window(8, ahead=2) | causal & sinks(2), Band(8, 2, 2, None)),
    (chunks(6), Band(INF, INF, 0, 6)),
    (causal & chunks(6), Band(INF, 0, 0, 6)),
    (causal & chunks(6) & window(4), Band(4, 0, 0, 6)),
    (chunks(6) & window(9), Band(INF, 0, 0, 6)),
    (causal & chunks(6) & (window(3) | sinks(2)), Band(3, 0, 2, 6)),
    (chunks(6) & chunks(12), Band(INF, INF, 0, 6)),
    (chunks(6) | chunks(12), Band(INF, INF, 0, 12)),
    (causal | window(4, ahead=3), Band(INF, 3, 0, None)),
    (window(4) | window(2, ahead=5), Band(4, 5, 0, None)),
    (causal | everything, Band(INF, INF, 0, None)),
    (window(4, ahead=3) | sinks(2), Band(4, 3, 2, None)),
    (window(4) | sinks(1), Band(4, 0, 1, None)),
    (window(9, ahead=8) | chunks(6), Band(9, 8, 0, None)),
    (~causal, Band(0, INF, 0, None)),
    (~~causal, Band(INF, 0, 0, None)),
    (causal & ~window(4), Band(INF, -4, 0, None)),
    (causal & ~causal, Band(-INF, INF, 0, None)),
]


@pytest.mark.parametrize(("visible", "band"), COMMON, ids=lambda each: repr(each) if isinstance(each, Visible) else "")
def test_what_people_write_has_a_normal_form(visible: Visible, band: Band):
    assert visible.normal() == band
    assert torch.equal(shown(band), seen(visible))


@pytest.mark.parametrize(
    "visible",
    [
        window(8) | sinks(2),
        causal | sinks(2),
        ~window(4),
        ~sinks(2),
        ~chunks(4),
        chunks(4) & chunks(6),
        chunks(4) | chunks(6),
        causal & chunks(4) | sinks(2),
        window(4) | chunks(4),
        causal & (window(4) | sinks(2) & window(9)),
        ~causal & window(9, ahead=8) | causal & ~window(3) & sinks(4),
    ],
    ids=repr,
)
def test_what_is_no_band_has_none(visible: Visible):
    assert visible.normal() is None


def leaves(chance: random.Random) -> Visible:
    n = chance.choice((1, 2, 3, 4, 6, 9, 12))
    made: list[Callable[[], Visible]] = [
        lambda: causal,
        lambda: everything,
        lambda: window(n),
        lambda: window(n, ahead=chance.choice((1, 3, 8))),
        lambda: sinks(n),
        lambda: chunks(n),
    ]
    return chance.choice(made)()


def tree(chance: random.Random, depth: int) -> Visible:
    if depth == 0 or chance.random() < 0.15:
        return leaves(chance)
    kind = chance.choice("&&&||~")
    a = tree(chance, depth - 1)
    if kind == "~":
        return ~a
    b = tree(chance, depth - 1)
    return a & b if kind == "&" else a | b


def test_a_normal_form_says_what_the_expression_says():
    chance = random.Random(3)
    found = 0
    for _ in range(600):
        visible = tree(chance, chance.randint(1, 4))
        band = visible.normal()
        if band is not None:
            found += 1
            assert torch.equal(shown(band), seen(visible)), (visible, band)
    assert found > 250, "hardly any has a normal form"


def test_a_method_that_hides_keys_answers_too():
    for method in (Stream(2, 4), Stream(0, 3), Stream(1, 3, evict="after")):
        assert torch.equal(shown(method.normal()), seen(method))


def test_several_parts_see_what_all_of_them_see():
    chance = random.Random(5)
    found = 0
    for _ in range(200):
        one, other = tree(chance, 2), tree(chance, 2)
        band = common([one.normal(), other.normal()])
        if band is not None:
            found += 1
            assert torch.equal(shown(band), seen(one & other)), (one, other, band)
    assert found > 40
    assert common([]) == Band(INF, INF, 0, None)
    assert common([causal.normal(), None]) is None


def test_a_long_expression_is_given_up_rather_than_waited_for():
    visible = everything
    for n in range(2, 14):
        visible = visible & (chunks(2**n) | sinks(n) | ~window(n))
    assert visible.normal() is None
