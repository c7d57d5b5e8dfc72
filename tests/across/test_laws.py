"""Every law, for every method."""

from __future__ import annotations

import pytest

import milepost as mp
from tests.cases import CASES
from tests.laws import METHOD_LAWS, moved
from tests.layers import fresh


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("law", METHOD_LAWS)
def test_law(law: str, name: str):
    METHOD_LAWS[law](CASES[name])


def test_every_method_has_a_case():
    assert {entry.name for entry in mp.methods() if "sample" not in entry.verbs} <= set(CASES)


@pytest.mark.parametrize("name", [name for name, make in CASES.items() if not make().relative])
def test_what_is_not_relative_is_seen_to_move(name: str):
    assert moved(fresh(CASES[name])) > 1e-6


def test_the_methods_that_are_not_relative():
    found = {entry.name for entry in mp.methods() if entry.relative is False}
    assert found == {
        "ComplexOrder", "DualChunk", "Fire", "Floater", "FloaterLayer", "Hierarchical", "Learned", "Multiplied",
        "QkNorm", "Recurrent", "SelfExtend", "Sinusoidal", "Stream",
    }  # fmt: skip
