"""At which rate each weight is trained: what bends scores moves ten times as fast, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import milepost as mp
from milepost.lab.schemes.named import build, learns_bias
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Trainer
from tests.lab.test_sweep import SIZE, SWEEP

SHAPE = Shape(16, 2, 2, hidden=16, vocabulary=20)
RECIPE = Recipe(length=12, batch=4, steps=10, rate=1e-3, warmup=1, clip=1e9)
BIASES = ["t5", "kerple", "kerple-power", "fire", "kerple-logn", "LearnedAlibi(heads)"]
OTHERS = [
    "shaw", "transformer-xl", "deberta", "cope", "learned", "learned-rope", "floater", "FloaterLayer(heads, dim)",
    "Rope(dim) + SinkLogit(heads)", "Recurrent(width)", "Partial(LearnedRope(dim // 2), of=dim)",
]  # fmt: skip
BOTH = "Learned(longest, width) + T5Bias(heads)"


def trainer(name: str, recipe: Recipe = RECIPE) -> Trainer:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(20, (4, 13), generator=generator)
    return Trainer(Model(SHAPE, build(name, SHAPE, 12, 24)), recipe, lambda _: (tokens[:, :-1], tokens[:, 1:]))


def by_weight(made: Trainer, setting: str) -> dict[str, float]:
    """A setting of the optimiser for every weight, by its name."""
    names = {id(weight): name for name, weight in made.model.named_parameters()}
    found = [(names[id(each)], group[setting]) for group in made.optimiser.param_groups for each in group["params"]]
    assert len(found) == len(names) == len(dict(found)), "a weight is in two groups, or in none"
    return dict(found)


def learned(made: Trainer) -> list[str]:
    return [f"schedule.{name}" for name, _ in made.model.schedule.named_parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "times"), [(name, 10) for name in BIASES] + [(name, 1) for name in OTHERS])
def test_what_bends_scores_is_trained_at_ten_times_the_rate_and_nothing_else_is(name: str, times: int):
    made = trainer(name)
    made.advance()
    rates, decays = by_weight(made, "lr"), by_weight(made, "weight_decay")
    assert learned(made), "nothing is learned"
    for weight, rate in rates.items():
        own = weight in learned(made)
        assert rate == pytest.approx(times * RECIPE.rate if own else RECIPE.rate), weight
        assert not (own and decays[weight]), f"{weight} decays"


def test_one_scheme_may_learn_both_ways():
    made = trainer(BOTH)
    made.advance()
    rates = by_weight(made, "lr")
    kinds = {type(made.model.get_submodule(name.rpartition(".")[0])): name for name in learned(made)}
    assert rates[kinds[mp.T5Bias]] == pytest.approx(10 * rates[kinds[mp.Learned]])


@pytest.mark.parametrize("times", [1.0, 10.0, 25.0])
def test_the_first_step_is_as_long_as_the_rate_says(times: float):
    """Adam's first step is the rate itself, whatever the gradient: g / (|g| + 10⁻⁸)."""
    made = trainer("kerple", replace(RECIPE, bias_rate=times))
    before = {name: weight.detach().clone() for name, weight in made.model.named_parameters()}
    made.advance()
    after = {name: weight.detach() for name, weight in made.model.named_parameters()}
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    assert all(moved[name] == pytest.approx(times * RECIPE.rate, rel=0.02) for name in learned(made))
    assert moved["norm.weight"] == pytest.approx(RECIPE.rate, rel=0.02)


@pytest.mark.parametrize("times", [1.0, 10.0])
def test_what_else_a_scheme_learns_has_a_rate_of_its_own(times: float):
    made = trainer(BOTH, replace(RECIPE, learned_rate=times, bias_rate=5.0))
    made.advance()
    rates = by_weight(made, "lr")
    kinds = {type(made.model.get_submodule(name.rpartition(".")[0])): name for name in learned(made)}
    assert rates[kinds[mp.Learned]] == pytest.approx(times * RECIPE.rate)
    assert rates[kinds[mp.T5Bias]] == pytest.approx(5 * RECIPE.rate)
    assert rates["norm.weight"] == pytest.approx(RECIPE.rate)


@pytest.mark.parametrize(("name", "differs"), [("rope", False), ("t5", False), ("shaw", True), (BOTH, True)])
def test_a_cell_has_another_key_where_that_rate_changes_its_numbers(name: str, differs: bool):
    recipes = [replace(SIZE.recipe, learned_rate=times) for times in (1.0, 5.0)]
    keys = {replace(SWEEP, schemes=(name,), size=replace(SIZE, recipe=each)).cells()[0].key for each in recipes}
    assert (len(keys) == 2) is differs


def test_the_rate_of_biases_rises_and_falls_with_the_others():
    made = trainer("t5")
    for step in range(RECIPE.steps):
        made.advance()
        rates = by_weight(made, "lr")
        assert {round(rate / RECIPE.rate_at(step), 6) for rate in rates.values()} == {1.0, 10.0}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float):
    for name in ("bias_rate", "learned_rate"):
        with pytest.raises(ValueError, match=rf"Recipe\({name}="):
            Recipe(**{name: rate})


# Which cells that makes new


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "alibi", *BIASES, *OTHERS, BOTH, "hwfa"])
def test_a_cell_has_another_key_where_the_factor_changes_its_numbers(name: str):
    size = replace(SIZE, shape=replace(SIZE.shape, layers=2))
    recipes = [replace(SIZE.recipe, bias_rate=times) for times in (10.0, 5.0)]
    keys = {replace(SWEEP, schemes=(name,), size=replace(size, recipe=each)).cells()[0].key for each in recipes}
    assert (len(keys) == 2) is (name in (*BIASES, BOTH))
    assert learns_bias(name) is (name in (*BIASES, BOTH))
