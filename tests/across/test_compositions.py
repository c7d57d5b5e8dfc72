"""Every law over random compositions: parts that meet at the same seam, and parts that meet across seams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import milepost as mp
from milepost import causal
from tests.laws import LAWS, applies
from tests.layers import WIDTH, D, H

pytestmark = pytest.mark.slow

STRETCHES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: mp.Interpolate(3.0),
    lambda: mp.Ntk(3.0),
    lambda: mp.DynamicNtk(6),
    lambda: mp.Yarn(4.0, 16),
    lambda: mp.DynamicYarn(6),
    lambda: mp.Llama3(4.0, 64),
    lambda: mp.LongRope((1.0, 1.2, 1.4, 1.6), (1.5, 2.0, 3.0, 4.0), 7, factor=4.0),
    lambda: mp.NtkMixed(3.0),
    lambda: mp.DynamicLinear(6),
    lambda: mp.ByParts(4.0, 16, ramp="paper"),
    lambda: mp.Proportional(0.5),
]
TURNS = [
    *[lambda make=make: mp.Rope(D, theta=100.0, stretch=make()) for make in STRETCHES],
    *[lambda make=make: mp.Rope(D, pairs="neighbours", stretch=make()) for make in STRETCHES[:4]],
    lambda: mp.Partial(mp.Rope(4, stretch=mp.DynamicYarn(6)), of=D, temperature="logits"),
    lambda: mp.Xpos(D),
    lambda: mp.AxialRope(D, (2, 1, 1)),
    lambda: mp.LearnedRope(D),
    lambda: mp.FusedRope(D, theta=100.0),
    lambda: mp.TwoPartRope(D),
    lambda: mp.Partial(mp.LearnedRope(4), of=D),
    lambda: mp.Nope(),
]
INPUTS = [
    lambda: mp.Learned(64, WIDTH),
    lambda: mp.Sinusoidal(WIDTH),
    lambda: mp.Hierarchical((8, WIDTH)),
    lambda: mp.Multiplied(mp.Sinusoidal(WIDTH)),
]
BENDS = [
    lambda: mp.Alibi(H),
    lambda: mp.LearnedAlibi(H),
    lambda: mp.SplitAlibi(H),
    lambda: mp.T5Bias(H, buckets=8, reach=9),
    lambda: mp.Kerple(H),
    lambda: mp.Fire(H, trained=6, width=3),
    lambda: mp.SoftCap(2.0),
    lambda: mp.Alibi(H, stretch=mp.AlibiDynamicNtk(6)),
    lambda: mp.OffsetAlibi(H),
    lambda: mp.Sandwich(H, 12),
]
RELATIONS = [
    lambda: mp.Shaw(D, reach=3, value_dim=6),
    lambda: mp.TransformerXL(10, H, D),
    lambda: mp.Deberta(10, H, D, reach=5, bias="both"),
    lambda: mp.Nezha(D, reach=3, value_dim=6),
]
PLACES = [
    lambda: mp.Rerope(4),
    lambda: mp.LeakyRerope(4, 3.0),
    lambda: mp.Pivot(mp.Rerope(4), trained=5),
    lambda: mp.SelfExtend(2, 4),
    lambda: mp.DualChunk(6, 2),
    lambda: mp.Stream(2, 4),
]
REST = [
    lambda: mp.SinkLogit(H),
    lambda: mp.LogN(5),
    lambda: mp.LogN(5, clip=False, count="length"),
    lambda: mp.Cope(D, 6),
    lambda: mp.Cope(D, 6, gates="keys"),
    lambda: mp.SoftmaxOne(H),
    lambda: mp.Llama4Scale(3, weight=0.5),
    lambda: mp.DeepseekScale(8),
]
SEEN = [
    causal,
    causal & mp.window(5),
    causal & (mp.window(3) | mp.sinks(2)),
    causal & mp.chunks(4),
    causal & ~mp.sinks(1),
    causal & mp.everything,
]


@st.composite
def makers(draw: Any) -> Callable[[], mp.Scheme]:
    """A maker of schemes that milepost accepts, with parts from many seams."""
    chosen = [draw(st.sampled_from(TURNS))]
    chosen += draw(st.lists(st.sampled_from(INPUTS), max_size=1))
    chosen += draw(st.lists(st.sampled_from(BENDS), max_size=2, unique=True))
    chosen += draw(st.lists(st.sampled_from(RELATIONS), max_size=1))
    chosen += draw(st.lists(st.sampled_from(PLACES), max_size=1))
    chosen += draw(st.lists(st.sampled_from(REST), max_size=2, unique=True))
    seen = draw(st.sampled_from(SEEN))
    order = draw(st.permutations(range(len(chosen))))

    def make() -> mp.Scheme:
        return mp.Scheme(*(chosen[n]() for n in order), seen)

    return make


def accepted(make: Callable[[], mp.Scheme]) -> bool:
    """Whether the parts can stand together; a refusal is a ValueError that names them."""
    try:
        make()
    except ValueError as refusal:
        assert str(refusal).startswith("Scheme: ")
        return False
    return True


COSTLY = {"traces_whole": 4, "agrees_on_every_backend": 10}
"""Laws that take a second or two for each composition, and how many they are asked of."""


@pytest.mark.parametrize("law", LAWS)
def test_law_holds_for_compositions(law: str):
    @settings(
        max_examples=COSTLY.get(law, 20),
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(makers().filter(lambda make: accepted(make) and applies(law, make)))
    def holds(make: Callable[[], mp.Scheme]) -> None:
        note(repr(make()))
        LAWS[law](make)

    holds()
