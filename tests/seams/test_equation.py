"""What is printed tells schemes apart and is what is computed: every argument, every stretch, every number."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import pytest
import torch

import milepost as mp
from milepost.seams.arguments import spell, spell_value
from milepost.seams.verbs import verbs_of
from tests.cases import CASES, exported_methods
from tests.seams.alternatives import ARGUMENTS, inside, made, one_changed
from tests.stretches import stretched

SAMPLERS = ("Pose", "Randomized")
EVERY_ARGUMENT = [(name, argument) for name, (first, _) in ARGUMENTS.items() for argument in first]
EVERY_FLOAT = [(name, each) for name, each in EVERY_ARGUMENT if isinstance(ARGUMENTS[name][0][each], float)]
STRETCHES = [
    name for name in ARGUMENTS if hasattr(getattr(mp, name), "frequencies") and hasattr(getattr(mp, name), "magnitude")
]
SLOPE_STRETCHES = [name for name in ARGUMENTS if name.startswith("Alibi") and name != "Alibi"]


def printed(method: Any) -> str:
    """A method in print; a sampler, which is no part of a scheme, as it is spelled."""
    return spell(method, whole=True) if type(method).__name__ in SAMPLERS else str(inside(method))


def beneath(scheme: mp.Scheme) -> str:
    """What is printed beneath the names of the parts."""
    return "\n".join(line for line in str(scheme).splitlines() if line.startswith("      "))


# Telling schemes apart


def test_the_table_has_every_method_and_every_argument():
    assert sorted(ARGUMENTS) == sorted(exported_methods())
    for name, method in exported_methods().items():
        parameters = list(inspect.signature(method).parameters)
        assert [list(each) for each in ARGUMENTS[name]] == [parameters, parameters], name


@pytest.mark.parametrize(("name", "argument"), EVERY_ARGUMENT)
def test_schemes_that_differ_in_an_argument_print_differently(name: str, argument: str):
    assert printed(made(name)) != printed(one_changed(name, argument))


@pytest.mark.parametrize(("name", "argument"), EVERY_FLOAT)
def test_even_where_the_difference_is_the_smallest_there_is(name: str, argument: str):
    value = ARGUMENTS[name][0][argument]
    for near in (math.nextafter(value, math.inf), value * (1 + 1e-8)):
        assert printed(made(name)) != printed(made(name, **{argument: near}))


def test_numbers_are_spelled_exactly_and_briefly():
    texts = {
        10000.0: "10000",
        500000.0: "500000",
        1e-6: "1e-06",
        1.00000001: "1.00000001",
        0.1: "0.1",
        8: "8",
        -0.5: "-0.5",
    }
    assert {value: spell_value(value) for value in texts} == texts


def test_long_tuples_are_cut_in_errors_and_whole_in_print():
    factors = (1.0, 2.0, 3.0, 4.0, 5.0)
    assert spell(mp.LongRope(factors, factors, 7)) == "LongRope((1, 2, 3, 4, …), (1, 2, 3, 4, …), 7)"
    assert "stretch=LongRope((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), 7)" in printed(mp.LongRope(factors, factors, 7))


# Formulas, and the numbers in them

UNNAMED = {
    "ComplexOrder": ("vocabulary", "model_dim"),
    "Cope": ("model_dim", "key_heads"),
    "Deberta": ("model_dim", "heads", "bias"),
    "Floater": ("model_dim", "longest"),
    "FloaterLayer": ("heads", "head_dim", "longest"),
    "Hierarchical": ("table",),
    "Kerple": ("heads",),
    "Learned": ("model_dim",),
    "LearnedAlibi": ("heads",),
    "LongRope": ("short", "long"),
    "QkNorm": ("head_dim",),
    "Recurrent": ("model_dim", "longest"),
    "Shaw": ("head_dim", "value_dim"),
    "SinkLogit": ("heads",),
    "SoftmaxOne": ("heads",),
    "T5Bias": ("heads",),
    "TransformerXL": ("heads", "head_dim"),
}
"""Arguments that no formula writes out: the sizes of weights, limits past which a method raises, and long lists."""


@pytest.mark.parametrize(("name", "argument"), [each for each in EVERY_ARGUMENT if each[0] not in SAMPLERS])
def test_the_formula_itself_follows_every_argument(name: str, argument: str):
    before, after = beneath(inside(made(name))), beneath(inside(one_changed(name, argument)))
    assert (before == after) == (argument in UNNAMED.get(name, ()))


@pytest.mark.parametrize("name", CASES)
def test_no_name_of_an_argument_is_left_where_its_number_is_known(name: str):
    scheme = CASES[name]()
    for part in scheme.parts:
        for each in (part, getattr(part, "stretch", None), getattr(part, "method", None)):
            arguments = {} if each is None or each is mp.causal else inspect.signature(type(each)).parameters
            for argument in arguments:
                value = getattr(each, argument)
                # `of` is also a word: "the length of the text".
                if isinstance(value, (int, float)) and not isinstance(value, bool) and argument != "of":
                    assert not re.search(rf"(?<![\w.]){argument}(?![\w(])", beneath(scheme)), argument


def around(name: str) -> list[mp.Scheme]:
    """The schemes in which a stretch can stand."""
    stretch = made(name)
    if name in SLOPE_STRETCHES:
        return [mp.Scheme(mp.Alibi(heads, stretch=stretch), mp.causal) for heads in (1, 3, 8, 12)]
    rope = mp.Rope(10, theta=100.0, stretch=stretch)
    return [
        mp.Scheme(each, mp.causal) for each in (rope, mp.Partial(rope, 16), mp.Partial(rope, 16, temperature="logits"))
    ]


@pytest.mark.parametrize("name", [*STRETCHES, *SLOPE_STRETCHES])
def test_a_stretch_prints_its_own_formula_wherever_it_stands(name: str):
    changes = "slope_h  ←" if name in SLOPE_STRETCHES else "θ_n  ←"
    for scheme in around(name):
        _, own = beneath(scheme).split(f"{name}:  ")
        assert own.startswith(changes)
        numbers = [spell_value(value) for value in ARGUMENTS[name][0].values() if type(value) in (int, float)]
        for number in numbers:
            assert re.search(rf"(?<![\w.]){re.escape(number)}(?![\w.])", own), number


def holders() -> list[Any]:
    """Every method that holds another, around every method that it can hold."""
    every = [made(name) for name in ARGUMENTS if name not in SAMPLERS]
    places = [mp.Pivot(each, 5) for each in every if verbs_of(each) == ("place",) and not isinstance(each, mp.Pivot)]
    turns = [mp.Partial(each, 16) for each in every if getattr(each, "rotary", False) and hasattr(each, "dim")]
    embeds = [mp.Multiplied(made(name)) for name in ("Floater", "Hierarchical", "Learned", "Recurrent", "Sinusoidal")]
    return places + turns + embeds


@pytest.mark.parametrize("holder", holders(), ids=spell)
def test_a_method_inside_another_prints_its_formula_too(holder: Any):
    apart = beneath(inside(holder.method))
    together = beneath(inside(holder))
    assert f"{type(holder.method).__name__}:  " in together
    for line in apart.splitlines():
        # Inside, lines are indented further, and may be cut in other places.
        assert " ".join(line.split()) in " ".join(together.split())


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 32])
@pytest.mark.parametrize("stretch", [None, mp.AlibiNtk(2.5), mp.AlibiInterpolate(2.5)], ids=str)
def test_printed_slopes_are_what_a_score_loses_at_distance_one(heads: int, stretch: Any):
    method = mp.Alibi(heads, stretch=stretch)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    number = r"(?:[\d.]+(?:e-\d+)?|…)"
    lists = re.findall(rf"= ({number}(?:, {number})*)", " ".join(beneath(inside(method)).split()))
    for each, texts in ((mp.Alibi(heads), lists[0]), (method, lists[0 if stretch is None else 1])):
        lost = (-each.bend(zero, zero, torch.arange(heads), one, zero)).tolist()
        shown = lost if heads <= 8 else [*lost[:7], None, lost[-1]]
        read = [None if text == "…" else float(text) for text in texts.split(", ")]
        assert read == [value if value is None else pytest.approx(value, rel=1e-5) for value in shown]


@pytest.mark.parametrize(
    "stretch",
    [
        mp.Yarn(8.0, 4096),
        mp.Yarn(8.0, 4096, scaled=1.5),
        mp.LongRope((1.0,) * 8, (2.0,) * 8, 4096, factor=32.0),
        mp.LongRope((1.0,) * 8, (2.0,) * 8, 4096, factor=0.5),
    ],
    ids=spell,
)
def test_the_printed_magnitude_is_the_one_on_cos_and_sin(stretch: Any):
    _, magnitude = stretched(stretch, 16)
    (shown,) = re.findall(r"magnitude = (?:.* = )?([\d.]+)$", beneath(mp.Scheme(mp.Rope(16, stretch=stretch))), re.M)
    assert float(shown) == pytest.approx(magnitude, rel=1e-5)


def test_a_magnitude_that_follows_the_length_has_no_number():
    assert beneath(mp.Scheme(mp.Rope(16, stretch=mp.DynamicYarn(512)))).endswith("magnitude = 0.1 · ln(s) + 1")


@pytest.mark.parametrize(("dim", "theta", "factor"), [(64, 10000.0, 8.0), (128, 500000.0, 2.5), (4, 50.0, 0.5)])
def test_the_printed_base_is_the_one_of_the_frequencies(dim: int, theta: float, factor: float):
    f, _ = stretched(mp.Ntk(factor), dim, theta)
    (shown,) = re.findall(
        r"base = .* = ([\d.e+]+)$", beneath(mp.Scheme(mp.Rope(dim, theta=theta, stretch=mp.Ntk(factor)))), re.M
    )
    assert float(shown) == pytest.approx(float(f[1]) ** (-dim / 2), rel=1e-5)


def test_a_stretch_that_cannot_run_can_be_printed():
    # Too few channels, and too few factors: both raise when they are used.
    for stretch in (mp.Ntk(2.0), mp.LongRope((1.0, 2.0), (1.0, 2.0), 8)):
        assert type(stretch).__name__ in str(mp.Scheme(mp.Rope(2, stretch=stretch)))


def test_print_does_not_look_at_the_default_device():
    scheme = mp.Scheme(mp.Alibi(3), mp.DeepseekScale(40.0), mp.causal)
    expected = str(scheme)
    with torch.device("meta"):
        assert str(scheme) == expected
