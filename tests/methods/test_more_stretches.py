"""p-RoPE, NTK-mixed and dynamic linear scaling against their formulas and against the other stretches."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig

from milepost import (
    DynamicLinear,
    Interpolate,
    Nope,
    NtkMixed,
    Partial,
    Proportional,
    Rope,
    Scheme,
    attend,
    causal,
)
from tests.oracles import assert_same, inputs, plain
from tests.stretches import Oracle, assert_ratio, stretched, stretched_score, unstretched

# The formulas. Each maps (dim, theta, length) to the frequencies and the factor on cos and sin.


def proportional(share: float, factor: float = 1.0) -> Oracle:
    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        kept = math.floor(share * d / 2)
        return [f / factor if n < kept else 0.0 for n, f in enumerate(unstretched(d, theta))], 1.0

    return answer


def mixed(k: float, b: float) -> Oracle:
    """Su's θ_i · exp(−a · (i + 1)^b) with a = ln k / (d/2)^b."""

    def answer(d: int, theta: float, length: int) -> tuple[list[float], float]:
        a = math.log(k) / (d / 2) ** b
        return [f * math.exp(-a * (i + 1) ** b) for i, f in enumerate(unstretched(d, theta))], 1.0

    return answer


def dynamic_linear(trained: int) -> Oracle:
    """Past the trained length, positions are multiplied by trained/length."""
    return lambda d, theta, length: ([f * min(1.0, trained / length) for f in unstretched(d, theta)], 1.0)


STRETCHES: list[tuple[Any, Oracle]] = [
    (Proportional(0.5), proportional(0.5)),
    (Proportional(0.8, factor=3.0), proportional(0.8, 3.0)),
    (NtkMixed(8), mixed(8, 0.625)),
    (NtkMixed(12, b=0.75), mixed(12, 0.75)),
    (NtkMixed(0.5, b=2), mixed(0.5, 2)),
    (DynamicLinear(5), dynamic_linear(5)),
    (DynamicLinear(5000), dynamic_linear(5000)),
]


@pytest.mark.parametrize(("stretch", "oracle"), STRETCHES)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_scores_under_each_stretch(stretch, oracle, pairs):
    q, k, v = inputs(t=7, s=12, d=8, dv=5)
    ours = attend(q, k, v, Scheme(Rope(8, theta=50.0, pairs=pairs, stretch=stretch), causal))
    assert_same(ours, plain(q, k, v, stretched_score(q, k, oracle, 50.0, pairs)))


@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("trained", [2048, 8192])
@pytest.mark.parametrize("factor", [2, 32])
def test_frequencies_of_real_models(dim, theta, trained, factor):
    for length in (trained // 2, trained, trained + 1, factor * trained):
        for stretch, oracle in (
            (NtkMixed(factor), mixed(factor, 0.625)),
            (NtkMixed(factor, b=1), mixed(factor, 1)),
            (DynamicLinear(trained), dynamic_linear(trained)),
        ):
            frequencies, size = stretched(stretch, dim, theta, length)
            assert_ratio(frequencies, oracle(dim, theta, length)[0])
            assert size == pytest.approx(1.0, rel=1e-15)


# p-RoPE


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.99, 1.0])
@pytest.mark.parametrize("dim", [2, 16, 96, 128])
def test_only_the_fastest_pairs_turn(dim, share):
    frequencies, size = stretched(Proportional(share), dim)
    expected = torch.tensor(proportional(share)(dim, 10000.0, 1)[0], dtype=torch.float64)
    assert_same(frequencies, expected)
    assert int((frequencies > 0).sum()) == math.floor(share * dim / 2)
    assert size == 1.0


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_transformers_proportional(share, factor):
    for dim, theta in itertools.product((16, 64, 96, 128), (10000.0, 1000000.0)):
        rope = {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": share, "factor": factor}
        config = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim, rope_parameters=rope)
        theirs, size = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
        ours, magnitude = stretched(Proportional(share, factor=factor), dim, theta)
        assert magnitude == size == 1.0
        assert torch.equal(theirs == 0, ours == 0)
        # Rounding the exponent to float32 costs ln θ units of 2⁻²⁴, the power and both divisions a few more.
        turning = ours > 0
        assert_ratio(ours[turning], theirs[turning].double(), within=2.0**-24 * (math.log(theta) + 12))


