"""Every stretch of RoPE against transformers, which works in float32."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from milepost import DynamicNtk, Interpolate, Llama3, LongRope, Rope, Yarn
from tests.oracles import assert_same, inputs
from tests.stretches import LONG, SHORT, assert_ratio, stretched


def rounding(theta: float, factor: float = 1.0) -> float:
    """How far float32 takes a frequency from its value, as a ratio.

    Rounding the exponent 2n/d costs ln θ units of 2⁻²⁴, and a handful of operations one each. Where a frequency is
    blended from f and f/factor, an error of the blend weighs up to factor times as much.
    """
    return 2.0**-24 * (math.log(theta) + 12) * factor


def theirs(
    kind: str, dim: int, theta: float, length: int | None, longest: int, **parameters: Any
) -> tuple[Tensor, float]:
    """The frequencies and the factor on cos and sin that transformers computes."""
    rope = {"rope_type": kind, "rope_theta": theta, **parameters}
    config = LlamaConfig(
        hidden_size=dim, num_attention_heads=1, head_dim=dim, max_position_embeddings=longest, rope_parameters=rope
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


GRID = list(itertools.product((16, 64, 96, 128), (10000.0, 500000.0, 1000000.0)))


def assert_theirs(ours: tuple[Tensor, float], other: tuple[Tensor, float], within: float) -> None:
    assert_ratio(ours[0], other[0].double(), within)
    assert ours[1] == pytest.approx(other[1], rel=1e-12)


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 2.5, 8.0])
def test_transformers_linear(dim, theta, factor):
    other = theirs("linear", dim, theta, None, 4096, factor=factor)
    assert_theirs(stretched(Interpolate(factor), dim, theta), other, rounding(theta))


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_transformers_dynamic(dim, theta, factor):
    # Their trained length is max_position_embeddings, and their factor ours.
    for trained, length in itertools.product((512, 4096), (1, 512, 513, 4096, 5000, 65536)):
        other = theirs("dynamic", dim, theta, length, trained, factor=factor)
        raised = theta * (max(1, factor * length / trained)) ** (dim / (dim - 2))
        assert_theirs(stretched(DynamicNtk(trained, factor=factor), dim, theta, length), other, rounding(raised))


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 4.0, 40.0])
@pytest.mark.parametrize("truncate", [True, False])
def test_transformers_yarn(dim, theta, factor, truncate):
    for trained, (fast, slow) in itertools.product((256, 2048, 4096, 32768), ((32.0, 1.0), (8.0, 2.0))):
        other = theirs(
            "yarn", dim, theta, None, int(trained * factor), factor=factor, original_max_position_embeddings=trained,
            beta_fast=fast, beta_slow=slow, truncate=truncate,
        )  # fmt: skip
        ours = stretched(Yarn(factor, trained, fast=fast, slow=slow, truncate=truncate), dim, theta)
        # A ramp's end is a number up to d, rounded to float32 before the number of the pair is taken from it.
        assert_theirs(ours, other, rounding(theta, factor) + 2.0**-24 * dim * factor)


def test_transformers_yarn_of_two_channels():
    other = theirs("yarn", 2, 10000.0, None, 16384, factor=4.0, original_max_position_embeddings=4096)
    assert_theirs(stretched(Yarn(4.0, 4096), 2), other, rounding(10000.0))


@pytest.mark.parametrize(
    ("told", "factor"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
        ({"mscale_all_dim": 1.0}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
        ({"attention_factor": 1.5, "mscale": 0.707, "mscale_all_dim": 1.0}, 1.5),
    ],
)
def test_transformers_factor_on_cos_and_sin(told, factor):
    # Yarn's own factor, or the one that these settings come to, told as `scaled`.
    other = theirs("yarn", 64, 1e4, None, 163840, factor=40.0, original_max_position_embeddings=4096, **told)
    own = other[1] == stretched(Yarn(40.0, 4096), 64)[1]
    assert stretched(Yarn(40.0, 4096, scaled=None if own else factor), 64)[1] == pytest.approx(other[1], rel=1e-14)
    assert factor == pytest.approx(other[1], rel=1e-14)


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
def test_transformers_llama3(dim, theta, factor):
    for trained, (low, high) in itertools.product((512, 8192), ((1.0, 4.0), (2.0, 3.0))):
        other = theirs(
            "llama3", dim, theta, None, int(trained * factor), factor=factor, original_max_position_embeddings=trained,
            low_freq_factor=low, high_freq_factor=high,
        )  # fmt: skip
        # The blend reads the number of turns, up to `high`, over high − low.
        within = rounding(theta, factor * high / (high - low))
        assert_theirs(stretched(Llama3(factor, trained, low=low, high=high), dim, theta), other, within)


@pytest.mark.parametrize(("dim", "theta"), GRID)
@pytest.mark.parametrize("factor", [0.5, 1.0, 32.0])
def test_transformers_longrope(dim, theta, factor):
    short = [1 + n / 50 for n in range(dim // 2)]
    long = [1 + n * n / 9 for n in range(dim // 2)]
    for length in (1, 4096, 4097, 131072):
        other = theirs(
            "longrope", dim, theta, length, 131072, factor=factor, original_max_position_embeddings=4096,
            short_factor=short, long_factor=long,
        )  # fmt: skip
        ours = stretched(LongRope(short, long, 4096, factor=factor), dim, theta, length)
        assert_theirs(ours, other, rounding(theta))


MODELS: list[tuple[Any, dict[str, Any]]] = [
    (Interpolate(4.0), {"rope_type": "linear", "factor": 4.0}),
    (DynamicNtk(16, factor=2.0), {"rope_type": "dynamic", "factor": 2.0}),
    (Yarn(4.0, 16), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    (
        Llama3(8.0, 16),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    (
        LongRope(SHORT, LONG, 16, factor=4.0),
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
        },
    ),
]


@pytest.mark.parametrize(("stretch", "rope"), MODELS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("length", [10, 16, 40])
def test_llama_turns_queries_and_keys_the_same_way(stretch, rope, length):
    config = LlamaConfig(
        hidden_size=8,
        num_attention_heads=1,
        head_dim=8,
        max_position_embeddings=16,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )
    q, k, _ = (x.float() for x in inputs(t=length))
    index = torch.arange(length)
    cos, sin = LlamaRotaryEmbedding(config)(q, index[None])
    # An angle of theirs errs by its own rounding, and |x| is below 5.
    within = 5 * length * rounding(10000.0, 8.0)
    for x, oracle in zip((q, k), llama_rotary(q, k, cos, sin), strict=True):
        assert_same(Rope(8, stretch=stretch).turn(x, index), oracle, within)


def test_a_longer_text_seen_before_changes_nothing():
    # transformers goes back to the plain base only below the trained length, not at it.
    rope = Rope(8, stretch=DynamicNtk(16))
    before = rope.cos_sin(torch.arange(16))
    rope.cos_sin(torch.arange(64))
    for ours, again, unstretched_table in zip(
        before, rope.cos_sin(torch.arange(16)), Rope(8).cos_sin(torch.arange(16)), strict=True
    ):
        assert torch.equal(ours, again)
        assert torch.equal(ours, unstretched_table)
