"""ChatGLM's rotation: each half of the channels is a RoPE of half the width, with a position of its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import LeakyRerope, Rope, Scheme, TwoPartRope, attend, causal
from tests.oracles import assert_same, inputs, plain

PAIRS = ("halves", "neighbours")


def chatglm(x: Tensor, first: Tensor, second: Tensor, theta: float, pairs: str) -> Tensor:
    """Rotate both halves of x [b h t d] by their own ids [b t], one pair of channels at a time."""
    d, out = x.shape[-1], x.clone()
    for start, ids in ((0, first), (d // 2, second)):
        width = d // 2
        for n in range(width // 2):
            one, two = (n, n + width // 2) if pairs == "halves" else (2 * n, 2 * n + 1)
            angle = ids.double()[:, None] * theta ** (-2 * n / width)
            a, b = x[..., start + one], x[..., start + two]
            out[..., start + one] = a * angle.cos() - b * angle.sin()
            out[..., start + two] = a * angle.sin() + b * angle.cos()
    return out


def a_prompt_and_an_answer(prompt: int, answer: int) -> Tensor:
    """ChatGLM-6B's ids [1 t 2]: the prompt is counted and the place of its mask held; the answer counts from 1."""
    first = [*range(prompt), *[prompt - 2] * answer]
    second = [0] * prompt + [*range(1, answer + 1)]
    return torch.tensor([first, second]).T[None]


