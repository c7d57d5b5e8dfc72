"""Schemes as JSON, as weights, as copies and as pickles."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.seams.arguments import RENAMED
from tests.cases import CASES, exported_methods
from tests.layers import fresh, layer, tokens

every_case = pytest.mark.parametrize("name", CASES)


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
        # What learns, or holds what learns, equals only itself; there the arguments are compared.
        learns = any(isinstance(each, nn.Module) for each in methods_within(theirs))
        same = repr(ours) == repr(theirs) if learns else ours == theirs
        assert same, (ours, theirs)


def test_every_exported_method_is_saved_in_some_case():
    saved = {type(each).__name__ for make in CASES.values() for part in make().parts for each in methods_within(part)}
    assert {name for name, each in exported_methods().items() if not hasattr(each, "sample")} <= saved


def test_the_plain_form_names_the_method_and_every_argument():
    scheme = mp.Scheme(mp.Rope(64, stretch=mp.Yarn(factor=8.0, trained=4096)), mp.causal & (mp.window(9) | mp.sinks(4)))
    rope, visible = through_json(scheme.to_dict())["scheme"]
    yarn = rope.pop("stretch")
    assert rope == {"is": "Rope", "head_dim": 64, "theta": 10000.0, "pairs": "halves"}
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


# What 0.1 saved, where a width was called dim

SAVED_BY_0_1: list[tuple[dict[str, Any], Any]] = [
    ({"is": "Rope", "dim": 8, "theta": 100.0, "pairs": "halves", "stretch": None}, mp.Rope(8, theta=100.0)),
    ({"is": "Sinusoidal", "dim": 6, "layout": "interleaved"}, mp.Sinusoidal(6)),
    (
        {"is": "Partial", "method": {"is": "Rope", "dim": 4}, "of": 8, "temperature": "rotary"},
        mp.Partial(mp.Rope(4), 8),
    ),
    ({"is": "Deberta", "model_dim": 10, "heads": 4, "dim": 8, "reach": 9}, mp.Deberta(10, 4, 8, reach=9)),
    (
        {"is": "Cope", "dim": 8, "positions": 6, "gates": "own", "model_dim": 10, "key_heads": 2},
        mp.Cope(8, 6, gates="own", model_dim=10, key_heads=2),
    ),
]


@pytest.mark.parametrize(("saved", "method"), SAVED_BY_0_1, ids=lambda each: type(each).__name__)
def test_what_0_1_saved_is_read(saved: dict[str, Any], method: Any):
    assert mp.Scheme.from_dict({"scheme": [saved, {"is": "Causal"}]}).same_as(mp.Scheme(method, mp.causal))


def test_an_argument_of_ones_own_called_dim_keeps_its_name():
    class Rope:
        """A method of a user's own that is called as one of ours."""

        def __init__(self, dim: int) -> None:
            self.dim = dim

        def bend(self, score, batch, head, p, r):
            return score

    (again,) = mp.Scheme.from_dict({"scheme": [{"is": "Rope", "dim": 3}]}, methods=[Rope]).parts
    assert isinstance(again, Rope)
    assert again.dim == 3


def test_every_renamed_argument_is_one_of_its_method():
    arguments = {name: set(inspect.signature(each).parameters) for name, each in exported_methods().items()}
    assert {name for name, each in arguments.items() if {"head_dim", "model_dim"} & each} == set(RENAMED)
    for name, renamed in RENAMED.items():
        assert set(renamed.values()) <= arguments[name], name
        assert not set(renamed) & arguments[name], name


@pytest.mark.parametrize("name", RENAMED)
def test_an_argument_by_its_name_of_0_1_is_refused_with_the_new_one(name: str):
    """Saved schemes are read; a call is to be rewritten."""
    ((old, new),) = RENAMED[name].items()
    with pytest.raises(
        TypeError, match=rf"{name}\({old}=8\): {old} is called {new} since 0.2; write {name}\({new}=8\)"
    ):
        getattr(mp, name)(**{old: 8})


def test_the_refusal_of_old_names_leaves_the_constructor_as_it_is():
    assert list(inspect.signature(mp.Rope).parameters) == ["head_dim", "theta", "pairs", "stretch"]
    assert mp.Rope(head_dim=8) == mp.Rope(8)
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        mp.Rope(width=8)  # pyright: ignore[reportCallIssue]


def test_a_method_is_made_in_a_compiled_graph():
    x = torch.ones(3)
    compiled = torch.compile(lambda x: x * mp.Rope(head_dim=8).head_dim, backend="eager", fullgraph=True)
    assert compiled(x).tolist() == [8.0, 8.0, 8.0]