def test_a_share_of_one_is_rope_and_of_none_is_no_position():
    q, k, v = inputs(t=9)
    whole, none = (attend(q, k, v, Scheme(Rope(8, stretch=Proportional(share)), causal)) for share in (1.0, 0.0))
    assert_same(whole, attend(q, k, v, Scheme(Rope(8), causal)))
    assert_same(none, attend(q, k, v, Scheme(Nope(), causal)))


def test_it_is_a_partial_rotation_with_a_smaller_base():
    # Partial spreads its exponents over the channels that turn, p-RoPE over all; neighbours stand first either way.
    x, index = inputs(t=7, d=16)[0], torch.arange(7)
    ours = Rope(16, pairs="neighbours", stretch=Proportional(0.75)).turn(x, index)
    assert_same(ours, Partial(Rope(12, theta=10000.0**0.75, pairs="neighbours"), of=16).turn(x, index))
    other = Partial(Rope(12, pairs="neighbours"), of=16).turn(x, index)
    assert float((ours - other).abs().max()) > 0.1


# NTK-mixed


@pytest.mark.parametrize("factor", [2, 8, 12.5])
@pytest.mark.parametrize("dim", [2, 16, 128])
def test_an_exponent_of_one_is_ntk_fixed(dim, factor):
    # θ_i / λ^(i + 1), λ = k^(2/d)
    fixed = [f / (factor ** (2 / dim)) ** (i + 1) for i, f in enumerate(unstretched(dim, 10000.0))]
    assert_ratio(stretched(NtkMixed(factor, b=1), dim)[0], fixed)


@pytest.mark.parametrize("factor", [2, 8, 12.5])
def test_an_exponent_of_zero_is_interpolation(factor):
    assert_ratio(stretched(NtkMixed(factor, b=0))[0], stretched(Interpolate(factor))[0])


@pytest.mark.parametrize("b", [0, 0.3, 0.625, 0.75, 1, 3])
def test_the_last_pair_is_slowed_by_the_whole_factor_and_the_first_by_least(b):
    slowed = stretched(None)[0] / stretched(NtkMixed(8, b=b))[0]
    assert float(slowed[-1]) == pytest.approx(8, rel=1e-14)
    assert float(slowed[0]) == pytest.approx(8 ** (2 / 128) ** b, rel=1e-14)
    assert bool((slowed.diff() >= -1e-12).all())


def test_the_default_is_the_posts_exponent():
    assert NtkMixed(8) == NtkMixed(8, b=0.625)


# Dynamic linear


@pytest.mark.parametrize("length", [1, 4095, 4096])
def test_within_the_trained_length_nothing_changes(length):
    assert torch.equal(stretched(DynamicLinear(4096), length=length)[0], stretched(None)[0])


@pytest.mark.parametrize("length", [4097, 10000, 131072])
def test_past_it_the_positions_are_squeezed_into_the_trained_range(length):
    assert_ratio(stretched(DynamicLinear(4096), length=length)[0], stretched(Interpolate(length / 4096))[0])
    last = torch.tensor([float(length)], dtype=torch.float64)
    x = inputs(b=1, t=1)[0]
    squeezed = Rope(8, stretch=DynamicLinear(4096)).turn(x, last, length=length)
    assert_same(squeezed, Rope(8).turn(x, torch.tensor([4096])), within=1e-11)


