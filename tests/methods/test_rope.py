"""RoPE against its paper (arXiv:2104.09864): a score is Σ_n Re[q_n · conj(k_n) · e^(i(p − r)θ_n)], θ_n = θ^(−2n/d)."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from milepost import Rope, Scheme, Xpos, Yarn, attend, causal, rotate
from tests.oracles import Score, assert_same, in_complex, inputs, plain

PAIRS = ("halves", "neighbours")


def paper_score(q: Tensor, k: Tensor, p: Tensor, r: Tensor, theta: float, pairs: str, hidden: bool) -> Score:
    """The score of one pair of tokens, a sum over pairs of channels; p and r are [b t] and [b s]."""
    d, group, behind = q.shape[-1], q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    a, c = in_complex(q, pairs), in_complex(k, pairs)

    def score(b: int, h: int, i: int, j: int) -> float:
        if hidden and j > i + behind:
            return -math.inf
        distance = float(p[b, i] - r[b, j])
        total = 0.0
        for n in range(d // 2):
            turn = cmath.exp(1j * distance * theta ** (-2 * n / d))
            total += (complex(a[b, h, i, n]) * complex(c[b, h // group, j, n]).conjugate() * turn).real
        return total / math.sqrt(d)

    return score


def turned(x: Tensor, position: list[float], pairs: str, theta: float = 10000.0) -> Tensor:
    """The paper's R_m x: one 2 × 2 rotation a pair; x is [b h t d]."""
    d, out = x.shape[-1], x.clone()
    for t, m in enumerate(position):
        for n in range(d // 2):
            one, two = (n, n + d // 2) if pairs == "halves" else (2 * n, 2 * n + 1)
            angle = m * theta ** (-2 * n / d)
            a, b = x[:, :, t, one], x[:, :, t, two]
            out[:, :, t, one] = a * math.cos(angle) - b * math.sin(angle)
            out[:, :, t, two] = a * math.sin(angle) + b * math.cos(angle)
    return out


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("theta", [10000.0, 500000.0, 3.5])
def test_a_score_is_the_papers_sum_over_pairs(pairs, theta):
    q, k, v = inputs(t=7, s=11, d=8, dv=5)
    p, r = torch.arange(4, 11).expand(2, -1), torch.arange(11).expand(2, -1)
    oracle = plain(q, k, v, paper_score(q, k, p, r, theta, pairs, hidden=True))
    assert_same(attend(q, k, v, Scheme(Rope(8, theta=theta, pairs=pairs), causal)), oracle)


@pytest.mark.parametrize("pairs", PAIRS)
def test_the_sign_of_the_distance_counts(pairs):
    # Without a mask, keys ahead of the query turn the other way.
    q, k, v = inputs(t=6, d=4)
    index = torch.arange(6).expand(2, -1)
    oracle = plain(q, k, v, paper_score(q, k, index, index, 10000.0, pairs, hidden=False))
    assert_same(attend(q, k, v, Scheme(Rope(4, pairs=pairs))), oracle)


def test_positions_may_be_fractions_and_differ_between_rows():
    q, k, v = inputs(t=5, s=8, d=6)
    generator = torch.Generator().manual_seed(1)
    p, r = (50 * torch.rand(2, n, dtype=torch.float64, generator=generator) - 20 for n in (5, 8))
    oracle = plain(q, k, v, paper_score(q, k, p, r, 10000.0, "halves", hidden=True))
    assert_same(attend(q, k, v, Scheme(Rope(6), causal), position=p, key_position=r), oracle)


@pytest.mark.parametrize("pairs", PAIRS)
def test_turn_is_the_papers_matrix(pairs):
    x = inputs(t=5)[0]
    position = [0, 1, 7, 300, 12345]
    assert_same(Rope(8, pairs=pairs).turn(x, torch.tensor(position)), turned(x, position, pairs))
    both = torch.tensor([position, position[::-1]])
    rows = torch.cat((turned(x[:1], position, pairs), turned(x[1:], position[::-1], pairs)))
    assert_same(Rope(8, pairs=pairs).turn(x, both), rows)


def test_neighbours_are_the_complex_form():
    x, index = inputs(t=9)[0], torch.arange(9)
    angle = index.double()[:, None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    oracle = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.exp(1j * angle)).flatten(-2)
    assert_same(Rope(8, pairs="neighbours").turn(x, index), oracle)


def test_halves_and_neighbours_differ_by_the_order_of_channels_alone():
    x, index = inputs(t=9)[0], torch.arange(9)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    assert_same(Rope(8).turn(x[..., order], index), Rope(8, pairs="neighbours").turn(x, index)[..., order])


@pytest.mark.parametrize("pairs", PAIRS)
def test_turning_keeps_norms_and_leaves_position_zero_and_values_alone(pairs):
    x, rope = inputs(t=6)[0], Rope(8, pairs=pairs)
    index = torch.tensor([0, 3, 10, 500, 4096, 10**6])
    assert_same(rope.turn(x, index).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(rope.turn(x, torch.zeros(6)), x)
    assert torch.equal(rope.turn(x, index, "value"), x)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("shift", [1, 17, 4096])
def test_a_shift_of_both_changes_no_product(pairs, shift):
    q, k, _ = inputs(t=6, g=4)
    rope, p, r = Rope(8, pairs=pairs), torch.arange(6) * 3, torch.arange(6) * 5
    here = rope.turn(q, p) @ rope.turn(k, r).mT
    there = rope.turn(q, p + shift) @ rope.turn(k, r + shift).mT
    assert_same(there, here, within=1e-11)


# Other people's code


def test_llama_applies_the_same_rotation():
    q, k, _ = inputs(t=9)
    angle = torch.arange(9).double()[:, None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    angle = torch.cat((angle, angle), -1)[None]
    theirs = llama_rotary(q, k, angle.cos(), angle.sin())
    for x, oracle in zip((q, k), theirs, strict=True):
        assert_same(Rope(8).turn(x, torch.arange(9)), oracle)


def test_gptj_applies_the_same_rotation():
    q = inputs(t=9)[0]
    angle = torch.arange(9).double()[:, None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    # GPT-J keeps heads after tokens.
    oracle = gptj_rotary(q.transpose(1, 2), angle.sin()[None], angle.cos()[None]).transpose(1, 2)
    assert_same(Rope(8, pairs="neighbours").turn(q, torch.arange(9)), oracle)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_llamas_own_tables_agree_to_their_rounding(theta):
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    index = torch.tensor([0, 1, 5, 63, 200])
    theirs = LlamaRotaryEmbedding(config)(torch.zeros(1), index[None])
    # They hold frequencies and angles in float32: each angle errs by a few of its last places.
    bound = 200 * 2.0**-24 * (math.log(theta) + 4)
    for ours, table in zip(Rope(64, theta=theta).cos_sin(index), theirs, strict=True):
        assert_same(torch.cat((ours, ours), -1)[None], table, within=bound)


# Golden values


def running_sums(distance: int) -> Tensor:
    """|S_1| … |S_{d/2}| with S_j = Σ_{n<j} e^(iΔθ_n), from the frequencies of Rope(128)."""
    cos, sin = Rope(128).cos_sin(torch.tensor([distance]), dtype=torch.float64)
    return torch.complex(cos, sin)[0].cumsum(-1).abs()


def test_the_bound_on_far_scores():
    golden = {0: 32.5, 1: 31.538, 10: 17.954, 50: 12.629, 100: 10.227, 200: 7.245, 500: 6.19, 1000: 4.471, 4096: 4.883}
    for distance, bound in golden.items():
        assert float(running_sums(distance).mean()) == pytest.approx(bound, abs=5.01e-4)


@pytest.mark.parametrize(
    ("distance", "score"),
    [(0, 64), (10, 42.82), (100, 30.54), (500, 19.10), (2000, 1.86), (4096, -3.38), (8192, 1.59)],
)
def test_the_score_of_tokens_all_alike(distance, score):
    cos, _ = Rope(128).cos_sin(torch.tensor([distance]), dtype=torch.float64)
    assert float(cos.sum()) == pytest.approx(score, abs=5.01e-3)
    # Ones in both channels of a pair score twice its cosine.
    ones = torch.ones(1, 1, 1, 128, dtype=torch.float64)
    turned_ones = Rope(128).turn(ones, torch.tensor([distance]))
    assert float((turned_ones * ones).sum()) == pytest.approx(2 * float(cos.sum()), abs=1e-11)


@pytest.mark.parametrize("distance", [1, 30, 1000])
def test_no_score_exceeds_the_bound_on_far_scores(distance):
    q, k, _ = inputs(b=1, h=4, g=4, t=1, d=128)
    h = in_complex(q, "halves") * in_complex(k, "halves").conj()
    steps = torch.cat((h, torch.zeros_like(h[..., :1])), -1).diff(dim=-1).abs().amax(-1)
    score = (Rope(128).turn(q, torch.tensor([distance])) * k).sum(-1).abs()
    assert bool((score <= steps * running_sums(distance).sum()).all())


@pytest.mark.parametrize("theta", [100.0, 10000.0, 500000.0])
def test_a_pair_comes_round_after_two_pi_over_its_frequency(theta):
    period = 2 * math.pi * theta ** (2 * 10 / 100)
    cos, sin = Rope(100, theta=theta).cos_sin(
        torch.tensor([period, period / 4], dtype=torch.float64), dtype=torch.float64
    )
    assert_same(torch.stack((cos[:, 10], sin[:, 10])), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


# What is refused


@pytest.mark.parametrize(
    ("dim", "error", "text"),
    [
        (
            127,
            ValueError,
            "head_dim must be even, because channels are turned in pairs; for a partial rotation use Partial",
        ),
        (127, ValueError, r"Rope\(head_dim=127\): .* use Partial\(Rope\(64\), of=127\)"),
        (0, ValueError, r"Rope\(head_dim=0\): head_dim must be at least"),
        (-2, ValueError, r"Rope\(head_dim=-2\): head_dim must be at least"),
        (8.0, TypeError, r"Rope\(head_dim=8.0\): head_dim must be an integer, not float"),
        (float("nan"), TypeError, "head_dim must be an integer, not float"),
        (True, TypeError, "head_dim must be an integer, not bool"),
        ("8", TypeError, "head_dim must be an integer, not str"),
        (None, TypeError, "head_dim must be an integer, not NoneType"),
    ],
)
def test_a_width_that_is_no_even_number_is_refused(dim, error, text):
    with pytest.raises(error, match=text):
        Rope(dim)


@pytest.mark.parametrize(
    ("theta", "error", "text"),
    [
        (0, ValueError, r"Rope\(theta=0\): theta must be greater than"),
        (-1.0, ValueError, "theta must be greater than"),
        (math.inf, ValueError, "theta must be finite"),
        (math.nan, ValueError, "theta must be finite"),
        ("1e4", TypeError, "theta must be a number, not str"),
        (True, TypeError, "theta must be a number, not bool"),
    ],
)
def test_a_base_that_is_no_positive_number_is_refused(theta, error, text):
    with pytest.raises(error, match=text):
        Rope(8, theta=theta)


def test_an_unknown_pairing_is_refused():
    with pytest.raises(ValueError, match="pairs must be one of 'halves', 'neighbours'"):
        Rope(8, pairs="neighbors")  # pyright: ignore
    with pytest.raises(ValueError, match="pairs"):
        rotate(torch.ones(1, 2), torch.ones(1, 1), torch.zeros(1, 1), pairs="neighbors")  # pyright: ignore


@pytest.mark.parametrize("stretch", [4, "yarn", Rope(8), Yarn])
def test_what_does_not_stretch_is_refused(stretch):
    with pytest.raises(TypeError, match=r"a stretch is a method such as Yarn\(factor=8, trained=4096\)"):
        Rope(8, stretch=stretch)


def test_a_tensor_of_another_width_is_refused():
    with pytest.raises(
        ValueError, match=r"Rope\(head_dim=6\): given a tensor of 8 channels; .* Partial\(Rope\(6\), of=8\)"
    ):
        Rope(6).turn(torch.zeros(1, 1, 3, 8), torch.arange(3))


def test_two_rotations_in_one_scheme_are_refused():
    with pytest.raises(ValueError, match=r"Rope\(8\) and Xpos\(8\) both turn pairs of channels"):
        Scheme(Rope(8), Xpos(8))
