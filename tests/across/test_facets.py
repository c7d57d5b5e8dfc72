"""Every facet of every method says what its verb does; and a method that says something else is found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.seams.band import Band
from milepost.seams.facets import facets_of
from tests.cases import exported_methods
from tests.facets import FACET_LAWS
from tests.layers import D

ROTARY = {"AxialRope", "FusedRope", "LearnedRope", "Partial", "Rope", "TwoPartRope", "Xpos"}


def test_every_rotation_answers_cos_sin():
    exported = exported_methods().items()
    assert {name for name, each in exported if "cos_sin" in facets_of(each)} == ROTARY
    assert {name for name, each in exported if getattr(each, "rotary", False)} == ROTARY


def wrong(part: Any, **broken: Any) -> Any:
    """The same part with some of its answers replaced; each is given the part's own answer to change."""
    return type(f"Wrong{type(part).__name__}", (Wrong,), {"part": part, "broken": broken})()


class Wrong:
    """Stands in for a part, and answers what it was asked to break differently."""

    part: Any
    broken: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.part, name, None)
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
    for part in (mp.Rope(D), mp.TwoPartRope(D), LOGITS, mp.Xpos(D), mp.FusedRope(D)):
        FACET_LAWS["cos_sin"](wrong(part))
