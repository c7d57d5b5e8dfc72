"""Every law, for every method."""

from __future__ import annotations

import pytest

import milepost as mp
from tests.cases import CASES
from tests.laws import LAWS


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, name: str):
    LAWS[law](CASES[name])


def test_every_method_has_a_case():
    assert {entry.name for entry in mp.methods()} <= set(CASES)
