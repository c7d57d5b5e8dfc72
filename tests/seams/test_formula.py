"""Formulas in docstrings of any shape: which lines they are, which apply, and what stands in place of names."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.seams.arguments import Learner
from milepost.seams.equation import formula_of
from milepost.seams.facets import Slopes
from milepost.seams.formula import CONDITIONS, formula_lines, put_in, that_apply, with_value
from tests.cases import exported_methods

# Finding a formula

SHAPES = {
    "a summary and the formula, nothing after": "Mine.\n\n        score ← score + 1\n    ",
    "the quotes close on the last line": "Mine.\n\n        score ← score + 1",
    "text after it": "Mine.\n\n        score ← score + 1\n\n    It adds one.\n    ",
    "as the last block": "Mine.\n\n    It adds one.\n\n        score ← score + 1\n    ",
    "no summary": "\n        score ← score + 1\n    ",
    "no summary, text after it": "\n        score ← score + 1\n\n    It adds one.\n    ",
    "one line and nothing else": "score ← score + 1",
    "no blank line before it": "Mine.\n        score ← score + 1\n    ",
    "no blank line before it, text after": "Mine.\n        score ← score + 1\n\n    It adds one.\n    ",
    "tabs": "Mine.\n\n\t\tscore ← score + 1\n\n\tIt adds one.\n\t",
    "tabs, nothing after": "Mine.\n\n\t\tscore ← score + 1\n\t",
    "at the left margin": "Mine.\n\nscore ← score + 1\n\nIt adds one.",
    "two spaces further in": "Mine.\n\n      score ← score + 1\n\n    It adds one.\n    ",
    "arguments in an indented list before it": (
        "Mine.\n\n    Args:\n        factor: how much\n\n    It adds one.\n\n        score ← score + 1\n    "
    ),
    "an example before it": "Mine.\n\n        >>> Mine()\n\n    It adds one.\n\n        score ← score + 1\n    ",
    "on two lines": "Mine.\n\n        score ← score\n            + 1\n\n    It adds one.\n    ",
    "on two lines, nothing after": "Mine.\n\n        score ← score\n            + 1\n    ",
}


@pytest.mark.parametrize("doc", SHAPES.values(), ids=SHAPES)
def test_a_formula_is_found_in_a_docstring_of_any_shape(doc: str):
    mine = type("Mine", (), {"__doc__": doc, "relative": True})
    assert formula_lines(mine) == ["score ← score + 1"]
    assert formula_of(mine) == formula_of(mine()) == "score ← score + 1"
    assert str(mp.Scheme(mine())).splitlines()[1:] == ["  —  Mine()", "       score ← score + 1"]


def test_several_lines_are_several_equations():
    doc = "Mine.\n\n        a = 1\n        b[n] = 2\n        f(x, y) ≤ 3\n    "
    assert formula_lines(type("Mine", (), {"__doc__": doc})) == ["a = 1", "b[n] = 2", "f(x, y) ≤ 3"]


@pytest.mark.parametrize("doc", [None, "", "Mine.", "Adds one, where x = 3 says so.", "Mine.\n\n    Args:\n"])
def test_a_docstring_without_a_formula_has_none(doc: str | None):
    assert formula_lines(type("Mine", (), {"__doc__": doc})) == []


def test_a_module_without_a_docstring_does_not_print_that_of_torch():
    class Bare(nn.Module):
        relative = True

    class Learned(Learner):
        pass

    for part in (Bare(), Learned()):
        assert str(mp.Scheme(part)).splitlines()[1:] == [f"  —  {type(part).__name__}()"]


def test_a_method_made_from_another_has_its_formula():
    class Wider(mp.Rope):
        pass

    assert formula_of(Wider) == formula_of(mp.Rope)


# Lines that apply


def test_lines_that_begin_with_arguments_apply_where_they_hold():
    lines = ["a", 'form="log", most=…:  b', 'form="log", most=None:  c', "clip=False:  d", "n=3: e", "other=1:  f"]
    assert that_apply(lines, {"form": "log", "most": 4, "clip": False, "n": 3}) == ["a", "b", "d", "e", "other=1:  f"]
    assert that_apply(lines[:5], {"form": "log", "most": None, "clip": True, "n": 2}) == ["a", "c"]


def test_a_class_shows_the_lines_of_its_defaults():
    assert formula_of(mp.LogN) == "sharpen(i)  =  max(1, ln n / ln trained); n  =  i + 1"
    assert formula_of(mp.Kerple) == "score  ←  score − p_h · ln(1 + a_h · |p − r|)"


@pytest.mark.parametrize("name", exported_methods())
def test_what_a_line_asks_for_is_an_argument(name: str):
    method = exported_methods()[name]
    for line in formula_lines(method):
        found = CONDITIONS.fullmatch(line)
        for condition in found[1].split(", ") if found else ():
            assert condition.split("=")[0] in inspect.signature(method).parameters, line
        # What looks like one but is none would be printed as it is.
        assert found or not re.match(r"\w+=", line), line


# Numbers in place of names


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("θ_n = θ^(−2n/d)", "θ_n = 10000^(−2n/64)"),
        ("x[n] = channels n and n + d/2", "x[n] = channels n and n + 32"),
        ("factor^(−2n/(d − 2))", "8^(−2n/62)"),
        ("1/√(3 · d), 3d, √d, x.dim, d_n", "1/√(3 · 64), 3d, √64, x.dim, d_n"),
        ("factor = 2 · factor", "factor = 2 · 8"),
        ("factor(n) + a^d/2 − d − 2 + d/3", "factor(n) + a^64/2 − 64 − 2 + 64/3"),
        ("(d − 2)/2, ln(d − 2), 2 · d/2, d/2^n, d − 2 · n", "31, ln(62), 2 · 64/2, 64/2^n, 64 − 2 · n"),
        ("(factor − d), d − 2⁻³, d/0", "(8 − 64), 64 − 2⁻³, 64/0"),
    ],
)
def test_numbers_stand_for_whole_words(line: str, written: str):
    assert put_in(line, {"θ": "10000", "d": "64", "dim": "64", "factor": "8"}) == written


def test_a_value_follows_the_equation_that_defines_it():
    assert with_value("a  =  b", "a", "3") == "a  =  b  =  3"
    assert with_value("x · a,   a = b + 1", "a", "3") == "x · a,   a = b + 1 = 3"
    assert with_value("a  =  3", "a", "3") == "a  =  3"
    for line in ("b = a", "a = b,   c = d", "aa = b"):
        assert with_value(line, "a", "3") is None


def test_negative_numbers_stand_in_brackets():
    assert formula_of(mp.OffsetAlibi(4, offset=-0.5)).startswith(
        "score  ←  score − slope_h · ( |p − r| − (−0.5) · [p > r] )"
    )


# Methods of one's own


@dataclass(frozen=True)
class Sloped:
    """Mine.

    score ← score − slope_h · |p − r|,   slope_h = steep · 2^(−h)
    slope_h  =  steep/(h + 1)
    """

    heads: int
    steep: float = 0.5
    relative = True

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self.steep / (head + 1) * (p - r).abs()

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        behind = self.steep / (torch.arange(self.heads) + 1)
        return Slopes(behind, behind, torch.zeros(self.heads))


@dataclass(frozen=True)
class Louder:
    """Mine.

    θ_n ← θ_n/factor
    """

    factor: float = 2.0
    powers: tuple[float, ...] = field(default=(1.0, 2.0))
    relative = True

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / self.factor

    def magnitude(self, length: Tensor) -> float:
        return 1.5


def test_slopes_that_a_method_answers_by_calling_it_are_printed():
    assert "slope_h  =  0.5, 0.25, 0.166667" in str(mp.Scheme(Sloped(3))).splitlines()[-1]


def test_a_magnitude_that_the_formula_does_not_mention_is_printed():
    printed = str(mp.Scheme(mp.Rope(8, stretch=Louder(4.0))))
    assert "Louder:  θ_n ← θ_n/4\n" in printed
    assert printed.endswith("turn(x, p)  ←  turn(x, p) · 1.5")


def test_a_part_that_does_not_keep_its_arguments_can_be_printed():
    class Forgetful(nn.Module):
        """Mine.

        score ← score + 1
        """

        relative = True

        def __init__(self, given: int, kept: int, *others: int, **more: int) -> None:
            super().__init__()
            self.kept = kept

    assert "—  Forgetful(kept=2)\n" in str(mp.Scheme(Forgetful(1, 2)))
    assert "stretch=Plain(factor=3)" in str(mp.Scheme(mp.Rope(8, stretch=Plain(3.0))))


class Plain(Louder):
    """θ_n ← θ_n/factor"""

    __repr__ = object.__repr__
