"""Every law, for every method."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import milepost as mp
from milepost.seams.facets import facets_of
from milepost.seams.verbs import verbs_of
from tests.cases import CASES, QUICK
from tests.laws import METHOD_LAWS, applies, graphs_over, moved
from tests.layers import fresh

COSTLY = {"agrees_on_every_backend": 12, "traces_whole": 6}
"""Laws that take long: of how many methods they are asked in one run, next to those that they are always asked of."""

ALWAYS = {"agrees_on_every_backend": QUICK, "traces_whole": ("Cope", "DynamicNtk", "Rerope", "T5Bias")}
"""With every verb and every facet; and a kind of each thing that is traced."""


def marked(law: str, name: str) -> Any:
    quick = law not in COSTLY or (law != "traces_whole" and name in QUICK)
    marks = [] if quick and not name.startswith("Floater") else [pytest.mark.slow]
    if law in COSTLY:
        marks.append(pytest.mark.always if name in ALWAYS[law] else pytest.mark.sample(COSTLY[law], law))
    return pytest.param(law, name, id=f"{law}-{name}", marks=marks)


@pytest.mark.parametrize(
    ("law", "name"), [marked(law, name) for law in METHOD_LAWS for name in CASES if applies(law, CASES[name])]
)
def test_law(law: str, name: str):
    METHOD_LAWS[law](CASES[name])


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["Rerope", "Rope"])
def test_ten_growing_lengths_take_at_most_three_graphs(name: str):
    assert graphs_over(fresh(CASES[name]), range(8, 38, 3)) <= 3


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["Alibi", "Cope", "Fire", "LogN", "Rerope", "Rope", "Shaw", "T5Bias"])
def test_traced_ahead_of_time_it_is_one_graph_with_its_gradients(name: str):
    assert graphs_over(fresh(CASES[name]), range(9, 10), compiler="aot_eager") == 1


def test_a_quick_run_has_every_verb_and_every_facet():
    def answered(names: Iterable[str]) -> set[str]:
        parts = [part for name in names for part in CASES[name]().parts]
        return {each for part in parts for each in (*verbs_of(part), *facets_of(part))}

    assert answered(QUICK) == answered(CASES)


def test_every_method_has_a_case():
    assert {entry.name for entry in mp.methods() if "sample" not in entry.verbs} <= set(CASES)


@pytest.mark.parametrize("name", [name for name, make in CASES.items() if not make().relative])
def test_what_is_not_relative_is_seen_to_move(name: str):
    assert moved(fresh(CASES[name])) > 1e-6


def test_the_methods_that_are_not_relative():
    found = {entry.name for entry in mp.methods() if entry.relative is False}
    assert found == {
        "ComplexOrder", "DualChunk", "Fire", "Floater", "FloaterLayer", "Hierarchical", "Learned",
        "Multiplied", "QkNorm", "Recurrent", "SelfExtend", "Sinusoidal",
    }  # fmt: skip
