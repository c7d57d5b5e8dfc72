"""A method whose verb is misspelt is refused by name; it does not run as if it had no position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from milepost import Cache, Nope, Scheme, causal, window
from milepost.seams.arguments import Learner
from milepost.seams.misspelt import misspelt
from tests.cases import CASES


def takes(count: int) -> Any:
    """A method of so many arguments."""
    return (lambda self: None, lambda self, a: None, lambda self, a, b, c=None: None, lambda self, *given: None)[count]


def part(base: type = object, **methods: Any) -> Any:
    """A part made by somebody, with these methods."""
    return type("MyBias", (base,), {"relative": True, **methods})()


def test_no_method_of_the_package_is_refused():
    for name, make in CASES.items():
        for each in make().parts:
            assert misspelt(each) is None, name


def test_nothing_to_do_may_be_said_aloud():
    assert misspelt(Nope()) is None
    Scheme(Nope(), causal)
    Scheme(part(), causal)


@pytest.mark.parametrize(
    ("wrong", "verb"),
    [
        ("bnd", "bend"),
        ("bends", "bend"),
        ("bend_row", "bend_rows"),
        ("bendrows", "bend_rows"),
        ("embedd", "embed"),
        ("embded", "embed"),
        ("palce", "place"),
        ("tunr", "turn"),
        ("sharpn", "sharpen"),
        ("relates", "relate"),
        ("sees", "see"),
        ("rests", "rest"),
        ("scales", "scale"),
    ],
)
def test_a_part_that_answers_nothing_is_refused_with_a_guess(wrong: str, verb: str):
    for base in (object, Learner):
        mine = part(base, **{wrong: takes(3)})
        assert misspelt(mine) == (wrong, verb)
        with pytest.raises(TypeError, match=rf"^Scheme\(MyBias\(…\)\): MyBias has `{wrong}`; did you mean `{verb}`\?"):
            Scheme(mine, causal)


def test_a_part_with_methods_and_no_verb_is_refused():
    for base, name in ((object, "change_scores"), (Learner, "forward"), (Learner, "penalty")):
        with pytest.raises(TypeError, match=rf"MyBias has `{name}`, and answers none of the verbs: embed, place, turn"):
            Scheme(part(base, **{name: takes(2)}), causal)


@pytest.mark.parametrize(("wrong", "verb"), [("sees", "see"), ("tur", "turn"), ("rext", "rest"), ("beend", "bend")])
def test_one_letter_is_enough_beside_a_verb_that_is_right(wrong: str, verb: str):
    mine = part(sharpen=lambda self, index, length: index, **{wrong: takes(3)})
    with pytest.raises(TypeError, match=rf"MyBias has `{wrong}`; did you mean `{verb}`\?"):
        Scheme(mine, causal)


def test_a_word_of_its_own_is_let_pass_beside_a_verb():
    bend = {"bend": lambda self, score, batch, head, p, r: score}
    # Near in letters, but not called as the verb would be; two letters away; or a word of its own.
    for name, method in (("seed", takes(1)), ("band", takes(1)), ("blended", takes(3)), ("reset", takes(0))):
        assert misspelt(part(**bend, **{name: method})) is None, name
        Scheme(part(**bend, **{name: method}), causal)
    # A verb that is answered needs no second spelling.
    assert misspelt(part(**bend, bends=takes(3))) is None
    assert misspelt(part(**bend, _sees=takes(3))) is None


def test_an_argument_is_no_method():
    @dataclass(frozen=True)
    class Mine:
        scaled: Any = None
        relative: ClassVar[bool] = True

    assert misspelt(Mine(lambda dim: dim)) is None
    Scheme(Mine(lambda dim: dim), causal)


@pytest.mark.parametrize(
    "wrong", ["rope", 4, torch.zeros(2), torch.nn.Linear(2, 2), Cache(), window], ids=lambda each: type(each).__name__
)
def test_what_is_no_method_at_all_is_refused_as_such(wrong: object):
    with pytest.raises(TypeError, match="a part is a method or what is visible, such as Rope"):
        Scheme(wrong, causal)
