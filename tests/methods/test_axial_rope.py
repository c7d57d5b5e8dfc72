"""Axial RoPE and M-RoPE (arXiv:2409.12191): every pair turns by one coordinate of where its token stands."""

from __future__ import annotations

import cmath
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLRotaryEmbedding,
    Qwen2VLVisionRotaryEmbedding,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from milepost import Alibi, AxialRope, DynamicNtk, Ntk, Rope, Scheme, Yarn, attend, causal
from tests.oracles import Score, assert_same, inputs, plain

# The axis of each pair, written out.
LAYOUTS = [
    ("blocks", (1, 2, 3), [0, 1, 1, 2, 2, 2]),
    ("blocks", (4, 2), [0, 0, 0, 0, 1, 1]),
    ("blocks", (6,), [0, 0, 0, 0, 0, 0]),
    ("interleaved", (2, 2, 2), [0, 1, 2, 0, 1, 2]),
    ("interleaved", (4, 1, 1), [0, 1, 2, 0, 0, 0]),
    ("interleaved", (3, 2, 1), [0, 1, 2, 0, 1, 0]),
    ("interleaved", (3, 3), [0, 1, 0, 1, 0, 1]),
]


def axial_score(
    q: Tensor, k: Tensor, p: Tensor, r: Tensor, axis: list[int], frequency: list[float], pairs: str
) -> Score:
    """The score of one pair of tokens under a causal mask; p and r are [b t axes]."""
    d, group, behind = q.shape[-1], q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i + behind:
            return -math.inf
        a, c, total = q[b, h, i].tolist(), k[b, h // group, j].tolist(), 0.0
        for n in range(d // 2):
            one, two = (n, n + d // 2) if pairs == "halves" else (2 * n, 2 * n + 1)
            turn = cmath.exp(1j * float(p[b, i, axis[n]] - r[b, j, axis[n]]) * frequency[n])
            total += (complex(a[one], a[two]) * complex(c[one], -c[two]) * turn).real
        return total / math.sqrt(d)

    return score


def places(n: int, axes: int, seed: int = 3) -> Tensor:
    return torch.randint(0, 40, (2, n, axes), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("order", "sections", "axis"), LAYOUTS)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_each_pair_turns_by_its_own_coordinate(order, sections, axis, pairs):
    q, k, v = inputs(t=5, s=7, d=12, dv=3)
    p, r = places(5, len(sections)), places(7, len(sections), seed=4)
    frequency = [100.0 ** (-n / 6) for n in range(6)]
    scheme = Scheme(AxialRope(12, sections, theta=100.0, order=order, pairs=pairs), causal)
    oracle = plain(q, k, v, axial_score(q, k, p, r, axis, frequency, pairs))
    assert_same(attend(q, k, v, scheme, position=p, key_position=r), oracle)


@pytest.mark.parametrize(("order", "sections", "axis"), LAYOUTS)
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_an_axis_may_own_a_whole_range_of_frequencies(order, sections, axis, pairs):
    q, k, v = inputs(t=5, s=7, d=12, dv=3)
    p, r = places(5, len(sections)), places(7, len(sections), seed=4)
    frequency = [0.0] * 6
    for one, size in enumerate(sections):
        mine = [n for n in range(6) if axis[n] == one]
        for rank, n in enumerate(mine):
            frequency[n] = 100.0 ** (-rank / size)
    scheme = Scheme(AxialRope(12, sections, theta=100.0, order=order, own=True, pairs=pairs), causal)
    oracle = plain(q, k, v, axial_score(q, k, p, r, axis, frequency, pairs))
    assert_same(attend(q, k, v, scheme, position=p, key_position=r), oracle)


@pytest.mark.parametrize(("order", "sections"), [(order, sections) for order, sections, _ in LAYOUTS])
def test_text_is_turned_as_by_rope(order, sections):
    q, k, v = inputs(t=9, d=12)
    scheme, plainly = Scheme(AxialRope(12, sections, order=order), causal), attend(q, k, v, Scheme(Rope(12), causal))
    alike = torch.arange(9).view(1, 9, 1).expand(2, 9, len(sections))
    assert_same(attend(q, k, v, scheme), plainly)
    assert_same(attend(q, k, v, scheme, position=alike, key_position=alike), plainly)
    assert_same(attend(q, k, v, scheme, position=alike[..., 0], key_position=alike[..., 0]), plainly)


def test_values_are_left_alone():
    v = inputs(t=5, dv=3)[2]
    assert torch.equal(AxialRope(8, (2, 2)).turn(v, places(5, 2), "value"), v)


# Layouts of published models


def through_theirs(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn x [b h t d] by cosines and sines [b t d], halves paired."""
    cos, sin = (table[:, None] for table in tables)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def test_qwen2_vl_gives_each_axis_a_block():
    assert AxialRope(128, (16, 24, 24)).axis_of() == [0] * 16 + [1] * 24 + [2] * 24
    x, p = inputs(t=5, d=128)[0], places(5, 3)
    angle = p.permute(2, 0, 1)[..., None] * 10000.0 ** (-torch.arange(0, 128, 2).double() / 128)
    theirs = SimpleNamespace(mrope_section=[16, 24, 24])
    tables = tuple(
        Qwen2VLRotaryEmbedding.recomposition_frequencies(theirs, each) for each in (angle.cos(), angle.sin())
    )
    assert_same(AxialRope(128, (16, 24, 24)).turn(x, p), through_theirs(x, tables))


def test_qwen3_vl_deals_pairs_out():
    method = AxialRope(128, (24, 20, 20), theta=5e6, order="interleaved")
    assert method.axis_of() == [0, 1, 2] * 20 + [0] * 4
    x, p = inputs(t=5, d=128)[0], places(5, 3)
    angle = p.permute(2, 0, 1)[..., None] * 5e6 ** (-torch.arange(0, 128, 2).double() / 128)
    theirs = SimpleNamespace(mrope_section=[24, 20, 20])
    tables = tuple(
        Qwen3VLTextRotaryEmbedding.recomposition_frequencies(theirs, each) for each in (angle.cos(), angle.sin())
    )
    assert_same(method.turn(x, p), through_theirs(x, tables))


def test_qwens_vision_tower_turns_rows_and_columns_by_the_same_frequencies():
    d = 80
    x, p = inputs(t=12, d=d)[0], torch.cartesian_prod(torch.arange(3), torch.arange(4)).expand(2, -1, -1)
    angle = p[..., None] * 10000.0 ** (-torch.arange(0, d // 2, 2).double() / (d // 2))
    theirs = SimpleNamespace()
    tables = tuple(
        torch.stack([Qwen2VLVisionRotaryEmbedding.recomposition_frequencies(theirs, row) for row in each])
        for each in (angle.cos(), angle.sin())
    )
    assert_same(AxialRope(d, (d // 4, d // 4), own=True).turn(x, p), through_theirs(x, tables))


def test_two_axes_may_turn_two_halves_of_the_channels():
    # ChatGLM-6B: one position for the first half of the channels, another for the second.
    x, p = inputs(t=7, d=16)[0], places(7, 2)
    half = Rope(8, pairs="neighbours")
    oracle = torch.cat((half.turn(x[..., :8], p[..., 0]), half.turn(x[..., 8:], p[..., 1])), -1)
    assert_same(AxialRope(16, (4, 4), own=True, pairs="neighbours").turn(x, p), oracle)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"sections": (2, 1)},
            ValueError,
            r"AxialRope\(8, \(2, 1\)\): the sections hold 3 pairs, but 8",
        ),
        ({"sections": ()}, ValueError, "the sections hold 0 pairs, but 8 channels make 4"),
        ({"sections": (4, 0)}, ValueError, "sections must be at least 1"),
        ({"sections": (5, -1)}, ValueError, "sections must be at least 1"),
        ({"sections": (2.0, 2.0)}, TypeError, "sections must be an integer, not float"),
        ({"sections": 4}, TypeError, "sections"),
        (
            {"head_dim": 7},
            ValueError,
            r"AxialRope\(head_dim=7\): head_dim must be even, because channels are turned in pairs",
        ),
        ({"head_dim": 0}, ValueError, "head_dim must be at least"),
        ({"head_dim": 8.0}, TypeError, "head_dim must be an integer, not float"),
        ({"theta": 0}, ValueError, "theta must be greater than 1"),
        ({"theta": math.inf}, ValueError, "theta must be finite"),
        ({"order": "chunks"}, ValueError, "order must be one of 'blocks', 'interleaved'"),
        ({"pairs": "neighbors"}, ValueError, "pairs must be one of 'halves', 'neighbours'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        AxialRope(**({"head_dim": 8, "sections": (2, 2)} | arguments))


@pytest.mark.parametrize("sections", [(1, 2, 3), (2, 3, 1), (1, 1, 4)])
def test_sections_that_cannot_be_dealt_out_are_refused(sections):
    with pytest.raises(ValueError, match=r"dealing pairs out in turn gives .* the first section must be the largest"):
        AxialRope(12, sections, order="interleaved")


def test_a_tensor_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"AxialRope\(head_dim=6\): given a tensor of 8 channels"):
        AxialRope(6, (1, 2)).turn(torch.zeros(1, 1, 3, 8), torch.arange(3))


@pytest.mark.parametrize("axes", [1, 3])
def test_positions_with_another_number_of_axes_are_refused(axes):
    q, k, v = inputs(t=5)
    position = places(5, axes)
    with pytest.raises(ValueError, match=f"position has {axes} axes, but the scheme reads 2"):
        attend(q, k, v, Scheme(AxialRope(8, (2, 2)), causal), position=position, key_position=position)
    with pytest.raises(ValueError, match="axes"):
        AxialRope(8, (2, 2)).turn(q, position)


def test_several_axes_are_refused_where_a_part_reads_one():
    q, k, v = inputs(t=5)
    position = places(5, 2)
    with pytest.raises(ValueError, match="no part of the scheme reads several axes"):
        attend(q, k, v, Scheme(Rope(8), causal), position=position, key_position=position)
    with pytest.raises(ValueError, match=r"position has 2 axes, but Alibi\(4\) reads one"):
        attend(q, k, v, Scheme(AxialRope(8, (2, 2)), Alibi(4), causal), position=position, key_position=position)


# Stretched

STRETCHES = {
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    },
    "dynamic": {"factor": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("name", STRETCHES)
@pytest.mark.parametrize(
    ("kind", "module", "sections", "dealt"),
    [
        (Qwen2_5_VLTextConfig, Qwen2_5_VLRotaryEmbedding, [4, 2, 2], False),
        (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, [4, 2, 2], True),
    ],
    ids=["Qwen2.5-VL, blocks", "Qwen3-VL, in turn"],
)
def test_a_stretch_of_every_axis_is_that_of_transformers(kind, module, sections, dealt, name):
    settings = {"rope_type": name, "rope_theta": 1e4, "mrope_section": sections} | STRETCHES[name]
    if dealt:
        settings["mrope_interleaved"] = True
    config = kind(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16, num_hidden_layers=2,
        max_position_embeddings=32, rope_parameters=settings,
    )  # fmt: skip
    rope, *_ = Scheme.of(config).parts
    assert isinstance(rope, AxialRope)
    assert rope.stretch is not None
    p = places(50, 3)
    p[:, -1] = 47
    cos, sin = module(config)(torch.zeros(2, 50, 1, dtype=torch.float64), p.permute(2, 0, 1))
    ours = rope.cos_sin(p, length=int(p.max()) + 1, dtype=torch.float64)
    for one, other in zip(ours, (cos, sin), strict=True):
        assert (torch.cat((one, one), -1) - other).abs().max() < 2e-6
    x = inputs(t=50, d=16)[0]
    theirs = through_theirs(x, tuple(each.to(x.dtype) for each in (cos, sin)))
    assert (rope.turn(x, p, length=int(p.max()) + 1) - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("stretch", [Yarn(4, 32), Ntk(4.0), DynamicNtk(32)])
@pytest.mark.parametrize("order", ["blocks", "interleaved"])
def test_stretched_on_plain_positions_it_is_the_stretched_rope(order, stretch):
    x, p = inputs(t=40, d=16)[0], torch.arange(40) + 9
    axial, rope = AxialRope(16, (4, 2, 2), order=order, stretch=stretch), Rope(16, stretch=stretch)
    assert axial.by_length == rope.by_length
    assert_same(axial.turn(x, p), rope.turn(x, p))
    q, k, v = inputs(t=40, s=40, d=16, dv=16)
    assert_same(attend(q, k, v, Scheme(axial, causal)), attend(q, k, v, Scheme(rope, causal)))


def test_without_a_length_a_stretch_counts_up_to_the_largest_coordinate():
    rope, p = AxialRope(16, (4, 2, 2), stretch=DynamicNtk(32)), places(50, 3)
    p[..., 1] += 60
    longest = p.amax((1, 2)) + 1
    each = torch.cat([rope.angles(row[None], length=int(n)) for row, n in zip(p, longest, strict=True)])
    assert_same(rope.angles(p), each)


def test_a_stretch_of_axes_with_frequencies_of_their_own_is_refused():
    with pytest.raises(ValueError, match=r"a stretch is for the frequencies of one RoPE"):
        AxialRope(16, (4, 4), own=True, stretch=Yarn(4, 32))
