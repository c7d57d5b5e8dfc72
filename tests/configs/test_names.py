"""The table of names: what it says of others exists there, what it says of milepost runs, and the page is the table."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from x_transformers.x_transformers import AlibiPositionalBias, RotaryEmbedding, apply_rotary_pos_emb

import milepost as mp
from milepost.configs.names import NAMES, Name, page
from milepost.seams.known import exports
from tests.oracles import assert_same, inputs

ALL = [name for names in NAMES.values() for name in names]
PAGE = Path(__file__).parent.parent.parent / "docs" / "names.md"


def installed(library: str) -> list[Name]:
    return [name for name in ALL if name.where.startswith(library)]


def exists(name: Name) -> bool:
    """Whether the name is a key, an argument, a field or an attribute of what holds it."""
    place, _, inside = name.where.partition(":")
    holder: Any = importlib.import_module(place)
    for step in filter(None, inside.split(".")):
        holder = getattr(holder, step)
    if isinstance(holder, dict):
        return name.theirs in holder
    if inspect.isclass(holder) and issubclass(holder, dict):
        return name.theirs in get_type_hints(holder)
    known = set(inspect.signature(holder).parameters) if callable(holder) else set()
    return name.theirs in known or hasattr(holder, name.theirs)


@pytest.mark.parametrize("name", installed("transformers"), ids=lambda name: f"{name.theirs}-{name.where[-20:]}")
def test_the_name_exists_in_transformers(name):
    assert exists(name)


@pytest.mark.parametrize("name", installed("x_transformers"), ids=lambda name: name.theirs)
def test_the_argument_exists_in_x_transformers(name):
    assert exists(name)


def test_a_name_that_is_not_there_would_be_caught():
    rope = "transformers.modeling_rope_utils:"
    for where in ("transformers:LlamaConfig", f"{rope}RopeParameters", f"{rope}ROPE_INIT_FUNCTIONS", "transformers"):
        assert not exists(Name("rope_thetas", where, "Rope(64)"))


@pytest.mark.parametrize("ours", sorted({name.ours for name in ALL}))
def test_the_example_runs(ours):
    assert eval(ours, exports()) is not None


def test_the_page_is_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m milepost.configs.names > docs/names.md"


def test_every_library_has_its_names():
    assert {title: len(names) >= 10 for title, names in NAMES.items()} == dict.fromkeys(NAMES, True)
    assert len(installed("transformers")) > 50


def test_no_name_is_given_twice():
    assert len({(name.theirs, name.where) for name in ALL}) == len(ALL)


# What the table says of x-transformers' rotation and slopes, computed.


@pytest.mark.parametrize(
    ("ours", "settings"),
    [
        (mp.Rope(32, pairs="neighbours"), {}),
        (mp.Rope(32, pairs="neighbours", stretch=mp.Interpolate(4.0)), {"interpolation_factor": 4.0}),
        (mp.Rope(32, pairs="neighbours", stretch=mp.Ntk(4.0)), {"base_rescale_factor": 4.0}),
    ],
    ids=["plain", "interpolation", "rescaled"],
)
def test_x_transformers_turns_half_of_each_head(ours, settings):
    q = inputs(t=40, d=64)[0].float()
    index = torch.arange(40)
    oracle = apply_rotary_pos_emb(q, RotaryEmbedding(32, **settings)(index)[0])
    assert_same(mp.Partial(ours, of=64).turn(q.double(), index), oracle, 5 * 40 * 2.0**-24 * 22)


def test_x_transformers_slopes():
    for heads in (8, 12):
        bias = AlibiPositionalBias(heads)(20, 20)
        assert_same(mp.Scheme(mp.Alibi(heads)).bias(torch.arange(20), torch.arange(20)), bias[None], 20 * 2.0**-22)
