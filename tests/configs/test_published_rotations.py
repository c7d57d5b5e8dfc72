"""The rotations of published models, read from their config.json, are the ones transformers computes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from milepost import AxialRope, Rope, Schedule
from tests.configs import theirs
from tests.configs.ours import bound, read, scores_agree
from tests.configs.published import ROTARY
from tests.oracles import assert_same, inputs
from tests.stretches import assert_ratio


def layers_of(plain: dict[str, Any]) -> list[int]:
    """One layer of each kind that turns."""
    schedule = Schedule.of(plain)
    firsts = {number: schedule.order.index(number) for number in schedule.order}
    return [layer for layer in firsts.values() if schedule[layer].answering("turn")]


# GPT-J and CodeGen have no frequencies to read, only a table; the scores below read it.
@pytest.mark.parametrize("name", [each for each in ROTARY if each not in ("gpt-j-6b", "codegen-350M")])
def test_frequencies_and_magnitude(name):
    config = theirs.config_of(ROTARY[name])
    for layer in layers_of(ROTARY[name]):
        turn = Rope.of(ROTARY[name], layer=layer)
        f, size = theirs.frequencies(config, layer)
        ours, ours_size = read(turn)
        assert_ratio(ours, f, bound(turn))
        assert ours_size == pytest.approx(size, rel=1e-14)


@pytest.mark.parametrize("name", ROTARY)
def test_scores_of_turned_queries_and_keys(name):
    config = theirs.config_of(ROTARY[name])
    for layer in layers_of(ROTARY[name]):
        scores_agree(Rope.of(ROTARY[name], layer=layer), config, layer)


def test_a_long_text_takes_the_long_factors():
    plain = ROTARY["Phi-3.5-mini"]
    for length in (4096, 4097):
        f, size = theirs.frequencies(theirs.config_of(plain), length=length)
        ours, ours_size = read(Rope.of(plain), length)
        assert_ratio(ours, f, bound(Rope.of(plain)))
        assert ours_size == pytest.approx(size, rel=1e-14)


@pytest.mark.parametrize("name", ["Qwen2-VL-7B", "Qwen3-VL-8B"])
def test_coordinates_of_images_turn_their_own_pairs(name):
    config, turn = theirs.config_of(ROTARY[name]), Rope.of(ROTARY[name])
    assert isinstance(turn, AxialRope)
    q, k, _ = (x.float() for x in inputs(b=1, h=1, g=1, t=9, d=128))
    position = torch.randint(20, (1, 9, 3), generator=torch.Generator().manual_seed(1))
    table = theirs.embedding(config)(q, position.permute(2, 0, 1))
    for x, oracle in zip((q, k), theirs.modeling(config).apply_rotary_pos_emb(q, k, *table), strict=True):
        assert_same(turn.turn(x.double(), position), oracle, 5 * 20 * bound(turn) + 2.0**-21)


def test_the_config_is_left_as_it_was():
    before = copy.deepcopy(ROTARY)
    for plain in ROTARY.values():
        Schedule.of(plain)
    assert before == ROTARY
