"""The page of each method: whole, within the width, and true to the signature."""

from __future__ import annotations

import inspect
import io
import re

import pytest
from rich.console import Console

import milepost as mp
from milepost.backends import BACKENDS
from milepost.catalogue.page import page
from milepost.catalogue.sheet import Sheet, sheets

SHEETS = {sheet.name: sheet for sheet in sheets()}


def page_of(sheet: Sheet, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), markup=False, highlight=False, emoji=False)
    page(console, sheet)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # pyright: ignore


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", SHEETS)
def test_a_page_keeps_to_the_width_and_loses_no_word(name: str, width: int):
    sheet = SHEETS[name]
    printed = page_of(sheet, width)
    assert max(map(len, printed.splitlines())) <= width
    sentences = " ".join((sheet.about, sheet.paper, sheet.link, *sheet.composes, *sheet.refusals.values()))
    assert set(sentences.split()) <= set(printed.split())
    assert all(f"  {line}".rstrip() in printed.splitlines() for line in sheet.example.splitlines())


def test_a_page_says_what_it_should():
    printed = page_of(SHEETS["Rope"], 90)
    assert printed.startswith(
        'Rope\nRope(head_dim: int, *, theta: float = 10000.0, pairs: "halves" | "neighbours" = "halves",\n'
        "    stretch: Stretch | None = None)\n\nRotate pair n of the channels by position · θ^(−2n/d).\n"
    )
    for fact in (
        "seam      Turns",
        "verbs     turn: acts on queries, keys or values, before the dot product",
        "facets    cos_sin: turns pairs of channels by cosines and sines, and does nothing else",
        "paper     Su et al., 2021, arXiv:2104.09864\n          https://arxiv.org/abs/2104.09864",
        "relative  yes: shifting all positions changes nothing",
        "learned   no",
        f"backends  {', '.join(BACKENDS)}",
    ):
        assert f"\n{fact}\n" in printed


def test_a_page_says_why_a_backend_refuses():
    printed = page_of(SHEETS["Cope"], 99)
    assert "not flex: it modifies whole rows of scores, and FlexAttention shows one at a time" in printed


def test_a_page_counts_what_is_learned():
    assert "key_table [33 64], value_table [33 64]: 4,224 parameters in the example" in page_of(SHEETS["Shaw"], 99)


def test_every_signature_can_be_read_back():
    for name, sheet in SHEETS.items():
        if sheet.arguments is not None:
            words_of = re.findall(r"(?:^|, )\**(\w+)(?=:|,|=|$)", ", ".join(sheet.arguments))
            assert set(inspect.signature(getattr(mp, name)).parameters) <= set(words_of), name
            assert " at 0x" not in str(sheet.arguments)
            assert "typing." not in str(sheet.arguments)


def test_a_formula_that_is_wrapped_hangs():
    lines = page_of(SHEETS["Yarn"], 80).splitlines()
    at = next(n for n, line in enumerate(lines) if line.endswith("= fast and slow"))
    assert lines[at].startswith("    ramp=")
    assert lines[at + 1] == "        turns, within 0 … d − 1"
    # What fits is one line, and no formula begins where the rest of another is.
    wide = page_of(SHEETS["Yarn"], 100).splitlines()
    assert any(line.endswith("= fast and slow turns, within 0 … d − 1") for line in wide)
