"""Every facet of every method says what its verb does; and a method that says something else is found."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.seams.band import Band
from milepost.seams.facets import FACETS, Slopes, facets_of
from tests.cases import CASES, exported_methods
from tests.facets import FACET_LAWS
from tests.laws import LAWS
from tests.layers import D, H

ANSWERED = {
    "cos_sin": {"AxialRope", "FusedRope", "LearnedRope", "Partial", "Rope", "TwoPartRope", "Xpos"},
    "slopes": {"Alibi", "LearnedAlibi", "OffsetAlibi", "SplitAlibi"},
    "by_distance": {"Kerple", "Sandwich", "T5Bias"},
    "two_numbers": {"Kerple"},
    "by_bucket": {"T5Bias"},
    "by_share": {"Fire"},
    "by_count": {"Cope"},
    "cap": {"SoftCap"},
    "tables": {"Deberta", "Nezha", "Shaw", "TransformerXL"},
    "relate_at": {"TransformerXL"},
    "bounds": {"Dilute", "DualChunk", "LeakyRerope", "Pivot", "Rerope", "SelfExtend", "Stream"},
    "normal": {"Stream"},
}


def test_every_facet_has_a_law_and_those_who_answer_it():
    assert set(FACET_LAWS) == set(FACETS) == set(ANSWERED)
    for facet, methods in ANSWERED.items():
        assert methods <= {entry.name for entry in mp.methods() if facet in entry.facets}
    assert not any(entry.facets for entry in mp.methods() if "Ntk" in entry.name or "sample" in entry.verbs)


def test_every_rotation_answers_its_cosines():
    for each in exported_methods().values():
        assert "cos_sin" in facets_of(each) or not getattr(each, "rotary", False), each


def test_a_scheme_for_a_facet_stands_among_the_cases():
    parts = [part for make in CASES.values() for part in make().parts]
    for facet, methods in ANSWERED.items():
        assert methods <= {type(part).__name__ for part in parts if facet in facets_of(part)}


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


def drawn(part: mp.Cope) -> mp.Cope:
    """With a table that is not all zeros, as it starts."""
    torch.nn.init.normal_(part.table, generator=torch.Generator().manual_seed(2))
    return part


def next_rows(own: Any) -> Any:
    """The rows of the next distances."""
    return lambda first, end, device: (own(first, end, device)[0], own(first + 1, end + 1, device)[1])


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
    return lambda *given: Slopes(*(each if each is None else each.detach() for each in vars(own(*given)).values()))


def rows(change: Any) -> Any:
    """Break the table of keys."""

    def broken(own: Any) -> Any:
        def answer(span: int) -> mp.Relation:
            found = own(span)
            return replace(found, keys=change(found.keys, span))

        return answer

    return broken


def wide(table: mp.Table) -> mp.Table:
    return replace(table, row=table.row.long())


def raised(table: mp.Table) -> mp.Table:
    return replace(table, row=table.row + 1)


def moved(table: mp.Table, span: int) -> mp.Table:
    return replace(table, first=table.first + (span > 20))


def changed(number: int, **fields: Any) -> Any:
    """Break one regime."""
    return lambda own: lambda: tuple(replace(each, **fields) if n == number else each for n, each in enumerate(own()))


def bounded(number: int, *bounds: mp.Bound) -> Any:
    return changed(number, bounds=bounds)


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
        ("slopes", wrong(mp.Alibi(H, stretch=mp.AlibiDynamicNtk(5)), slopes=lambda own: lambda length: own(5))),
        ("slopes", wrong(mp.LearnedAlibi(H).double(), slopes=steeper(ahead=0.5))),
        ("slopes", wrong(mp.LearnedAlibi(H).double(), slopes=deaf)),
        ("slopes", wrong(mp.OffsetAlibi(H), slopes=steeper(step=0))),
        ("by_distance", wrong(mp.T5Bias(H, buckets=8, reach=9).double(), by_distance=scaled(1.001))),
        ("by_distance", wrong(mp.T5Bias(H, buckets=8, reach=9).double(), constant_past=lambda own: (5, 0))),
        (
            "by_distance",
            wrong(mp.T5Bias(H, buckets=8, reach=9, bidirectional=True).double(), constant_past=lambda own: (9, 0)),
        ),
        ("by_distance", wrong(mp.Kerple(H).double(), bend=scaled(1.001))),
        ("by_distance", wrong(mp.Kerple(H).double(), by_distance=lambda own: lambda d: own(d).detach())),
        ("two_numbers", wrong(mp.Kerple(H).double(), by_distance=scaled(1.001))),
        (
            "two_numbers",
            wrong(mp.Kerple(H, form="power").double(), two_numbers=lambda own: lambda d: (*own(d)[1::-1], own(d)[2])),
        ),
        (
            "two_numbers",
            wrong(mp.Kerple(H).double(), two_numbers=lambda own: lambda d: (*own(d)[:2], own(d)[2] * 1.001)),
        ),
        ("by_bucket", wrong(mp.T5Bias(H, buckets=8, reach=9).double(), by_distance=scaled(1.001))),
        (
            "by_bucket",
            wrong(mp.T5Bias(H, buckets=8, reach=9).double(), by_bucket=next_rows),
        ),
        ("by_distance", wrong(mp.Sandwich(H, 12), by_distance=lambda own: lambda d: own(d + 1))),
        (
            "by_share",
            wrong(mp.Fire(H, trained=6, width=5).double(), by_share=lambda own: lambda share: own(share).flip(0)),
        ),
        ("by_share", wrong(mp.Fire(H, trained=6, width=5).double(), share=lambda own: lambda d, p: own(d, p + 10))),
        ("by_count", wrong(drawn(mp.Cope(D, 3).double()), by_count=scaled(1.001))),
        ("by_count", wrong(drawn(mp.Cope(D, 3).double()), by_count=lambda own: lambda q: own(q).detach())),
        ("cap", wrong(mp.SoftCap(2.0), cap=lambda own: 2.001)),
        ("tables", wrong(mp.Shaw(D, reach=3, value_dim=6).double(), relate=rows(lambda table, span: wide(table)))),
        ("tables", wrong(mp.Shaw(D, reach=3, value_dim=6).double(), relate=rows(lambda table, span: raised(table)))),
        ("tables", wrong(mp.TransformerXL(10, H, D).double(), relate=rows(lambda table, span: moved(table, span)))),
        ("tables", wrong(mp.Deberta(10, H, D, reach=5).double(), relate=rows(lambda table, span: moved(table, span)))),
        ("bounds", wrong(mp.Rerope(4), place=bounded(1, mp.Bound(3)))),
        ("bounds", wrong(mp.Rerope(4), place=bounded(1, mp.Bound(5)))),
        ("bounds", wrong(mp.LeakyRerope(4, 3.0), place=bounded(2, mp.Bound(4.5, mirrored=True)))),
        ("bounds", wrong(mp.LeakyRerope(4, 0.3), place=changed(1, growth=3))),
        ("bounds", wrong(mp.DualChunk(6, 2), place=bounded(2, mp.Bound(2, measure=lambda at: at // 4), mp.Bound(9)))),
        ("bounds", wrong(mp.Stream(2, 4), place=bounded(0, mp.Bound(high=3)))),
        ("bounds", wrong(mp.Pivot(mp.Rerope(4), 5), place=lambda own: lambda: own()[::-1])),
        ("normal", wrong(mp.Stream(2, 4), normal=lambda own: lambda: Band(4, 0, 3, None))),
        ("normal", wrong(mp.Stream(2, 4), normal=lambda own: lambda: Band(5, 0, 2, None))),
        ("normal", wrong(mp.causal, normal=lambda own: lambda: Band(math.inf, 1, 0, None))),
        ("normal", wrong(mp.SplitAlibi(4), normal=lambda own: lambda: Band(math.inf, 0, 0, None))),
    ],
)
def test_a_facet_that_says_something_else_is_found(facet: str, part: Any):
    with pytest.raises((AssertionError, RuntimeError)):
        FACET_LAWS[facet](part)


@dataclass(frozen=True)
class Root:
    """The example of CONTRIBUTING, with its facet; `off` breaks it."""

    off: float = 0.0
    relative: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    constant_past: ClassVar[tuple[float, float]] = (math.inf, math.inf)

    def by_distance(self, distance: Tensor) -> Tensor:
        return -distance.abs().double().sqrt()[None] - self.off

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - (p - r).abs().to(score.dtype).sqrt()


def test_the_laws_find_the_facets_of_a_method_of_ones_own():
    law = LAWS["means_what_it_says"]
    law(lambda: mp.Scheme(Root(), mp.causal))
    with pytest.raises(AssertionError, match="apart by"):
        law(lambda: mp.Scheme(Root(off=1e-6), mp.causal))


@pytest.mark.parametrize(
    ("facet", "part", "what", "answer"),
    [
        ("tables", mp.Shaw(D, reach=3, value_dim=6).double(), "Table.find", lambda self, distance: distance.long() * 0),
        ("bounds", mp.Rerope(4), "Bound.distances", lambda self: (self.low, self.high - 2)),
        ("bounds", mp.Rerope(4), "Bound.distances", lambda self: (self.low + 1, self.high)),
        ("bounds", mp.Rerope(4), "Bound.difference", lambda self, p, r: p - r),
    ],
)
def test_reading_a_facet_wrongly_is_found(facet: str, part: Any, what: str, answer: Any):
    with mock.patch(f"milepost.seams.verbs.{what}", answer), pytest.raises(AssertionError):
        FACET_LAWS[facet](part)


@pytest.mark.slow
def test_what_stands_in_is_let_pass_unbroken():
    parts = {repr(part): part for make in CASES.values() for part in make().double().parts}
    for part in parts.values():
        for facet in facets_of(part):
            FACET_LAWS[facet](wrong(part))


@pytest.mark.parametrize(("kind", "facet"), [(mp.T5Bias, "by_bucket"), (mp.Kerple, "two_numbers")])
def test_numbers_of_ones_own_are_not_those_of_inherited_buckets(kind: type, facet: str):
    own = type("Own", (kind,), {"by_distance": lambda self, distance: distance[None]})
    assert facet in facets_of(kind)
    assert "by_distance" in facets_of(own)
    assert facet not in facets_of(own)
