"""Schemes as JSON, as weights, as pickles and as print."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.backends import BACKENDS
from milepost.seams import VERBS
from tests.cases import CASES
from tests.laws import fresh, layer, project, tokens

every_case = pytest.mark.parametrize("name", CASES)


def exported_methods() -> dict[str, type]:
    return {
        name: each
        for name, each in vars(mp).items()
        if inspect.isclass(each) and each.__module__.startswith("milepost.methods.")
    }


def through_json(plain: dict) -> dict:
    return json.loads(json.dumps(plain, allow_nan=False))


def methods_within(part: object) -> list[object]:
    """A part and the methods it holds: a stretch, a rotation, the sides of a visible expression."""
    held = [getattr(part, name) for name in inspect.signature(type(part)).parameters]
    methods = [each for each in held if is_dataclass(each) or isinstance(each, nn.Module)]
    return [part] + [each for method in methods for each in methods_within(method)]


# JSON


@every_case
def test_a_scheme_comes_back_from_json(name: str):
    scheme = CASES[name]()
    again = mp.Scheme.from_dict(through_json(scheme.to_dict()))
    assert again.same_as(scheme)
    assert scheme.same_as(again)
    for ours, theirs in zip(again.parts, scheme.parts, strict=True):
        assert type(ours) is type(theirs)
        # What learns equals only itself; there the arguments are compared.
        same = repr(ours) == repr(theirs) if isinstance(theirs, nn.Module) else ours == theirs
        assert same, (ours, theirs)


def test_every_exported_method_is_saved_in_some_case():
    saved = {type(each).__name__ for make in CASES.values() for part in make().parts for each in methods_within(part)}
    assert set(exported_methods()) <= saved


def test_the_plain_form_names_the_method_and_every_argument():
    scheme = mp.Scheme(mp.Rope(64, stretch=mp.Yarn(factor=8.0, trained=4096)), mp.causal & (mp.window(9) | mp.sinks(4)))
    rope, visible = through_json(scheme.to_dict())["scheme"]
    yarn = rope.pop("stretch")
    assert rope == {"is": "Rope", "dim": 64, "theta": 10000.0, "pairs": "halves"}
    assert yarn | {"is": "Yarn", "factor": 8.0, "trained": 4096, "ramp": "code", "fast": 32.0, "slow": 1.0} == yarn
    either = {"is": "Either", "a": {"is": "Window", "n": 9, "ahead": 0}, "b": {"is": "Sinks", "n": 4}}
    assert visible == {"is": "Both", "a": {"is": "Causal"}, "b": either}


def test_an_argument_may_itself_be_a_method():
    saved = through_json(mp.Scheme(mp.Partial(mp.Rope(4), of=8)).to_dict())["scheme"][0]
    assert saved["is"] == "Partial"
    assert saved["method"]["is"] == "Rope"


@pytest.mark.parametrize(
    "visible",
    [
        mp.causal,
        mp.everything,
        mp.window(4, ahead=2),
        ~(mp.window(3) | mp.sinks(1)),
        mp.causal & mp.chunks(4) & ~mp.sinks(2) | mp.window(2),
        mp.causal & (mp.window(3) & mp.sinks(1)),
    ],
    ids=repr,
)
def test_what_is_visible_comes_back_as_the_same_tree(visible):
    again = mp.Scheme.from_dict(through_json(mp.Scheme(visible).to_dict()))
    assert again.parts == (visible,)


def test_numbers_come_back_to_the_last_digit():
    theta = 10000.0 * 8 ** (128 / 126)
    again = mp.Scheme.from_dict(through_json(mp.Scheme(mp.Rope(8, theta=theta)).to_dict()))
    assert again.parts == (mp.Rope(8, theta=theta),)


def test_lists_that_json_makes_of_tuples_become_tuples_again():
    stretch = mp.LongRope((1.0, 1.5), (2.0, 4.0), trained=8)
    again = mp.Scheme.from_dict(through_json(mp.Scheme(mp.Rope(4, stretch=stretch)).to_dict()))
    assert again.parts == (mp.Rope(4, stretch=stretch),)


def test_same_as_tells_arguments_order_and_kind_apart():
    scheme = mp.Scheme(mp.Rope(8), mp.LogN(16), mp.causal)
    assert scheme.same_as(mp.Scheme(mp.Rope(8), mp.LogN(16), mp.causal))
    for other in (
        mp.Scheme(mp.Rope(8), mp.LogN(17), mp.causal),
        mp.Scheme(mp.Rope(8, stretch=mp.Ntk(2.0)), mp.LogN(16), mp.causal),
        mp.Scheme(mp.LogN(16), mp.Rope(8), mp.causal),
        mp.Scheme(mp.Rope(8), mp.LogN(16)),
        mp.Schedule([scheme]),
        "Scheme",
        None,
    ):
        assert not scheme.same_as(other), other


def test_same_as_does_not_compare_weights():
    one, other = mp.Scheme(mp.T5Bias(4)), mp.Scheme(mp.T5Bias(4))
    assert not torch.equal(one.parts[0].table, other.parts[0].table)
    assert one.same_as(other)


# A user's own method


@dataclass(frozen=True)
class Dented:
    """Lower every score past a reach.

    score  ←  score − depth
    """

    depth: float
    reach: int = 3
    relative: ClassVar[bool] = True

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return torch.where((p - r).abs() > self.reach, score - self.depth, score)


def test_a_method_of_ones_own_is_saved_and_loaded_by_naming_its_class():
    scheme = mp.Scheme(mp.Rope(8), Dented(0.5, reach=2), mp.causal)
    saved = through_json(scheme.to_dict())
    with pytest.raises(ValueError, match=r"no method is called 'Dented'.*methods=\["):
        mp.Scheme.from_dict(saved)
    again = mp.Scheme.from_dict(saved, methods=[Dented])
    assert again.parts == scheme.parts
    schedule = mp.Schedule([scheme, scheme])
    assert mp.Schedule.from_dict(through_json(schedule.to_dict()), methods=iter([Dented])).same_as(schedule)


# Schedules


def test_shared_layers_stay_shared():
    local, whole = mp.Scheme(mp.T5Bias(4), mp.causal & mp.window(4)), mp.Scheme(mp.T5Bias(4), mp.causal)
    schedule = mp.Schedule([local, whole, local, local])
    again = mp.Schedule.from_dict(through_json(schedule.to_dict()))
    assert again.same_as(schedule)
    assert len(again) == 4
    assert again[0] is again[2] is again[3]
    assert again[0] is not again[1]
    assert len(list(again.parameters())) == len(list(schedule.parameters())) == 2
    assert again[1].same_as(whole)


def test_layers_that_are_merely_alike_stay_apart():
    schedule = mp.Schedule([mp.Scheme(mp.T5Bias(4)), mp.Scheme(mp.T5Bias(4))])
    again = mp.Schedule.from_dict(through_json(schedule.to_dict()))
    assert again[0] is not again[1]
    assert again.same_as(schedule)
    assert not again.same_as(mp.Schedule([schedule[0], schedule[0]]))


def test_a_part_shared_by_two_schemes_stays_shared():
    # T5's one table under two masks: after loading there must still be one table to train.
    table = mp.T5Bias(4)
    schedule = mp.Schedule([mp.Scheme(table, mp.causal & mp.window(4)), mp.Scheme(table, mp.causal)])
    assert len(list(schedule.parameters())) == 1
    again = mp.Schedule.from_dict(through_json(schedule.to_dict()))
    assert len(list(again.parameters())) == 1


@every_case
def test_a_schedule_of_any_scheme_comes_back_from_json(name: str):
    scheme = CASES[name]()
    schedule = mp.Schedule([scheme, CASES[name](), scheme])
    again = mp.Schedule.from_dict(through_json(schedule.to_dict()))
    assert again.same_as(schedule)
    assert again.order == (0, 1, 0)


def test_the_weights_of_a_schedule_come_back():
    shared = mp.Scheme(mp.T5Bias(4), mp.causal)
    schedule = mp.Schedule([shared, mp.Scheme(mp.Kerple(4), mp.causal), shared])
    again = mp.Schedule.from_dict(through_json(schedule.to_dict()))
    again.load_state_dict(schedule.state_dict())
    assert torch.equal(again[2].parts[0].table, shared.parts[0].table)
    assert torch.equal(again[1].parts[0].p, schedule[1].parts[0].p)


# Weights


@every_case
def test_weights_come_back_from_a_file(name: str):
    scheme = fresh(CASES[name])
    file = io.BytesIO()
    torch.save({"scheme": scheme.to_dict(), "weights": scheme.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = mp.Scheme.from_dict(saved["scheme"]).double()
    again.load_state_dict(saved["weights"], strict=True)
    assert torch.equal(layer(again, tokens()), layer(scheme, tokens()))


@every_case
def test_only_what_is_learned_is_in_the_state_dict(name: str):
    scheme = CASES[name]()
    assert set(scheme.state_dict()) == {key for key, _ in scheme.named_parameters()}
    learns = any(isinstance(each, nn.Module) for part in scheme.parts for each in methods_within(part))
    assert bool(scheme.state_dict()) == learns


def test_a_scheme_inside_a_model_is_saved_with_it():
    model = nn.ModuleDict({"scheme": mp.Scheme(mp.Rope(8), mp.Kerple(4), mp.causal), "out": nn.Linear(2, 2)})
    assert {"scheme.1.p", "scheme.1.a", "out.weight", "out.bias"} == set(model.state_dict())


# Copies and pickles


def pickled(scheme: mp.Scheme) -> mp.Scheme:
    return pickle.loads(pickle.dumps(scheme))


@every_case
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["copy", "pickle"])
def test_a_copy_computes_the_same_and_shares_nothing(name: str, copied):
    scheme = fresh(CASES[name])
    again = copied(scheme)
    assert again.same_as(scheme)
    before = layer(scheme, tokens())
    assert torch.equal(layer(again, tokens()), before)
    with torch.no_grad():
        for weight in again.parameters():
            weight.add_(torch.arange(weight.numel(), dtype=weight.dtype).view_as(weight))
    assert torch.equal(layer(scheme, tokens()), before)
    if list(again.parameters()):
        # The weights that the copy trains are those that it computes with.
        assert not torch.equal(layer(again, tokens()), before)


def test_a_copied_schedule_shares_among_its_own_layers():
    shared = mp.Scheme(mp.T5Bias(4), mp.causal)
    again = copy.deepcopy(mp.Schedule([shared, shared]))
    assert again[0] is again[1]
    assert again[0] is not shared
    assert again[0].parts[0] is again[0].answering("bend")[0]


# Print


@every_case
def test_print_shows_the_equation_and_every_part(name: str):
    scheme = CASES[name]()
    head, *lines = str(scheme).splitlines()
    assert re.fullmatch(r"out_i = Σ_j softmax_j\( .+ \) · v_j", head)
    for part in scheme.parts:
        called = repr(part) if type(part).__module__ == "milepost.visible" else f"{type(part).__name__}("
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
        if not isinstance(part, nn.Module):
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
        told = mp.explain(scheme, *project(tokens()))
    able = [each for each in BACKENDS if each == told.backend or told.others[each].startswith("could run it")]
    # Kernels that need a device are listed wherever one asks.
    assert [each for each in entry.backends if each != "triton"] == [each for each in able if each != "triton"]


def test_the_list_of_methods_does_not_depend_on_what_was_imported_first():
    code = "import milepost.methods.rope, milepost as mp; assert 'Rope' in [entry.name for entry in mp.methods()]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
