"""Every facet of every method says what its verb does; and a method that says something else is found."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.seams.band import Band
from milepost.seams.facets import FACETS, Slopes, facets_of
from milepost.seams.verbs import answers
from tests.cases import CASES, exported_methods
from tests.facets import FACET_LAWS
from tests.layers import D, H

ROTARY = {"AxialRope", "FusedRope", "LearnedRope", "Partial", "Rope", "TwoPartRope", "Xpos"}


ANSWERED = {
    "cos_sin": ROTARY,
    "slopes": {"Alibi", "LearnedAlibi", "OffsetAlibi", "SplitAlibi"},
    "by_distance": {"Kerple", "Sandwich", "T5Bias"},
    "by_share": {"Fire"},
    "cap": {"SoftCap"},
    "normal": {"Stream"},
}


def test_every_facet_has_a_law_and_those_who_answer_it():
    assert set(FACET_LAWS) == set(FACETS) == set(ANSWERED)
    for facet, methods in ANSWERED.items():
        assert {name for name, each in exported_methods().items() if facet in facets_of(each)} == methods


def test_every_rotation_answers_its_cosines():
    assert {name for name, each in exported_methods().items() if getattr(each, "rotary", False)} == ROTARY


def test_a_scheme_for_a_facet_stands_among_the_cases():
    parts = [part for make in CASES.values() for part in make().parts]
    for facet, methods in ANSWERED.items():
        assert methods <= {type(part).__name__ for part in parts if facet in facets_of(part)}


def test_a_bias_by_distance_has_no_other_words_for_it():
    """Every bias that reads distances alone is linear in them, or a table of them."""
    found = {
        name
        for name, each in exported_methods().items()
        if answers(each, "additive") and each.relative is True and not {"slopes", "by_distance"} & set(facets_of(each))
    }
    assert found == set()


def wrong(part: Any, **broken: Any) -> Any:
    """The same part with some of its answers replaced; each is given the part's own answer to change."""
    return type(f"Wrong{type(part).__name__}", (Wrong,), {"part": part, "broken": broken})()


class Wrong:
    """Stands in for a part, and answers what it was asked to break differently."""

    part: Any
    broken: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        # Only a facet that is put in may be missing from the part.
        own = getattr(self.part, name, None) if name in self.broken else getattr(self.part, name)
        return own if name not in self.broken else self.broken[name](own)


def scaled(by: float) -> Any:
    """Break a method that answers a tensor."""
    return lambda own: lambda *given, **named: own(*given, **named) * by


def second(change: Any) -> Any:
    """Break a method that answers a pair of tensors, in the second."""

    def broken(own: Any) -> Any:
        def answer(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
            one, other = own(*given, **named)
            return one, change(other)

        return answer

    return broken


def no_side(own: Any) -> Any:
    """Cosines that are deaf to which side is asked."""
    return lambda position, length=None, side="query", dtype=torch.float32: own(position, length, "query", dtype)


def steeper(**by: float) -> Any:
    """Break one of the slopes."""

    def broken(own: Any) -> Any:
        def answer(*given: Any) -> Slopes:
            found = own(*given)
            return replace(found, **{name: getattr(found, name) * times for name, times in by.items()})

        return answer

    return broken


def deaf(own: Any) -> Any:
    """Slopes that have lost their gradient."""
    return lambda *given: Slopes(*(each.detach() for each in vars(own(*given)).values()))


LOGITS = mp.Partial(mp.Rope(4, stretch=mp.DynamicYarn(5)), of=D, temperature="logits")


@pytest.mark.parametrize(
    ("facet", "part"),
    [
        ("cos_sin", wrong(mp.Rope(D), cos_sin=second(torch.neg))),
        ("cos_sin", wrong(mp.Rope(D), turn=scaled(1 + 1e-9))),
        ("cos_sin", wrong(mp.Rope(D), pairs=lambda own: "neighbours")),
        ("cos_sin", wrong(mp.TwoPartRope(D), blocks=lambda own: 1)),
        ("cos_sin", wrong(mp.Partial(mp.Rope(4), of=D), width=lambda own: 8)),
        ("cos_sin", wrong(LOGITS, beyond=lambda own: lambda *given: None)),
        ("cos_sin", wrong(mp.Xpos(D), cos_sin=no_side)),
        ("cos_sin", wrong(mp.FusedRope(D), for_values=lambda own: lambda width: None)),
        ("slopes", wrong(mp.Alibi(H), slopes=steeper(behind=1 + 1e-6))),
        ("slopes", wrong(mp.Alibi(H, mp.AlibiDynamicNtk(5)), slopes=lambda own: lambda length: own(5))),
        ("slopes", wrong(mp.LearnedAlibi(H).double(), slopes=steeper(ahead=0.5))),
        ("slopes", wrong(mp.LearnedAlibi(H).double(), slopes=deaf)),
        ("slopes", wrong(mp.OffsetAlibi(H), slopes=steeper(step=0))),
        ("by_distance", wrong(mp.T5Bias(H, 8, 9).double(), by_distance=scaled(1.001))),
        ("by_distance", wrong(mp.T5Bias(H, 8, 9).double(), constant_past=lambda own: (5, 0))),
        ("by_distance", wrong(mp.T5Bias(H, 8, 9, bidirectional=True).double(), constant_past=lambda own: (9, 0))),
        ("by_distance", wrong(mp.Kerple(H).double(), bend=scaled(1.001))),
        ("by_distance", wrong(mp.Kerple(H).double(), by_distance=lambda own: lambda d: own(d).detach())),
        ("by_distance", wrong(mp.Sandwich(H, 12), by_distance=lambda own: lambda d: own(d + 1))),
        ("by_share", wrong(mp.Fire(H, 6, 5).double(), by_share=lambda own: lambda share: own(share).flip(0))),
        ("by_share", wrong(mp.Fire(H, 6, 5).double(), share=lambda own: lambda d, p: own(d, p + 10))),
        ("cap", wrong(mp.SoftCap(2.0), cap=lambda own: 2.001)),
        ("normal", wrong(mp.Stream(2, 4), normal=lambda own: lambda: Band(4, 0, 3, None))),
        ("normal", wrong(mp.Stream(2, 4), normal=lambda own: lambda: Band(5, 0, 2, None))),
        ("normal", wrong(mp.causal, normal=lambda own: lambda: Band(math.inf, 1, 0, None))),
        ("normal", wrong(mp.SplitAlibi(4), normal=lambda own: lambda: Band(math.inf, 0, 0, None))),
    ],
)
def test_a_facet_that_says_something_else_is_found(facet: str, part: Any):
    with pytest.raises((AssertionError, RuntimeError)):
        FACET_LAWS[facet](part)


def test_what_stands_in_is_let_pass_unbroken():
    for make in CASES.values():
        for part in make().double().parts:
            for facet in facets_of(part):
                FACET_LAWS[facet](wrong(part))
