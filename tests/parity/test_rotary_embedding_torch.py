"""rotary-embedding-torch 0.9.1 turns neighbours, in float32; given float64 frequencies it can be met exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from milepost import FusedRope, Interpolate, LearnedRope, Ntk, Partial, Rope, Scheme, Xpos, attend, causal
from tests.oracles import assert_same, hidden_future, inputs

rotary = pytest.importorskip("rotary_embedding_torch")

T = 200


def falling(dim: int = 32, theta: float = 10000.0) -> Tensor:
    return theta ** (-torch.arange(0, dim, 2).double() / dim)


def exact(frequencies: Tensor, **options: Any) -> Any:
    """Their module with frequencies and tables in float64."""
    return rotary.RotaryEmbedding(2 * len(frequencies), custom_freqs=frequencies, **options).double()


def rope(**options: Any) -> Rope:
    return Rope(32, pairs="neighbours", **options)


def rounding(x: Tensor, theta: float) -> float:
    """How far float32 takes a turned channel, at positions below T.

    A frequency rounded to float32 costs ln θ + 4 units of 2⁻²⁴ of an angle, the product one more; cosine, sine, two
    products and a sum then cost five units of channels up to √2 · max|x|.
    """
    return 2.0**-24 * (T * (math.log(theta) + 5) + 5) * math.sqrt(2) * float(x.abs().max())


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_as_shipped_to_the_rounding_of_float32(theta):
    x = inputs(t=T, d=32)[0].float()
    theirs = rotary.RotaryEmbedding(32, theta=theta).rotate_queries_or_keys(x)
    assert_same(rope(theta=theta).turn(x, torch.arange(T)), theirs, within=rounding(x, theta))


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_theta_rescale_factor_is_ntk(factor):
    x = inputs(t=T, d=32)[0].float()
    theirs = rotary.RotaryEmbedding(32, theta_rescale_factor=factor).rotate_queries_or_keys(x)
    ours = rope(stretch=Ntk(factor)).turn(x, torch.arange(T))
    assert_same(ours, theirs, within=rounding(x, 10000.0 * factor ** (32 / 30)))
    assert float((ours - rope().turn(x, torch.arange(T))).abs().max()) > 0.5


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_interpolate_factor_is_interpolation(factor):
    x = inputs(t=T, d=32)[0].float()
    theirs = rotary.RotaryEmbedding(32, interpolate_factor=factor).rotate_queries_or_keys(x)
    ours = rope(stretch=Interpolate(factor)).turn(x, torch.arange(T))
    assert_same(ours, theirs, within=rounding(x, 10000.0))
    x = x.double()
    theirs = exact(falling(), interpolate_factor=factor).rotate_queries_or_keys(x)
    assert_same(rope(stretch=Interpolate(factor)).turn(x, torch.arange(T)), theirs)


def test_with_float64_frequencies_they_are_the_same():
    x = inputs(t=T, d=32)[0]
    theirs = exact(falling()).rotate_queries_or_keys(x)
    assert_same(rope().turn(x, torch.arange(T)), theirs)


@pytest.mark.parametrize("offset", [1, 7, 1000])
def test_an_offset_is_a_position(offset):
    x = inputs(t=9, d=32)[0]
    theirs = exact(falling()).rotate_queries_or_keys(x, offset=offset)
    assert_same(rope().turn(x, torch.arange(offset, offset + 9)), theirs)


def test_any_frequencies_of_theirs_are_those_of_fused_rope():
    x, frequencies = inputs(t=9)[0], torch.tensor([0.7, -0.3, 0.0, 2.5], dtype=torch.float64)
    theirs = exact(frequencies).rotate_queries_or_keys(x)
    for side in ("query", "key", "value"):
        assert_same(FusedRope(8, frequencies=tuple(frequencies.tolist())).turn(x, torch.arange(9), side), theirs)


def test_fewer_channels_turn_in_part():
    x = inputs(t=9, d=48)[0]
    theirs = exact(falling()).rotate_queries_or_keys(x)
    assert_same(Partial(rope(), of=48).turn(x, torch.arange(9)), theirs)


def test_cached_keys_are_met_by_the_last_queries():
    q, k, v = inputs(b=1, g=4, t=3, s=9, d=32)
    one, two = exact(falling()).rotate_queries_with_cached_keys(q, k)
    hidden = hidden_future(9)[-3:]
    theirs = ((one @ two.mT) / math.sqrt(32) + hidden).softmax(-1) @ v
    assert_same(attend(q, k, v, Scheme(rope(), causal)), theirs)


def test_learned_frequencies_have_the_same_gradient():
    q, k, v = inputs(b=1, g=4, t=9)
    frequencies = falling(8, 50.0)
    theirs = exact(frequencies, learned_freq=True)
    scores = theirs.rotate_queries_or_keys(q) @ theirs.rotate_queries_or_keys(k).mT
    ((scores / math.sqrt(8) + hidden_future(9)).softmax(-1) @ v).square().sum().backward()
    method = LearnedRope(8, theta=50.0, pairs="neighbours").double()
    attend(q, k, v, Scheme(method, causal)).square().sum().backward()
    assert method.offset.grad is not None
    size = theirs.freqs.grad.abs().max()
    assert float(size) > 0.1
    assert_same(method.offset.grad / size, theirs.freqs.grad / size)


@pytest.mark.parametrize("fade", [512.0, 40.0])
def test_xpos_scores_are_the_same(fade):
    # Their positions are counted from the middle, which cancels between queries and keys.
    q, k, v = inputs(b=1, g=4, t=20, d=32)
    theirs = exact(falling(), use_xpos=True, xpos_scale_base=fade)
    one, two = theirs.rotate_queries_and_keys(q, k)
    scores = one @ two.mT / math.sqrt(32) + hidden_future(20)
    ours = attend(q, k, v, Scheme(Xpos(32, fade=fade), causal))
    # Their ζ are rounded to float32: ζ^(distance/fade) errs by distance/fade units for each of the 2⁻²⁴ in ζ (three
    # roundings), and a score by as much of |q||k|/√d.
    apart = 3 * 2.0**-24 * 20 / fade * float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) / math.sqrt(32)
    assert_same(ours, scores.softmax(-1) @ v, within=2 * math.expm1(2 * apart) * float(v.abs().max()))
    # With ζ in float64 nothing is left between them.
    theirs = exact(falling(), use_xpos=True, xpos_scale_base=fade)
    theirs.scale = (torch.arange(0, 32, 2).double() + 0.4 * 32) / (1.4 * 32)
    one, two = theirs.rotate_queries_and_keys(q, k)
    assert_same(ours, (one @ two.mT / math.sqrt(32) + hidden_future(20)).softmax(-1) @ v)
