"""Linear attention (kexue.fm/archives/8265): the numerator is turned, the denominator is not.

out_i = Σ_j ⟨R_i φ(q_i), R_j φ(k_j)⟩ v_j / Σ_j ⟨φ(q_i), φ(k_j)⟩,   φ(x) = elu(x) + 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from milepost import FusedRope, Nope, Rope, Scheme, Xpos, causal, everything, linear_attend, sinks, window
from tests.oracles import assert_same, inputs, turned

Sees = Callable[[int, int, int], bool]
"""Whether row i of batch b sees key j."""


def phi(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def straight(x: Tensor, position: Tensor) -> Tensor:
    """No turn at all, in complex pairs."""
    return torch.complex(*x.chunk(2, -1))


def looped(
    q: Tensor, k: Tensor, v: Tensor, sees: Sees, p: Tensor | None = None, r: Tensor | None = None, turn: Any = turned
) -> Tensor:
    """The formula, one pair of tokens at a time; a row that sees nothing gives zeros."""
    group, behind = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    r = torch.arange(k.shape[2]) if r is None else r
    p = torch.arange(q.shape[2]) + behind if p is None else p
    out = v.new_zeros(*q.shape[:3], v.shape[3])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                bottom = 0.0
                for j in range(k.shape[2]):
                    if not sees(b, i, j):
                        continue
                    one, two = phi(q[b, h, i]), phi(k[b, h // group, j])
                    out[b, h, i] += (turn(one, p[i]) * turn(two, r[j]).conj()).real.sum() * v[b, h // group, j]
                    bottom += float(one @ two)
                if bottom:
                    out[b, h, i] /= bottom
    return out


def dense(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Tensor:
    """The formula as two matrices [t s]; hidden is True where a key is not seen."""
    s, group = k.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    r = torch.arange(s)
    top = (turned(phi(q), r[s - q.shape[2] :]) @ turned(phi(k), r).conj().mT).real
    bottom = phi(q) @ phi(k).mT
    if hidden is not None:
        top, bottom = top.masked_fill(hidden, 0.0), bottom.masked_fill(hidden, 0.0)
    return top @ v / bottom.sum(-1, keepdim=True)


def future(t: int, s: int) -> Tensor:
    return torch.arange(s) > torch.arange(s - t, s)[:, None]


ROPE = Scheme(Rope(8), causal)


@pytest.mark.parametrize(("t", "s"), [(7, 7), (4, 9), (1, 6)])
def test_the_formula_looking_back(t, s):
    q, k, v = inputs(t=t, s=s, dv=5)
    assert_same(linear_attend(q, k, v, ROPE), looped(q, k, v, lambda b, i, j: j <= i + s - t))


@pytest.mark.parametrize(("t", "s"), [(7, 7), (4, 9)])
@pytest.mark.parametrize("scheme", [Scheme(Rope(8)), Scheme(Rope(8), everything)], ids=repr)
def test_the_formula_over_the_whole_text(t, s, scheme):
    q, k, v = inputs(t=t, s=s, dv=5)
    assert_same(linear_attend(q, k, v, scheme), looped(q, k, v, lambda b, i, j: True))


def test_without_positions_it_is_an_average():
    q, k, v = inputs(t=7)
    ours = linear_attend(q, k, v, Scheme(Nope(), causal))
    assert_same(ours, looped(q, k, v, lambda b, i, j: j <= i, turn=straight))
    # Weights that are positive and sum to one keep constant values as they are.
    assert_same(linear_attend(q, k, torch.ones_like(v), Scheme(Nope(), causal)), torch.ones_like(q))


def test_the_denominator_is_not_turned():
    # Turned too, weights would sum to one and constant values would come out as they are.
    q, k, v = inputs(t=9)
    ours = linear_attend(q, k, torch.ones_like(v), Scheme(Rope(8, theta=2.0), causal))
    assert float((ours - 1).abs().max()) > 0.1


@pytest.mark.parametrize("t", [128, 129, 256, 300])
@pytest.mark.parametrize("more", [0, 50])
def test_rows_past_the_first_block(t, more):
    q, k, v = inputs(b=1, t=t, s=t + more, dv=3)
    assert_same(linear_attend(q, k, v, ROPE), dense(q, k, v, future(t, t + more)))
    assert_same(linear_attend(q, k, v, Scheme(Rope(8))), dense(q, k, v))


@pytest.mark.parametrize("t", [9, 200])
def test_decoding_with_cached_keys_equals_the_whole_pass(t):
    q, k, v = inputs(b=1, t=t)
    whole = linear_attend(q, k, v, ROPE)
    for reached in {1, 5, t // 2, t}:
        row = linear_attend(q[:, :, reached - 1 : reached], k[:, :, :reached], v[:, :, :reached], ROPE)
        assert_same(row, whole[:, :, reached - 1 : reached])
    assert_same(linear_attend(q[:, :, -5:], k, v, ROPE), whole[:, :, -5:])


@pytest.mark.parametrize(
    ("scheme", "shows"),
    [
        (ROPE, lambda i, j: j <= i),
        (Scheme(Rope(8), causal & (window(3) | sinks(1))), lambda i, j: j <= i and (i - j < 3 or j == 0)),
        (Scheme(Rope(8)), lambda i, j: True),
    ],
    ids=["causal", "window and sinks", "everything"],
)
def test_documents_and_padding(scheme, shows):
    q, k, v = inputs(t=9)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1, -1], [-1, -1, 5, 5, 5, 5, 5, 5, 5]])
    index = [[0, 1, 2, 3, 0, 1, 2, 0, 0], [0, 0, 0, 1, 2, 3, 4, 5, 6]]
    ours = linear_attend(q, k, v, scheme, documents=documents)
    for b in range(2):

        def sees(_: int, i: int, j: int, mine: Tensor = documents[b], at: list[int] = index[b]) -> bool:
            return bool(mine[i] >= 0) and bool(mine[i] == mine[j]) and shows(at[i], at[j])

        rows, at = slice(b, b + 1), torch.tensor(index[b])
        assert_same(ours[rows], looped(q[rows], k[rows], v[rows], sees, at, at))
    assert torch.equal(ours[0, :, 7:], torch.zeros_like(ours[0, :, 7:]))
    assert torch.equal(ours[1, :, :2], torch.zeros_like(ours[1, :, :2]))


def test_indices_may_be_in_any_order():
    q, k, v = inputs(t=7)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    mixed = (x[:, :, order] for x in (q, k, v))
    ours = linear_attend(*mixed, ROPE, index=order, key_index=order)
    assert_same(ours, linear_attend(q, k, v, ROPE)[:, :, order])


def test_tokens_may_stand_elsewhere():
    q, k, v = inputs(t=5, s=7)
    p, r = torch.tensor([40.5, 3, 99, 12, 0]), torch.tensor([7.0, 60, 2, 2, 31.25, 5, 1000])
    ours = linear_attend(q, k, v, ROPE, position=p, key_position=r)
    assert_same(ours, looped(q, k, v, lambda b, i, j: j <= i + 2, p, r))


def test_values_turn_where_the_scheme_turns_them():
    q, k, v = inputs(t=6)
    ours = linear_attend(q, k, v, Scheme(FusedRope(8, pairs="halves"), causal))
    z = turned(v, torch.arange(6))
    assert_same(ours, looped(q, k, torch.cat((z.real, z.imag), -1), lambda b, i, j: j <= i))


def test_the_far_apart_are_centred_under_xpos():
    q, k, v = inputs(t=6)
    scheme, at = Scheme(Xpos(8), causal), torch.arange(6)
    far = linear_attend(q, k, v, scheme, position=at + 10**7, key_position=at + 10**7)
    assert_same(far, linear_attend(q, k, v, scheme), within=1e-11)


def test_any_feature_may_be_given():
    q, k, v = inputs(t=6)
    ours = linear_attend(q, k, v, ROPE, feature=lambda x: (x / 2).exp())
    # What the oracle's φ takes to e^(x/2).
    q, k = (torch.where(x > 0, (x / 2).exp() - 1, x / 2) for x in (q, k))
    assert_same(ours, looped(q, k, v, lambda b, i, j: j <= i))


# Numbers


def test_the_denominator_is_positive_however_negative_the_inputs():
    # elu(x) + 1 = e^x down there; formed as a sum it would lose its digits and then be zero.
    for shift in (-10.0, -20.0, -40.0):
        q, k, v = inputs(t=5)
        q, k = q + shift, k + shift
        assert_same(linear_attend(q, k, v, ROPE), looped(q, k, v, lambda b, i, j: j <= i))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_inputs_are_summed_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in inputs(b=1, t=200, dv=3))
    ours = linear_attend(q, k, v, ROPE)
    assert ours.dtype == dtype
    q, k, v = q.double(), k.double(), v.double()
    oracle = dense(q, k, v, future(200, 200))
    # A sum of n products errs by n units of 2⁻²⁴ of the sum of their sizes; two of them, of 8 and of up to 200 terms,
    # are nested in the numerator and in the denominator, and each feature and cosine is rounded before.
    a, c = (turned(phi(x), torch.zeros(200)).abs() for x in (q, k.repeat_interleave(2, 1)))
    sizes = (a @ c.mT).tril().sum(-1) / (phi(q) @ phi(k.repeat_interleave(2, 1)).mT).tril().sum(-1)
    bound = 2 * (8 + 200 + 8) * 2.0**-24 * float(sizes.max()) * float(v.abs().max())
    assert_same(ours, oracle, within=bound + torch.finfo(dtype).eps / 2 * float(oracle.abs().max()))


def test_autocast_does_not_round_the_sums():
    q, k, v = (x.float() for x in inputs(t=9))
    plainly = linear_attend(q, k, v, ROPE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear_attend(q, k, v, ROPE), plainly)
