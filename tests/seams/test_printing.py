"""Schemes as print, and the list of methods."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import milepost as mp
from milepost.seams.arguments import spell_value
from milepost.seams.known import exports
from milepost.seams.verbs import VERBS
from milepost.seams.visible import Visible
from tests.cases import CASES, exported_methods
from tests.layers import fresh, project, tokens

every_case = pytest.mark.parametrize("name", CASES)


# Print


@every_case
def test_print_shows_the_equation_and_every_part(name: str):
    scheme = CASES[name]()
    head, *lines = str(scheme).splitlines()
    assert re.fullmatch(r"out_i = Σ_j softmax_j\( .+ \) · v_j", head)
    for part in scheme.parts:
        called = repr(part) if isinstance(part, Visible) else type(part).__name__
        assert any(called in line for line in lines), f"{part!r} is not printed"
        for verb in scheme_verbs(part):
            assert any(line.split()[0] == verb and called in line for line in lines), f"{part!r} hides its {verb}"


def scheme_verbs(part: object) -> list[str]:
    return [verb for verb in VERBS if hasattr(part, verb)]


@every_case
def test_print_shows_the_seams_in_use_and_no_others(name: str):
    scheme = CASES[name]()
    head = str(scheme).splitlines()[0]
    used = {verb for part in scheme.parts for verb in scheme_verbs(part)}
    for verb in ("turn", "relate", "sharpen", "bend", "bend_rows", "see", "rest"):
        assert bool(re.search(rf"(?<!\w){verb}\(", head)) == (verb in used), verb
    assert ("1/√d" in head) == ("scale" not in used)


def test_print_spells_parts_as_one_would_write_them():
    printed = str(mp.Scheme(mp.Rope(64, stretch=mp.Yarn(factor=8.0, trained=4096)), mp.LogN(4096), mp.causal))
    assert "  turn     Rope(64, stretch=Yarn(8, 4096))\n" in printed
    assert "  sharpen  LogN(4096)\n" in printed
    assert "  turn  Partial(Rope(4), 8)\n" in str(mp.Scheme(mp.Partial(mp.Rope(4), of=8)))


def test_the_whole_print_of_a_scheme():
    scheme = mp.Scheme(mp.Alibi(3, stretch=mp.AlibiInterpolate(2)), mp.Stream(4, 1020), mp.causal)
    assert str(scheme).splitlines() == [
        "out_i = Σ_j softmax_j( bend(1/√d · ⟨q_i, k_j⟩, h, p_i, r_j) | see(i, j) ) · v_j",
        "  bend   Alibi(3, stretch=AlibiInterpolate(2))",
        "           score  ←  score − slope_h · |p − r|",
        "           slope_h  =  0.0625, 0.00390625, 0.25",
        "           AlibiInterpolate:  slope_h  ←  slope_h / 2  =  0.03125, 0.00195312, 0.125",
        "  place  Stream(4, 1020)",
        "           see(i, j)  =  j ≤ i and ( j < 4 or i − j < w )",
        "           distance  ←  p − r  where i − j < w,   min(i, 4 + w − 1) − j  to a sink further away",
        "           w  =  1020",
        "  see    Stream, as above",
        "  see    causal",
    ]


@every_case
def test_no_line_but_the_sum_is_wider_than_110_columns(name: str):
    _, *lines = str(CASES[name]()).splitlines()
    assert max(map(len, lines)) <= 110


def test_long_arguments_are_printed_whole_on_several_lines():
    short, long = tuple(1 + n / 7 for n in range(48)), tuple(float(n) for n in range(1, 49))
    printed = str(mp.Scheme(mp.Rope(96, stretch=mp.LongRope(short, long, 4096))))
    assert all(spell_value(each) in printed for each in (*short, *long))
    assert max(map(len, printed.splitlines())) <= 110


@every_case
def test_repr_is_the_call_that_makes_it(name: str):
    scheme = CASES[name]()
    again = eval(repr(scheme), exports())
    assert again.same_as(scheme)
    for part in scheme.parts:
        if not any(isinstance(each, nn.Module) for each in (part, getattr(part, "method", None))):
            assert eval(repr(part), exports()) == part


def test_repr_of_a_part_that_learns_keeps_every_argument():
    part = mp.Deberta(10, 4, 8, reach=9, buckets=4, index="paper")
    again = eval(repr(part), exports())
    assert mp.Scheme(again).same_as(mp.Scheme(part))


def test_a_schedule_says_which_layers_use_which_scheme():
    near, far = mp.Scheme(mp.Rope(8), mp.causal & mp.window(4)), mp.Scheme(mp.Nope(), mp.causal)
    schedule = mp.Schedule([near, near, near, far, near, near, far])
    spelled = "0–2, 4–5: Scheme(Rope(8), causal & window(4)); 3, 6: Scheme(Nope(), causal)"
    assert repr(schedule) == f"Schedule(7 layers; {spelled})"
    indented = [textwrap.indent(str(each), "  ") for each in (near, far)]
    assert str(schedule) == f"7 layers\nlayers 0–2, 4–5:\n{indented[0]}\nlayers 3, 6:\n{indented[1]}"
    assert repr(mp.Schedule([far])) == "Schedule(1 layer; 0: Scheme(Nope(), causal))"
    assert str(mp.Schedule([far])).startswith("1 layer\nlayer 0:\n  out_i = ")


def test_a_schedule_says_whether_layers_share_their_weights():
    first, second = (mp.Scheme(mp.T5Bias(4), mp.causal) for _ in range(2))
    assert repr(mp.Schedule([first, first])) == "Schedule(2 layers; 0–1: Scheme(T5Bias(4), causal))"
    apart = repr(mp.Schedule([first, second, first]))
    assert apart == "Schedule(3 layers; 0–2 (2 sets of weights): Scheme(T5Bias(4), causal))"
    part = mp.T5Bias(4)
    shared = mp.Schedule([mp.Scheme(part, mp.causal), mp.Scheme(part, mp.causal)])
    assert "layers 0–1:\n" in str(shared)


# The list of methods


def test_the_list_of_methods_is_what_is_exported():
    listed = mp.methods()
    assert {entry.name for entry in listed} == set(exported_methods())
    assert [entry.name for entry in listed] == sorted(entry.name for entry in listed)


def test_every_method_is_listed_with_its_verbs():
    for entry in mp.methods():
        method = exported_methods()[entry.name]
        verbs = tuple(verb for verb in VERBS if inspect.isfunction(getattr(method, verb, None)))
        if verbs:
            assert entry.verbs == verbs
        elif entry.name != "Nope":
            # A stretch answers to the method around it, a sampler to the user.
            assert entry.verbs, f"{entry.name} is listed without a verb"
            assert all(inspect.isfunction(getattr(method, verb, None)) for verb in entry.verbs)
    verbs = {entry.name: entry.verbs for entry in mp.methods()}
    assert verbs["Rope"] == ("turn",)
    assert verbs["Stream"] == ("place", "see")
    assert verbs["Yarn"] == ("frequencies", "magnitude")
    assert verbs["Nope"] == ()


def test_every_method_is_listed_with_a_formula():
    without = [entry.name for entry in mp.methods() if not entry.formula]
    assert without == []
    formulas = {entry.name: entry.formula for entry in mp.methods()}
    assert formulas["SoftCap"] == "score  ←  cap · tanh(score / cap)"


def test_every_method_is_listed_with_its_source():
    # A softmax scale of one's own is nobody's invention.
    without = [entry.name for entry in mp.methods() if not re.search(r"\b(19|20)\d\d\b|arXiv:", entry.paper)]
    assert [name for name in without if name != "Scale"] == []
    papers = {entry.name: entry.paper for entry in mp.methods()}
    assert "arXiv:2108.12409" in papers["Alibi"]
    assert "\n" not in "".join(papers.values())


def test_every_method_is_listed_as_learned_or_not():
    for entry in mp.methods():
        assert entry.learned == issubclass(exported_methods()[entry.name], nn.Module)


@pytest.mark.parametrize("name", [name for name in CASES if name in exported_methods()])
def test_the_backends_listed_for_a_method_are_those_that_run_it(name: str):
    scheme = fresh(CASES[name])
    (entry,) = [entry for entry in mp.methods() if entry.name == name]
    with torch.no_grad():
        able = mp.explain(*project(tokens()), scheme.attention).able
    # Kernels that need a device are listed wherever one asks.
    assert [each for each in entry.backends if each != "triton"] == [each for each in able if each != "triton"]


@pytest.mark.slow
def test_the_list_of_methods_does_not_depend_on_what_was_imported_first():
    code = "import milepost.methods.rope, milepost as mp; assert 'Rope' in [entry.name for entry in mp.methods()]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
