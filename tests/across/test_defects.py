"""Defects 1 to 5 that are in other libraries' releases today, one test or more for each, by its number in our list."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import milepost as mp
from tests.exact import TRAINED, exact_turns, last_row, phase_error, unit_pairs
from tests.oracles import assert_same, inputs

# 1. In bfloat16, positions 512 and 513 turned alike, and one bfloat16 call spoiled a cache for later float32 calls.


@pytest.mark.parametrize("make", [mp.Rope, mp.Xpos, lambda dim: mp.AxialRope(dim, (dim // 2,))])
def test_defect_1_bfloat16_queries_at_512_and_513_turn_differently(make: Callable[[int], Any]):
    positions = torch.tensor([512, 513])
    q = inputs(b=1, h=2, t=1, d=64)[0].bfloat16().expand(1, 2, 2, 64)
    turned = make(64).turn(q, positions)
    assert turned.dtype == torch.bfloat16
    one, other = turned.float().unbind(2)
    assert (one - other).abs().max() > 0.1
    # What is left is the rounding of the result: half a step of 8 bits.
    whole = make(64).turn(q.double(), positions)
    assert ((turned.double() - whole).abs() <= 2.0**-8 * whole.abs() + 2.0**-30).all()


def test_defect_1_a_bfloat16_call_leaves_later_float32_calls_as_they_were():
    scheme = mp.Scheme(mp.Rope(64), mp.causal)
    positions = list(range(507, 516))
    at = torch.tensor(positions)
    q, k, v = (each.bfloat16() for each in inputs(t=9, d=64))
    told = {"position": at, "key_position": at}
    # The low precision comes first, so that whatever it leaves behind is there to be found.
    mp.attend(q, k, v, scheme, **told)
    scheme.turn(q, at)
    with torch.autocast("cpu", torch.bfloat16):
        mp.attend(q.float(), k.float(), v.float(), scheme, **told)
        scheme.turn(q.float(), at)
    turned = scheme.turn(unit_pairs(64, 9, torch.float32), at)
    assert turned.dtype == torch.float32
    assert phase_error(turned, *exact_turns(positions, 64)) < 2e-7


# 2. The same aliasing after model.bfloat16().


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeds = mp.Scheme(mp.Sinusoidal(8))
        self.turns = mp.Schedule([mp.Scheme(mp.Rope(8), mp.causal), mp.Scheme(mp.Xpos(8), mp.causal)])
        self.bends = mp.Scheme(mp.Alibi(4), mp.causal)
        self.out = nn.Linear(8, 8)


@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.half, lambda model: model.to(torch.float8_e4m3fn)])
def test_defect_2_casting_a_model_does_not_touch_its_positions(cast: Callable[[nn.Module], nn.Module]):
    model = Model()
    cast_model = cast(copy.deepcopy(model))
    assert cast_model.out.weight.dtype != torch.float32
    q, k, v = (each.float() for each in inputs(t=6))
    index = torch.tensor([1, 257, 512, 513, 2049, 4097])
    for ours, theirs in zip([*model.turns, model.bends], [*cast_model.turns, cast_model.bends], strict=True):
        told = {"index": index, "key_index": index}
        assert torch.equal(mp.attend(q, k, v, ours, **told), mp.attend(q, k, v, theirs, **told))
    x = torch.zeros(1, 6, 8)
    assert torch.equal(model.embeds.embed(x, index), cast_model.embeds.embed(x, index))
    assert (cast_model.embeds.embed(x, index)[0, 2] - cast_model.embeds.embed(x, index)[0, 3]).abs().max() > 0.1


# 3. After .bfloat16() phases were wrong by up to 160 rad at position 131,071.


def test_defect_3_phases_at_131071_are_exact_after_a_cast_to_bfloat16():
    scheme = mp.Scheme(mp.Rope(64), mp.causal).bfloat16()
    positions = [131_070, 131_071]
    cos, sin = exact_turns(positions, 64)
    turned = scheme.turn(unit_pairs(64, 2, torch.float32), torch.tensor(positions))
    assert phase_error(turned, cos, sin) < 2e-7
    # In bfloat16 only the result is rounded: half a step of 8 bits.
    turned = scheme.turn(unit_pairs(64, 2, torch.bfloat16), torch.tensor(positions))
    assert phase_error(turned, cos, sin) < 2.0**-8


def test_defect_3_frequencies_kept_in_bfloat16_would_be_seen():
    positions = [131_071]
    cos, sin = exact_turns(positions, 64)
    rounded = (10000.0 ** (-torch.arange(0, 64, 2) / 64)).bfloat16().double() * 131_071
    assert phase_error(torch.cat((rounded.cos(), rounded.sin()))[None, None, None], cos, sin) > 1.0


# 4. With a stretch that follows the length, cached decoding differed from a fresh pass.


FOLLOWING = {
    "dynamic NTK": mp.DynamicNtk(TRAINED),
    "dynamic NTK, factor 4": mp.DynamicNtk(TRAINED, factor=4.0),
    "dynamic YaRN": mp.DynamicYarn(TRAINED, ramp="paper", fast=0.6, slow=0.1),
    "LongRoPE": mp.LongRope((1.0, 1.1, 1.3, 1.6), (1.5, 2.0, 4.0, 8.0), TRAINED, factor=4.0),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_defect_4_decoding_past_the_trained_length_equals_a_fresh_pass_at_every_step(name: str):
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=FOLLOWING[name]), mp.causal)
    q, k, v = inputs(t=14)
    cache = mp.Cache()
    for i in range(14):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        step = mp.attend(q[:, :, i : i + 1], cache.keys, cache.values, scheme, key_index=cache.index)
        seen = slice(0, i + 1)
        assert_same(step, mp.attend(q[:, :, seen], k[:, :, seen], v[:, :, seen], scheme)[:, :, -1:])
        assert_same(step, last_row(name, q[:, :, seen], k[:, :, seen], v[:, :, seen]))


@pytest.mark.parametrize("name", FOLLOWING)
def test_defect_4_keys_cached_after_turning_would_be_seen(name: str):
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=FOLLOWING[name]), mp.causal)
    q, k, v = inputs(t=14)
    turned = [scheme.turn(k[:, :, j : j + 1], torch.tensor([j]), "key", j + 1) for j in range(14)]
    mine = scheme.turn(q[:, :, 13:], torch.tensor([13]), "query", 14)
    step = mp.attend(mine, torch.cat(turned, 2), v, mp.Scheme(mp.causal))
    assert (step - mp.attend(q, k, v, scheme)[:, :, -1:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", FOLLOWING)
def test_defect_4_a_prompt_and_then_steps_equal_a_fresh_pass(name: str):
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=FOLLOWING[name]), mp.causal)
    q, k, v = inputs(t=9)
    cache = mp.Cache()
    cache.append(k[:, :, :4], v[:, :, :4])
    for i in range(4, 9):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
    step = mp.attend(q[:, :, 8:], cache.keys, cache.values, scheme, key_index=cache.index)
    assert_same(step, last_row(name, q, k, v))


# 5. float32 phases drifted by 0.03 rad at a million positions and by 0.77 rad at ten million.


@pytest.mark.parametrize("position", [1_000_003, 9_999_991])
def test_defect_5_phases_do_not_drift_at_millions_of_positions(position: int):
    cos, sin = exact_turns([position], 64)
    at = torch.tensor([position])
    for method in (mp.Rope(64), mp.AxialRope(64, (32,)), mp.Partial(mp.Rope(64), of=64)):
        assert phase_error(method.turn(unit_pairs(64, 1, torch.float32), at), cos, sin) < 2e-7
        # Ten million times a frequency good to 16 digits.
        assert phase_error(method.turn(unit_pairs(64, 1, torch.float64), at), cos, sin) < 1e-8
    waves = mp.Sinusoidal(64, layout="concatenated").embed(torch.zeros(1, 1, 64), at)[0]
    assert_same(waves, torch.cat((sin, cos), -1), within=1e-7)


def test_defect_5_float32_angles_would_be_seen():
    cos, sin = exact_turns([9_999_991], 64)
    angle = 9_999_991.0 * 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    assert phase_error(torch.cat((angle.cos(), angle.sin()))[None, None, None], cos, sin) > 0.1


def test_defect_5_scores_at_ten_million_are_those_at_zero():
    q, k, v = (each.float() for each in inputs(t=12))
    far = torch.arange(12) + 10_000_000
    scheme = mp.Scheme(mp.Rope(8), mp.causal)
    here = mp.attend(q, k, v, scheme)
    assert_same(mp.attend(q, k, v, scheme, position=far, key_position=far), here, within=2e-6)