def causal_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain causal attention over queries and keys that are turned already."""
    group, behind = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        return -math.inf if j > i + behind else q[b, h, i] @ k[b, h // group, j] / math.sqrt(q.shape[3])

    return plain(q, k, v, score)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("theta", [10000.0, 30.0])
def test_halves_turn_by_the_two_positions_of_chatglm(pairs, theta):
    q, k, v = inputs(t=9, d=16, dv=5)
    at = a_prompt_and_an_answer(5, 4)
    ids = (at[..., 0].expand(2, -1), at[..., 1].expand(2, -1))
    oracle = causal_scores(*(chatglm(x, *ids, theta, pairs) for x in (q, k)), v)
    scheme = Scheme(TwoPartRope(16, theta=theta, pairs=pairs), causal)
    assert_same(attend(q, k, v, scheme, position=at, key_position=at), oracle)


def test_every_row_may_have_positions_of_its_own():
    q, k, v = inputs(t=4, s=6, d=8)
    generator = torch.Generator().manual_seed(2)
    p, r = (torch.randint(0, 500, (2, n, 2), generator=generator) for n in (4, 6))
    one = chatglm(q, p[..., 0], p[..., 1], 10000.0, "halves")
    two = chatglm(k, r[..., 0], r[..., 1], 10000.0, "halves")
    ours = attend(q, k, v, Scheme(TwoPartRope(8), causal), position=p, key_position=r)
    assert_same(ours, causal_scores(one, two, v))


@pytest.mark.parametrize("pairs", PAIRS)
def test_the_code_of_chatglm_turns_the_same_way(pairs):
    """Its own words: cat and rotate_half inside each half, cos and sin of inv_freq over d/2 channels."""
    q = inputs(t=9, d=16)[0]
    at = a_prompt_and_an_answer(5, 4)

    def apply(x: Tensor, ids: Tensor) -> Tensor:
        inv_freq = 1.0 / (10000 ** (torch.arange(0, 8, 2).double() / 8))
        freqs = torch.einsum("i,j->ij", ids.double(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        x1, x2 = x[..., :4], x[..., 4:]
        return x * emb.cos() + torch.cat((-x2, x1), dim=-1) * emb.sin()

    q1, q2 = q.chunk(2, dim=-1)
    theirs = torch.cat((apply(q1, at[0, :, 0]), apply(q2, at[0, :, 1])), dim=-1)
    if pairs == "neighbours":
        # Neighbours are halves with the channels of each half in another order.
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        order = order + [8 + n for n in order]
        assert_same(TwoPartRope(16, pairs="neighbours").turn(q[..., order], at), theirs[..., order])
    else:
        assert_same(TwoPartRope(16).turn(q, at), theirs)


def test_one_position_stands_for_two_that_are_alike():
    q, k, v = inputs(t=7, d=8)
    scheme, index = Scheme(TwoPartRope(8), causal), torch.arange(7)
    both = torch.stack((index, index), -1)[None]
    expected = causal_scores(*(chatglm(x, *[index.expand(2, -1)] * 2, 10000.0, "halves") for x in (q, k)), v)
    assert_same(attend(q, k, v, scheme), expected)
    assert_same(attend(q, k, v, scheme, position=both, key_position=both), expected)
    assert_same(attend(q, k, v, scheme, position=both), expected)


def test_the_second_half_says_nothing_while_its_position_stands_still():
    # Within the prompt the second position is 0, so the second half joins the product as it is.
    q = inputs(t=5, d=8)[0]
    at = a_prompt_and_an_answer(5, 0)
    turned = TwoPartRope(8).turn(q, at)
    assert torch.equal(turned[..., 4:], q[..., 4:])
    assert_same(turned[..., :4], Rope(4).turn(q[..., :4], torch.arange(5)))


def test_only_distances_of_each_kind_count():
    q, k, v = inputs(t=9, d=8)
    at, scheme = a_prompt_and_an_answer(5, 4), Scheme(TwoPartRope(8), causal)
    moved = at + torch.tensor([100, 7])
    here = attend(q, k, v, scheme, position=at, key_position=at)
    assert_same(attend(q, k, v, scheme, position=moved, key_position=moved), here)


def test_values_are_left_alone():
    x = inputs(t=5)[0]
    assert torch.equal(TwoPartRope(8).turn(x, torch.arange(5), "value"), x)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"head_dim": 7}, ValueError, r"TwoPartRope\(head_dim=7\): head_dim must be even, because it has two halves"),
        (
            {"head_dim": 6},
            ValueError,
            r"TwoPartRope\(head_dim=6\): head_dim must be a multiple of 4, because each half has pairs",
        ),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1"),
        ({"head_dim": -4}, ValueError, "head_dim must be at least 1"),
        ({"head_dim": 8.0}, TypeError, "head_dim must be an integer, not float"),
        ({"theta": 0.5}, ValueError, r"TwoPartRope\(theta=0.5\): theta must be greater than 1"),
        ({"theta": math.inf}, ValueError, "theta must be finite"),
        ({"pairs": "thirds"}, ValueError, "pairs must be one of 'halves', 'neighbours'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        TwoPartRope(**({"head_dim": 8} | arguments))


def test_a_tensor_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"TwoPartRope\(head_dim=8\): given a tensor of 12 channels"):
        TwoPartRope(8).turn(torch.zeros(1, 1, 3, 12), torch.arange(3))


def test_three_positions_are_refused():
    q, k, v = inputs(t=3)
    at = torch.zeros(2, 3, 3)
    with pytest.raises(ValueError, match="attend: position has 3 axes, but the scheme reads 2"):
        attend(q, k, v, Scheme(TwoPartRope(8)), position=at, key_position=at)


def test_three_positions_are_refused_by_name_when_turned_alone():
    with pytest.raises(ValueError, match=r"TwoPartRope.*3 axes"):
        TwoPartRope(8).turn(inputs(t=3)[0], torch.zeros(2, 3, 3))


def test_two_positions_cannot_be_placed_anew():
    q, k, v = inputs(t=3)
    at = torch.zeros(2, 3, 2)
    with pytest.raises(ValueError, match=r"position has 2 axes, but LeakyRerope\(4, 2\) reads one"):
        attend(q, k, v, Scheme(TwoPartRope(8), LeakyRerope(4, 2), causal), position=at, key_position=at)
