"""Partial rotation (GPT-NeoX, arXiv:2204.06745): the first channels turn, the others join the product as they are."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as neox_rotary

from milepost import Alibi, AxialRope, DynamicYarn, Llama3, Partial, QkNorm, Rope, Scheme, Xpos, Yarn, attend, causal
from milepost.seams.facets import facets_of
from tests.oracles import Score, assert_same, inputs, plain


def partial_score(
    q: Tensor,
    k: Tensor,
    dim: int,
    pairs: str,
    angle: Callable[[int, int, int], float],
    turned: float = 1.0,
    straight: float = 1.0,
) -> Score:
    """Both parts of one score, each with its factor; angle(i, j, n) is that of pair n."""
    group, behind = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i + behind:
            return -math.inf
        a, c = q[b, h, i].tolist(), k[b, h // group, j].tolist()
        total = straight * sum(x * y for x, y in zip(a[dim:], c[dim:], strict=True))
        for n in range(dim // 2):
            one, two = (n, n + dim // 2) if pairs == "halves" else (2 * n, 2 * n + 1)
            product = complex(a[one], a[two]) * complex(c[one], -c[two])
            total += turned * (product * cmath.exp(1j * angle(i + behind, j, n))).real
        return total / math.sqrt(len(a))

    return score


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("dim", [4, 8, 16])
def test_frequencies_run_over_the_turned_channels(pairs, dim):
    q, k, v = inputs(t=6, s=9, d=16, dv=5)
    score = partial_score(q, k, dim, pairs, lambda i, j, n: (i - j) * 10000.0 ** (-2 * n / dim))
    scheme = Scheme(Partial(Rope(dim, pairs=pairs), of=16), causal)
    assert_same(attend(q, k, v, scheme), plain(q, k, v, score))


def test_the_scale_is_that_of_all_channels():
    q, k, v = inputs(t=5, d=12)
    score = partial_score(q, k, 2, "halves", lambda i, j, n: i - j)
    assert_same(attend(q, k, v, Scheme(Partial(Rope(2), of=12), causal)), plain(q, k, v, score))


@pytest.mark.parametrize(("temperature", "whole"), [("rotary", False), ("logits", True)])
def test_a_magnitude_scales_the_turned_part_or_the_whole_score(temperature, whole):
    # YaRN sharpens scores by (0.1 ln s + 1)²; every pair here makes fewer turns than one, so all are interpolated.
    q, k, v = inputs(t=9, d=16)
    sharper = (0.1 * math.log(8) + 1) ** 2
    stretch = Yarn(factor=8, trained=4, ramp="paper")
    score = partial_score(
        q, k, 6, "halves", lambda i, j, n: (i - j) * 10000.0 ** (-n / 3) / 8, sharper, sharper if whole else 1.0
    )
    ours = attend(q, k, v, Scheme(Partial(Rope(6, stretch=stretch), of=16, temperature=temperature), causal))
    assert_same(ours, plain(q, k, v, score))


def test_the_whole_score_is_sharpened_by_the_length_of_each_document():
    q, k, v = inputs(b=1, t=14, d=8)
    documents = torch.tensor([0] * 9 + [1] * 5)
    method = Partial(Rope(4, stretch=DynamicYarn(trained=3, ramp="paper")), of=8, temperature="logits")
    ours = attend(q, k, v, Scheme(method, causal), documents=documents)
    for rows in (slice(0, 9), slice(9, 14)):
        factor = (rows.stop - rows.start) / 3
        sharper = (0.1 * math.log(factor) + 1) ** 2

        def angle(i: int, j: int, n: int, factor: float = factor) -> float:
            return (i - j) * 10000.0 ** (-n / 2) / factor

        one, two, three = (x[:, :, rows] for x in (q, k, v))
        score = partial_score(one, two, 4, "halves", angle, sharper, sharper)
        assert_same(ours[:, :, rows], plain(one, two, three, score))


@pytest.mark.parametrize("temperature", ["rotary", "logits"])
def test_turned_alone_it_is_the_same_as_within_attend(temperature):
    x = inputs(t=9, d=8)[0]
    method = Partial(Rope(4, stretch=DynamicYarn(trained=3)), of=8, temperature=temperature)
    index = torch.arange(9)
    told = method.turn(x, index, "query", torch.full((2, 1), 9))
    assert_same(method.turn(x, index), told)
    assert_same(method.turn(x, index, "query", 9), told)
    assert_same(method.turn(x, index.expand(2, -1), "query", torch.full((1, 9), 9)), told)


@pytest.mark.parametrize("temperature", ["rotary", "logits"])
def test_other_rotations_may_turn_a_part(temperature):
    # Neither has a magnitude, so both temperatures are the same.
    x = inputs(t=5, d=12)[0]
    position = torch.arange(10).view(1, 5, 2).expand(2, -1, -1)
    turned = Partial(AxialRope(8, (2, 2)), of=12, temperature=temperature).turn(x, position)
    assert_same(turned, torch.cat((AxialRope(8, (2, 2)).turn(x[..., :8], position), x[..., 8:]), -1))
    turned = Partial(Xpos(8, fade=9.0), of=12, temperature=temperature).turn(x, torch.arange(5), "key")
    assert_same(turned, torch.cat((Xpos(8, fade=9.0).turn(x[..., :8], torch.arange(5), "key"), x[..., 8:]), -1))


def test_a_part_may_fade():
    q, k, v = inputs(t=9, d=6)
    ours = attend(q, k, v, Scheme(Partial(Xpos(2, fade=5.0), of=6), causal))
    group = 2

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i:
            return -math.inf
        a, c = q[b, h, i].tolist(), k[b, h // group, j].tolist()
        turned = complex(a[0], a[1]) * complex(c[0], -c[1]) * cmath.exp(1j * (i - j))
        fade = (0.4 / 1.4) ** ((i - j) / 5)
        return (turned.real * fade + sum(x * y for x, y in zip(a[2:], c[2:], strict=True))) / math.sqrt(6)

    assert_same(ours, plain(q, k, v, score))


def test_tokens_of_a_fading_part_may_stand_far_from_zero():
    q, k, v = inputs(t=9, d=6)
    scheme, index = Scheme(Partial(Xpos(2), of=6), causal), torch.arange(9)
    far = attend(q, k, v, scheme, index=index + 10**8, key_index=index + 10**8)
    assert_same(far, attend(q, k, v, scheme))


def test_what_turns_no_pairs_may_have_a_part_too():
    x = inputs(t=5, d=12)[0]
    method = Partial(QkNorm(8).double(), of=12)
    assert_same(
        method.turn(x, torch.arange(5)), torch.cat((method.method.turn(x[..., :8], torch.arange(5)), x[..., 8:]), -1)
    )
    assert facets_of(method) == ()
    assert facets_of(Partial(Rope(8), of=12)) == ("cos_sin",)


def test_all_channels_are_no_part():
    q, k, v = inputs(t=7)
    rope = Rope(8, stretch=Llama3(factor=8, trained=5))
    assert_same(attend(q, k, v, Scheme(Partial(rope, of=8), causal)), attend(q, k, v, Scheme(rope, causal)))


@pytest.mark.parametrize("dv", [2, 8, 20])
def test_values_of_any_width_are_left_alone(dv):
    v = inputs(t=5, dv=dv)[2]
    method = Partial(Rope(4, stretch=Yarn(factor=8, trained=16)), of=8, temperature="logits")
    assert torch.equal(method.turn(v, torch.arange(5), "value"), v)


@pytest.mark.parametrize("of", [8, 32])
def test_gpt_neox_turns_a_quarter_the_same_way(of):
    q, k, _ = inputs(t=9, d=of)
    dim = of // 4
    angle = torch.arange(9).double()[:, None] * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    angle = torch.cat((angle, angle), -1)[None]
    for x, oracle in zip((q, k), neox_rotary(q, k, angle.cos(), angle.sin()), strict=True):
        assert_same(Partial(Rope(dim), of=of).turn(x, torch.arange(9)), oracle)


def test_rope_without_its_slowest_pairs_is_a_part_with_a_smaller_base():
    # p-RoPE spreads θ_n = θ^(−2n/d) over all d channels and stops the slowest pairs; channels stand as neighbours.
    x, d, dim = inputs(t=7, d=16)[0], 16, 12
    angle = torch.arange(7).double()[:, None] * 10000.0 ** (-torch.arange(0, d, 2).double() / d)
    angle[:, dim // 2 :] = 0
    oracle = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.exp(1j * angle)).flatten(-2)
    method = Partial(Rope(dim, theta=10000.0 ** (dim / d), pairs="neighbours"), of=d)
    assert_same(method.turn(x, torch.arange(7)), oracle)


class TurnsValues(Rope):
    """RoPE on values too."""

    def turn(self, x, position, side="query", length=None):
        return super().turn(x, position, "query", length)


@pytest.mark.parametrize("backend", [None, "sdpa", "chunked", "diagonals"])
def test_a_subclass_with_a_turn_of_its_own_is_asked_for_it(backend):
    q, k, v = inputs()
    scheme = Scheme(Partial(TurnsValues(4), of=8), causal)
    index = torch.arange(11)
    turned = (torch.cat((Rope(4).turn(x[..., :4], index), x[..., 4:]), -1) for x in (q, k, v))
    assert_same(attend(q, k, v, scheme, backend=backend), attend(*turned, Scheme(causal), backend="reference"))


@pytest.mark.parametrize(
    ("method", "of", "error", "text"),
    [
        (Rope(8), 4, ValueError, r"Partial\(Rope\(8\), of=4\): the method turns 8 channels, and there are only 4"),
        (Rope(8), 0, ValueError, r"Partial\(of=0\): of must be at least"),
        (Rope(8), -8, ValueError, "of must be at least"),
        (Rope(8), 16.0, TypeError, r"Partial\(of=16.0\): of must be an integer, not float"),
        (Rope(8), True, TypeError, "of must be an integer, not bool"),
        (Rope, 16, TypeError, r"the method must turn channels, such as Rope\(64\)"),
        (Alibi(4), 16, TypeError, "the method must turn channels"),
        (64, 16, TypeError, r"Partial\(64\): the method must turn channels"),
    ],
)
def test_wrong_arguments_are_refused(method, of, error, text):
    with pytest.raises(error, match=text):
        Partial(method, of)


def test_an_unknown_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature must be one of 'rotary', 'logits'"):
        Partial(Rope(8), 16, temperature="softmax")  # pyright: ignore


def test_a_tensor_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"Partial\(Rope\(8\), of=16\): given a tensor of 12 channels"):
        Partial(Rope(8), of=16).turn(torch.zeros(1, 1, 3, 12), torch.arange(3))
