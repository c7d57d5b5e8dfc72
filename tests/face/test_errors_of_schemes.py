"""Schemes and schedules that cannot be, made or saved, get an error that says why."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import milepost as mp
from milepost import Scheme, causal
from tests.refusals import ROPE, refused

# Scheme


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((mp.Rope,), "Scheme(Rope): this is a class; make one: Rope(…"),
        ((mp.Yarn,), "Scheme(Yarn): this is a class; make one: Yarn(…"),
        (
            (mp.Yarn(2, 8),),
            "Scheme(Yarn(2, 8)): Yarn is not a part of a scheme, it stretches a rotation: Rope(dim, stretch=Yarn(2, 8)",
        ),
        ((mp.DynamicNtk(8),), "Scheme(DynamicNtk(8)): DynamicNtk is not a part of a scheme, it stretches a rotation"),
        ((3,), "Scheme(3): a part is a method or what is visible, such as Rope(64) or causal; int answers none"),
        ((None,), "Scheme(None): a part is a method or what is visible"),
        (("rope",), "Scheme('rope'): a part is a method or what is visible"),
        (([mp.Rope(8), causal],), "Scheme([…]): a part is a method or what is visible…list"),
        ((causal, mp.window), "Scheme(…window…): "),
        ((torch.nn.Linear(2, 2),), "Scheme(Linear(…)): a part is a method or what is visible"),
        ((Scheme(mp.Rope(8)),), "Scheme(Scheme(…"),
        ((mp.Cache(),), "Scheme(…Cache…): a part is a method or what is visible"),
    ],
)
def test_what_is_no_part_of_a_scheme(parts: tuple[Any, ...], text: str):
    refused(TypeError, text, lambda: Scheme(*parts))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((mp.Rope(8), mp.Rope(8)), "Scheme: Rope(8) and Rope(8) both turn pairs of channels…; keep one"),
        (
            (mp.Rope(8), causal, mp.Xpos(8)),
            "Scheme: Rope(8) and Xpos(8) both turn pairs of channels…turned twice; keep one",
        ),
        (
            (mp.Rope(8), mp.Partial(mp.Rope(4), of=8)),
            "Scheme: Rope(8) and Partial(Rope(4), 8) both turn pairs of channels",
        ),
        (
            (mp.Rerope(4), mp.Rope(8), mp.SelfExtend(2, 4)),
            "Scheme: Rerope(4) and SelfExtend(2, 4) both place tokens; keep one",
        ),
        ((mp.Stream(1, 4), mp.Rerope(4)), "Scheme: Stream(1, 4) and Rerope(4) both place tokens; keep one"),
        ((mp.Scale(1.0), mp.Scale(0.5)), "Scheme: Scale(1) and Scale(0.5) both set the scale; keep one"),
        ((mp.Scale(1.0), mp.Deberta(8, 4, 8)), "Scheme: Scale(1) and Deberta(8, 4, 8) both set the scale; keep one"),
        ((mp.Alibi(4), mp.T5Bias(8)), "Scheme: Alibi(4) and T5Bias(8) are made for different numbers of heads"),
        (
            (mp.Alibi(4), mp.Kerple(4), mp.Fire(3)),
            "Scheme: Alibi(4) and Fire(3) are made for different numbers of heads",
        ),
        (
            (mp.Rope(8), mp.DualChunk(8, 2)),
            "Scheme: DualChunk(8, 2) is defined for keys behind the query only; add …causal",
        ),
        ((mp.Cope(8, 4), mp.everything), "Scheme: Cope(8, 4) is defined for keys behind the query only; add …causal"),
        (
            (mp.Cope(8, 4), causal | mp.sinks(2)),
            "Scheme: Cope(8, 4) is defined for keys behind the query only; add …causal",
        ),
        (
            (mp.Rerope(4), mp.Fire(4), causal),
            "Scheme: Rerope(4) moves tokens…, and Fire(4) reads more than distances; keep one",
        ),
    ],
)
def test_parts_that_cannot_stand_together(parts: tuple[Any, ...], text: str):
    refused(ValueError, text, lambda: Scheme(*parts))


def test_what_hides_the_keys_ahead_is_enough_for_those_that_need_it():
    for visible in (causal, mp.window(4), causal & mp.sinks(2), mp.window(3) | causal):
        Scheme(mp.Rope(8), mp.DualChunk(8, 2), visible)
        Scheme(mp.Cope(8, 4), visible)


# Schedule


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda: mp.Schedule([]), ValueError, "Schedule([]): a schedule needs at least one scheme, one for each layer"),
        (lambda: mp.Schedule([ROPE, mp.Rope(8)]), TypeError, "Schedule: layer 1 is a Rope; wrap its parts: Scheme("),
        (lambda: mp.Schedule([Scheme]), TypeError, "Schedule: layer 0 is a"),
        (lambda: mp.Schedule([ROPE, None]), TypeError, "Schedule: layer 1 is a NoneType"),
        (lambda: mp.Schedule(ROPE), TypeError, "Schedule(…list"),
        (lambda: mp.Schedule([ROPE, ROPE])[2], IndexError, "Schedule: …layer 2…2 layers"),
        (
            lambda: mp.Schedule.from_dict({}),
            ValueError,
            "Schedule.from_dict: expected {'schedule': […], 'schemes': […]}",
        ),
        (
            lambda: mp.Schedule.from_dict(ROPE.to_dict()),
            ValueError,
            "Schedule.from_dict: expected …given the keys ['scheme']",
        ),
    ],
)
def test_schedules_that_cannot_be(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


# Parts put in later


def test_parts_are_not_replaced():
    """Calls would go on with the old part, and the optimizer with the weights of the new one."""
    old, new = mp.T5Bias(4), mp.T5Bias(4)
    scheme = Scheme(old, causal)
    told = "the parts of a scheme stay what they are; build another with those you want: Scheme(*parts)"
    for name, ask in {
        "0": lambda: setattr(scheme, "0", new),
        "parts": lambda: setattr(scheme, "parts", (new, causal)),
    }.items():
        refused(AttributeError, f"scheme.{name}: {told}", ask)
    refused(AttributeError, f"scheme.0: {told}", lambda: scheme.add_module("0", new))
    refused(AttributeError, f"scheme.0: {told}", lambda: delattr(scheme, "0"))
    setattr(scheme, "0", old)
    scheme.trained = 512
    assert scheme.parts == (old, causal)
    assert next(iter(copy.deepcopy(scheme).parameters())) is not old.table


# Saved schemes


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        ({"is": "Roppe", "head_dim": 8}, "no method is called 'Roppe'; did you mean Rope…methods=["),
        ({"is": "rope", "head_dim": 8}, "no method is called 'rope'; did you mean Rope…"),
        ({"is": "Mine"}, "no method is called 'Mine'…pass your own with methods=["),
        (
            {"is": "Rope", "head_dim": 8, "stretch": {"is": "Yran", "factor": 2}},
            "no method is called 'Yran'; did you mean Yarn…",
        ),
        ({"is": "Rope", "head_dim": 7}, "Rope(head_dim=7): head_dim must be even"),
        ({"head_dim": 8}, "…'is'…['head_dim']"),
    ],
)
def test_saved_parts_that_cannot_be_built(saved: dict[str, Any], text: str):
    refused(ValueError, text, lambda: Scheme.from_dict({"scheme": [saved]}))


def test_a_saved_scheme_that_is_none():
    refused(ValueError, "Scheme.from_dict: expected {'scheme': […]}, given the keys []", lambda: Scheme.from_dict({}))
    saved = mp.Schedule([ROPE]).to_dict()
    refused(
        ValueError,
        "Scheme.from_dict: expected …given the keys ['schedule', 'schemes', 'shared']",
        lambda: Scheme.from_dict(saved),
    )


@pytest.mark.parametrize(("arguments", "named"), [({"head_dim": 8, "base": 1.0}, "base"), ({}, "head_dim")])
def test_saved_arguments_that_do_not_fit_name_the_method_and_the_argument(arguments: dict[str, Any], named: str):
    with pytest.raises((TypeError, ValueError), match=rf"Rope.*'{named}'"):
        Scheme.from_dict({"scheme": [{"is": "Rope"} | arguments]})
