"""xPos against its paper (arXiv:2212.10554): Σ_n Re[q_n · conj(k_n) · e^(i(p − r)θ_n)] · ζ_n^((p − r)/512)."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import CannotRun, Rope, Scheme, Xpos, attend, causal
from tests.oracles import Score, assert_same, in_complex, inputs, plain


def paper_product(a: Tensor, c: Tensor, distance: float, theta: float, fade: float) -> float:
    """The product of a query a and a key c, complex [d/2], at a distance."""
    pairs, total = a.shape[-1], 0.0
    for n in range(pairs):
        zeta = (n / pairs + 0.4) / 1.4
        turn = cmath.exp(1j * distance * theta ** (-n / pairs))
        total += (complex(a[n]) * complex(c[n]).conjugate() * turn).real * zeta ** (distance / fade)
    return total


def paper_score(q: Tensor, k: Tensor, theta: float, fade: float, pairs: str, hidden: bool = True) -> Score:
    group, behind = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    a, c = in_complex(q, pairs), in_complex(k, pairs)

    def score(b: int, h: int, i: int, j: int) -> float:
        if hidden and j > i + behind:
            return -math.inf
        return paper_product(a[b, h, i], c[b, h // group, j], i + behind - j, theta, fade) / math.sqrt(q.shape[-1])

    return score


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize(("theta", "fade"), [(10000.0, 512.0), (50.0, 4.0)])
def test_scores_fade_with_distance(pairs, theta, fade):
    q, k, v = inputs(t=7, s=12, d=8, dv=5)
    oracle = plain(q, k, v, paper_score(q, k, theta, fade, pairs))
    assert_same(attend(q, k, v, Scheme(Xpos(8, theta=theta, fade=fade, pairs=pairs), causal)), oracle)


def test_the_defaults_are_the_authors():
    q, k, v = inputs(t=12, d=8)
    oracle = plain(q, k, v, paper_score(q, k, 10000.0, 512.0, "neighbours"))
    assert_same(attend(q, k, v, Scheme(Xpos(8), causal)), oracle)


def test_keys_ahead_of_the_query_grow_instead():
    q, k, v = inputs(t=8, d=4)
    oracle = plain(q, k, v, paper_score(q, k, 10000.0, 16.0, "neighbours", hidden=False))
    assert_same(attend(q, k, v, Scheme(Xpos(4, fade=16.0))), oracle)


def test_tokens_may_stand_millions_of_positions_from_zero():
    # ζ^(10⁹/512) is zero and ζ^(−10⁹/512) infinite in any dtype; the distances alone are small.
    q, k, v = inputs(t=9, d=8)
    oracle = plain(q, k, v, paper_score(q, k, 10000.0, 512.0, "neighbours"))
    index = torch.arange(9) + 10**9
    assert_same(attend(q, k, v, Scheme(Xpos(8), causal), index=index, key_index=index), oracle)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [30_000, 60_000, 100_000, 10**6])
def test_tokens_far_from_each_other_get_the_right_answer_or_a_refusal(dtype, far):
    q, k, v = (x.to(dtype) for x in inputs(b=1, h=1, g=1, t=1, s=2, d=8))
    a, c = in_complex(q.double(), "neighbours")[0, 0, 0], in_complex(k.double(), "neighbours")[0, 0]
    scores = [paper_product(a, c[j], distance, 10000.0, 512.0) / math.sqrt(8) for j, distance in enumerate((far, 0))]
    oracle = torch.softmax(torch.tensor(scores, dtype=torch.float64), -1) @ v[0, 0].double()
    try:
        out = attend(q, k, v, Scheme(Xpos(8), causal), index=torch.tensor([far]), key_index=torch.tensor([0, far]))
    except (ValueError, CannotRun) as refusal:
        assert far > 36_000
        assert "Xpos(8) overflows past" in str(refusal)
        return
    assert_same(out[0, 0, 0], oracle, within=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("n", [8, 9])
def test_the_authors_centre_gives_the_same_products(n):
    # Their tables count from −⌈n/2⌉ for n keys; queries grow and keys shrink by the same position.
    q, k, _ = inputs(b=1, h=1, g=1, t=n, d=8)
    position = torch.arange(n) - math.ceil(n / 2)
    xpos = Xpos(8, fade=20.0)
    ours = (xpos.turn(q, position, "query") @ xpos.turn(k, position, "key").mT)[0, 0]
    a, c = in_complex(q, "neighbours")[0, 0], in_complex(k, "neighbours")[0, 0]
    oracle = [[paper_product(a[i], c[j], i - j, 10000.0, 20.0) for j in range(n)] for i in range(n)]
    assert_same(ours, torch.tensor(oracle, dtype=torch.float64))


def test_one_side_grows_as_the_other_shrinks():
    x = torch.ones(1, 1, 1, 8, dtype=torch.float64)
    zeta = torch.tensor([0.4, 0.65, 0.9, 1.15], dtype=torch.float64) / 1.4
    for side, power in (("query", 3.0), ("key", -3.0)):
        turned = Xpos(8).turn(x, torch.tensor([3 * 512]), side)
        assert_same(turned.unflatten(-1, (-1, 2)).norm(dim=-1).flatten() / math.sqrt(2), zeta**power, within=1e-11)
    assert torch.equal(Xpos(8).turn(x, torch.tensor([3 * 512]), "value"), x)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_without_fading_it_is_rope(pairs):
    q, k, v = inputs(t=9, d=8)
    ours = attend(q, k, v, Scheme(Xpos(8, theta=500.0, fade=1e18, pairs=pairs), causal))
    assert_same(ours, attend(q, k, v, Scheme(Rope(8, theta=500.0, pairs=pairs), causal)))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"head_dim": 7},
            ValueError,
            r"Xpos\(head_dim=7\): head_dim must be even, because channels are turned in pairs",
        ),
        ({"head_dim": 0}, ValueError, "head_dim must be at least"),
        ({"head_dim": -4}, ValueError, "head_dim must be at least"),
        ({"head_dim": 8.0}, TypeError, "head_dim must be an integer, not float"),
        ({"theta": 0}, ValueError, "theta must be greater than 1"),
        ({"theta": math.nan}, ValueError, "theta must be finite"),
        ({"fade": 0.0}, ValueError, r"Xpos\(fade=0.0\): fade must be greater than 0"),
        ({"fade": -512}, ValueError, "fade must be greater than 0"),
        ({"fade": math.inf}, ValueError, "fade must be finite"),
        ({"fade": "512"}, TypeError, "fade must be a number, not str"),
        ({"pairs": "neighbors"}, ValueError, "pairs must be one of 'halves', 'neighbours'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        Xpos(**({"head_dim": 8} | arguments))


def test_a_tensor_of_another_width_is_refused():
    with pytest.raises(
        ValueError, match=r"Xpos\(head_dim=6\): given a tensor of 8 channels; .* Partial\(Xpos\(6\), of=8\)"
    ):
        Xpos(6).turn(torch.zeros(1, 1, 3, 8), torch.arange(3))


def test_positions_that_overflow_beside_a_part_that_is_not_relative_are_refused():
    q, k, v = torch.randn(3, 1, 1, 6, 8, generator=torch.Generator().manual_seed(0))
    scheme = mp.Scheme(mp.QkNorm(8), mp.Xpos(8), mp.causal)
    for first, within in ((0, 1e-6), (29_000, 2e-5)):
        at = range(first, first + 6)
        near = mp.attend(q.double(), k.double(), v.double(), scheme, index=range(6), key_index=range(6))
        assert_same(mp.attend(q, k, v, scheme, index=at, key_index=at), near, within=within)
    for where in ({"index": range(45_000, 45_006), "key_index": range(45_000, 45_006)},
                  {"position": torch.arange(45_000.0, 45_006.0)}):  # fmt: skip
        with pytest.raises(ValueError, match=r"Xpos\(8\) overflows past 29009 .* QkNorm\(8\) is not relative"):
            mp.attend(q, k, v, scheme, **where)
    mp.attend(q.double(), k.double(), v.double(), scheme, index=range(45_000, 45_006), key_index=range(45_000, 45_006))