def test_each_document_is_squeezed_by_its_own_length():
    q, k, v = inputs(b=1, t=13, d=8)
    documents = torch.tensor([0] * 9 + [1] * 4)
    scheme = Scheme(Rope(8, theta=50.0, stretch=DynamicLinear(5)), causal)
    ours = attend(q, k, v, scheme, documents=documents)
    for rows in (slice(0, 9), slice(9, 13)):
        one, two, three = (x[:, :, rows] for x in (q, k, v))
        score = stretched_score(one, two, dynamic_linear(5), 50.0, "halves")
        assert_same(ours[:, :, rows], plain(one, two, three, score))


@pytest.mark.parametrize("length", [4, 12])
def test_the_length_may_be_told_in_any_form(length):
    rope, index = Rope(8, stretch=DynamicLinear(5)), torch.arange(length)
    untold = rope.cos_sin(index, dtype=torch.float64)
    batched = rope.cos_sin(index.expand(2, -1), torch.full((2, 1), length), dtype=torch.float64)
    for told in (length, torch.tensor([length]), torch.full((length,), length)):
        for ours, oracle in zip(rope.cos_sin(index, told, dtype=torch.float64), untold, strict=True):
            assert_same(ours, oracle)
    for ours, oracle in zip(batched, untold, strict=True):
        assert_same(ours, oracle.expand(2, -1, -1))


# All of them


def turned(stretch: object) -> Tensor:
    return Rope(8, stretch=stretch).turn(inputs(t=9)[0], torch.arange(9))  # pyright: ignore


@pytest.mark.parametrize(
    "stretch",
    [Proportional(1.0), NtkMixed(1), NtkMixed(1, b=0), DynamicLinear(64)],
)
def test_neutral_stretches_change_nothing(stretch):
    assert_same(turned(stretch), turned(None))


@pytest.mark.parametrize("stretch", [each for each, _ in STRETCHES[::3]])
def test_a_stretch_is_no_part_of_a_scheme(stretch):
    with pytest.raises(TypeError, match=r"is not a part of a scheme, it stretches a rotation: Rope\(dim, stretch="):
        Scheme(stretch)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "text"),
    [
        (Proportional, {"share": -0.1}, ValueError, r"Proportional\(share=-0.1\): share must be at least 0"),
        (
            Proportional,
            {"share": 1.5},
            ValueError,
            r"Proportional\(share=1.5\): share is a part of the pairs",
        ),
        (Proportional, {"share": math.nan}, ValueError, "share must be finite"),
        (Proportional, {"share": "half"}, TypeError, "share must be a number, not str"),
        (Proportional, {"share": True}, TypeError, "share must be a number, not bool"),
        (Proportional, {"factor": 0}, ValueError, r"Proportional\(factor=0\): factor must be greater than 0"),
        (Proportional, {"factor": math.inf}, ValueError, "factor must be finite"),
        (NtkMixed, {"factor": 0}, ValueError, r"NtkMixed\(factor=0\): factor must be greater than 0"),
        (NtkMixed, {"factor": -8.0}, ValueError, "factor must be greater than 0"),
        (NtkMixed, {"factor": math.nan}, ValueError, "factor must be finite"),
        (NtkMixed, {"b": -1}, ValueError, r"NtkMixed\(b=-1\): b must be at least 0"),
        (NtkMixed, {"b": math.inf}, ValueError, "b must be finite"),
        (NtkMixed, {"b": None}, TypeError, "b must be a number, not NoneType"),
        (DynamicLinear, {"trained": 0}, ValueError, r"DynamicLinear\(trained=0\): trained must be at least 1"),
        (DynamicLinear, {"trained": -5}, ValueError, "trained must be at least 1"),
        (DynamicLinear, {"trained": 4096.0}, TypeError, "trained must be an integer, not float"),
    ],
)
def test_wrong_arguments_are_refused(kind, arguments, error, text):
    rest: dict[Any, dict[str, Any]] = {
        Proportional: {"share": 0.5},
        NtkMixed: {"factor": 8},
        DynamicLinear: {},
    }
    with pytest.raises(error, match=text):
        kind(**(rest[kind] | arguments))
