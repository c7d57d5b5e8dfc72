"""Schemes as print, and the list of methods."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import milepost as mp
from milepost.seams.verbs import VERBS
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
        called = repr(part) if type(part).__module__ == "milepost.seams.visible" else f"{type(part).__name__}("
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
    assert "Rope(64, stretch=Yarn(8, 4096)):" in printed
    assert "LogN(4096):" in printed
    assert "Partial(Rope(4), 8):" in str(mp.Scheme(mp.Partial(mp.Rope(4), of=8)))


def test_the_whole_print_of_a_scheme():
    scheme = mp.Scheme(mp.Alibi(8), mp.causal & (mp.window(1020) | mp.sinks(4)))
    assert (
        str(scheme).splitlines()[0] == "out_i = Σ_j softmax_j( bend(1/√d · ⟨q_i, k_j⟩, h, p_i, r_j) | see(i, j) ) · v_j"
    )
    assert re.search(r"^  bend +Alibi\(8\): +score  ←  score − slope_h · \|p − r\|", str(scheme), re.MULTILINE)
    assert re.search(r"^  see +causal & \(window\(1020\) \| sinks\(4\)\)$", str(scheme), re.MULTILINE)


@every_case
def test_repr_is_the_call_that_makes_it(name: str):
    scheme = CASES[name]()
    again = eval(repr(scheme), vars(mp).copy())
    assert again.same_as(scheme)
    for part in scheme.parts:
        if not any(isinstance(each, nn.Module) for each in (part, getattr(part, "method", None))):
            assert eval(repr(part), vars(mp).copy()) == part


def test_repr_of_a_part_that_learns_keeps_every_argument():
    part = mp.Deberta(10, 4, 8, reach=9, buckets=4, index="paper")
    again = eval(repr(part), vars(mp).copy())
    assert mp.Scheme(again).same_as(mp.Scheme(part))


def test_a_schedule_prints_its_layers():
    scheme = mp.Scheme(mp.Nope(), mp.causal)
    printed = repr(mp.Schedule([scheme, mp.Scheme(mp.Rope(8)), scheme]))
    assert "3 layers" in printed
    assert "2 distinct" in printed
    assert "[0, 1, 0]" in printed


# The list of methods


def test_the_list_of_methods_is_the_methods_folder():
    files = [path.stem for path in (Path(mp.__file__).parent / "methods").glob("*.py") if path.stem != "__init__"]
    listed = mp.methods()
    assert sorted(entry.name.lower() for entry in listed) == sorted(stem.replace("_", "") for stem in files)
    assert {entry.name for entry in listed} == set(exported_methods())
    assert [entry.name for entry in listed] == sorted(entry.name for entry in listed)


def test_every_method_is_listed_with_its_verbs():
    for entry in mp.methods():
        method = exported_methods()[entry.name]
        verbs = tuple(verb for verb in VERBS if inspect.isfunction(getattr(method, verb, None)))
        if verbs:
            assert entry.verbs == verbs
        elif entry.name != "Nope":
            # A stretch answers to the method that holds it, a sampler to the user.
            assert entry.verbs, f"{entry.name} is listed without a verb"
            assert all(inspect.isfunction(getattr(method, verb, None)) for verb in entry.verbs)
    told = {entry.name: entry.verbs for entry in mp.methods()}
    assert told["Rope"] == ("turn",)
    assert told["Stream"] == ("place", "see")
    assert told["Yarn"] == ("frequencies", "magnitude")
    assert told["Nope"] == ()


def test_every_method_is_listed_with_a_formula():
    without = [entry.name for entry in mp.methods() if not entry.formula]
    assert without == []
    told = {entry.name: entry.formula for entry in mp.methods()}
    assert told["SoftCap"] == "score  ←  cap · tanh(score / cap)"


def test_every_method_is_listed_with_its_source():
    # A softmax scale of one's own is nobody's invention.
    without = [entry.name for entry in mp.methods() if not re.search(r"\b(19|20)\d\d\b|arXiv:", entry.paper)]
    assert [name for name in without if name != "Scale"] == []
    told = {entry.name: entry.paper for entry in mp.methods()}
    assert "arXiv:2108.12409" in told["Alibi"]
    assert "\n" not in "".join(told.values())


def test_every_method_is_listed_as_learned_or_not():
    for entry in mp.methods():
        assert entry.learned == issubclass(exported_methods()[entry.name], nn.Module)


@pytest.mark.parametrize("name", [name for name in CASES if name in exported_methods()])
def test_the_backends_listed_for_a_method_are_those_that_run_it(name: str):
    scheme = fresh(CASES[name])
    (entry,) = [entry for entry in mp.methods() if entry.name == name]
    with torch.no_grad():
        able = mp.explain(scheme.attention, *project(tokens())).able
    # Kernels that need a device are listed wherever one asks.
    assert [each for each in entry.backends if each != "triton"] == [each for each in able if each != "triton"]


def test_the_list_of_methods_does_not_depend_on_what_was_imported_first():
    code = "import milepost.methods.rope, milepost as mp; assert 'Rope' in [entry.name for entry in mp.methods()]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
