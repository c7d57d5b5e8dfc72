"""Learned RoPE (kexue.fm/archives/8265): a score is Σ_n Re[q_n · conj(k_n) · e^(i(p − r)f_n)].

f_n = θ^(−2n/d) + offset_n, and the offsets are trained.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import LearnedRope, Partial, Rope, Scheme, attend, causal
from tests.oracles import Score, assert_same, hidden_future, in_complex, inputs, plain

PAIRS = ("halves", "neighbours")


def trained_for_a_while(dim: int, theta: float = 10000.0, pairs: str = "halves") -> LearnedRope:
    """Offsets that have moved, the same each time."""
    method = LearnedRope(dim, theta=theta, pairs=pairs).double()  # pyright: ignore
    torch.nn.init.normal_(method.offset, std=0.3, generator=torch.Generator().manual_seed(3))
    return method


def score_of(q: Tensor, k: Tensor, offset: list[float], theta: float, pairs: str) -> Score:
    """The causal score of one pair of tokens, a sum over pairs of channels."""
    d, group, behind = q.shape[-1], q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    a, c = in_complex(q, pairs), in_complex(k, pairs)

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i + behind:
            return -math.inf
        total = 0.0
        for n in range(d // 2):
            turn = cmath.exp(1j * (i + behind - j) * (theta ** (-2 * n / d) + offset[n]))
            total += (complex(a[b, h, i, n]) * complex(c[b, h // group, j, n]).conjugate() * turn).real
        return total / math.sqrt(d)

    return score


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("theta", [10000.0, 20.0])
def test_every_pair_turns_by_its_own_learned_frequency(pairs, theta):
    q, k, v = inputs(t=7, s=10, dv=5)
    method = trained_for_a_while(8, theta, pairs)
    oracle = plain(q, k, v, score_of(q, k, method.offset.tolist(), theta, pairs))
    assert_same(attend(q, k, v, Scheme(method, causal)), oracle)


def test_the_frequencies_are_those_of_rope_and_the_offsets():
    method = trained_for_a_while(16, theta=500.0)
    expected = [500.0 ** (-n / 8) + offset for n, offset in enumerate(method.offset.tolist())]
    assert_same(method.frequencies(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_before_training_it_is_rope_to_the_last_bit(pairs, dtype):
    x = inputs(t=6, d=64)[0].to(dtype)
    index = torch.tensor([0, 1, 77, 10**6, 10**7, 2**24 + 1])
    method, rope = LearnedRope(64, pairs=pairs), Rope(64, pairs=pairs)
    with torch.no_grad():
        assert torch.equal(method.turn(x, index), rope.turn(x, index))
    # Where a gradient may be asked the same sum is formed in another order.
    unit = torch.finfo(dtype).eps * 2 * float(x.abs().max())
    assert_same(method.turn(x, index), rope.turn(x, index), within=unit)


def test_only_the_offsets_are_stored_and_they_start_at_zero():
    stored = LearnedRope(8).state_dict()
    assert list(stored) == ["offset"]
    assert torch.equal(stored["offset"], torch.zeros(4))


def test_a_bfloat16_copy_keeps_exact_angles_at_a_million():
    x, at = inputs(t=4, d=64)[0].float(), torch.tensor([999_997, 10**6, 1_000_001, 1_234_567])
    method = LearnedRope(64).to(torch.bfloat16)
    assert method.offset.dtype == torch.bfloat16
    angle = at.double()[:, None] * 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    oracle = in_complex(x.double(), "halves") * torch.exp(1j * angle)
    # Cosine, sine, two products and a sum are rounded to float32, each of them to half a unit of 2⁻²³.
    bound = 5 * 2.0**-24 * 2 * float(x.abs().max())
    assert_same(method.turn(x, at), torch.cat((oracle.real, oracle.imag), -1), within=bound)


def test_float32_angles_would_be_far_off_at_a_million():
    # What the test above tells apart: float32 rounds an angle of 10⁶ to a sixteenth.
    at = torch.tensor([1_234_567.0])
    f = 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    apart = (at.float() * f.float()).double() - at.double() * f
    assert float(apart.abs().max()) > 1e-3


def test_the_gradient_of_the_offsets_is_that_of_the_formula():
    q, k, v = inputs(g=4, t=7, d=8)
    weight = torch.randn(2, 4, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    method = trained_for_a_while(8, theta=50.0)
    (attend(q, k, v, Scheme(method, causal)) * weight).sum().backward()

    offset = method.offset.detach().clone().requires_grad_()
    f = 50.0 ** (-torch.arange(0, 8, 2).double() / 8) + offset
    at = torch.exp(1j * torch.arange(7).double()[:, None] * f)
    a, c = in_complex(q, "halves") * at, in_complex(k, "halves") * at
    weights = ((a @ c.conj().mT).real / math.sqrt(8) + hidden_future(7)).softmax(-1)
    ((weights @ v) * weight).sum().backward()
    assert method.offset.grad is not None
    assert offset.grad is not None
    assert float(offset.grad.abs().min()) > 1e-3
    size = offset.grad.abs().max()
    assert_same(method.offset.grad / size, offset.grad / size)


@pytest.mark.parametrize("pairs", PAIRS)
def test_the_gradient_of_the_offsets_by_finite_difference(pairs):
    q, k, v = inputs(b=1, h=2, g=1, t=5, d=4)
    method = trained_for_a_while(4, theta=50.0, pairs=pairs)

    def loss(offset: Tensor) -> Tensor:
        with torch.no_grad():
            method.offset.copy_(offset)
        return attend(q, k, v, Scheme(method, causal)).square().sum()

    start, step = method.offset.detach().clone(), 1e-3
    loss(start).backward()
    assert method.offset.grad is not None
    for n in range(2):
        one = torch.eye(2, dtype=torch.float64)[n] * step
        # Five points: off by step⁴/30 times a fifth derivative, which distances up to 4 keep within a few thousand.
        near, far = loss(start + one) - loss(start - one), loss(start + 2 * one) - loss(start - 2 * one)
        slope = (8 * near - far) / (12 * step)
        assert float(method.offset.grad[n]) == pytest.approx(float(slope.detach()), abs=1e-9)


def test_queries_and_keys_get_their_gradients_too():
    q, k, v = (x.requires_grad_() for x in inputs(b=1, h=2, g=1, t=4, d=4))
    scheme = Scheme(trained_for_a_while(4, theta=50.0), causal)
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, scheme), (q, k, v))


def test_values_are_left_alone():
    x = inputs(t=5)[0]
    assert torch.equal(trained_for_a_while(8).turn(x, torch.arange(5), "value"), x)


def test_a_part_of_the_channels_may_turn():
    x, index = inputs(t=5, d=12)[0], torch.arange(5)
    method = trained_for_a_while(8)
    assert_same(Partial(method, of=12).turn(x, index), torch.cat((method.turn(x[..., :8], index), x[..., 8:]), -1))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"head_dim": 127},
            ValueError,
            r"LearnedRope\(head_dim=127\): head_dim must be even, because channels are turned in pairs",
        ),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1"),
        ({"head_dim": -8}, ValueError, r"LearnedRope\(head_dim=-8\): head_dim must be at least 1"),
        ({"head_dim": 8.0}, TypeError, "head_dim must be an integer, not float"),
        ({"head_dim": True}, TypeError, "head_dim must be an integer, not bool"),
        ({"theta": 1.0}, ValueError, r"LearnedRope\(theta=1.0\): theta must be greater than 1"),
        ({"theta": math.inf}, ValueError, "theta must be finite"),
        ({"theta": "1e4"}, TypeError, "theta must be a number, not str"),
        ({"pairs": "half"}, ValueError, r"LearnedRope\(pairs='half'\): pairs must be one of 'halves', 'neighbours'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        LearnedRope(**({"head_dim": 8} | arguments))


def test_a_tensor_of_another_width_is_refused():
    text = r"LearnedRope\(head_dim=8\): given a tensor of 12 channels; .*Partial\(LearnedRope\(8\), of=12\)"
    with pytest.raises(ValueError, match=text):
        LearnedRope(8).turn(torch.zeros(1, 1, 3, 12), torch.arange(3))


def test_two_rotations_in_one_scheme_are_refused():
    with pytest.raises(ValueError, match=r"LearnedRope\(8\) and Rope\(8\) both turn pairs of channels"):
        Scheme(LearnedRope(8), Rope(8))


@pytest.mark.parametrize("pairs", ["neighbours", "halves"])
@pytest.mark.parametrize("backend", [None, "chunked", "reference"])
def test_frequencies_learn_through_a_derivative_that_torch_func_takes_of_queries(pairs: Any, backend: str | None):
    rope = mp.LearnedRope(8, pairs=pairs).double()
    scheme = mp.Scheme(rope, mp.causal)
    q, k, v, factor = torch.randn(4, 1, 2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(x: Tensor) -> Tensor:
        return (mp.attend(x, k, v, scheme, backend=backend) * factor).sum()

    def penalty() -> Tensor:
        return torch.func.grad(loss)(q).square().sum()

    through, _ = torch.func.vjp(loss, q)
    # torch's fused function has no second derivative on the CPU, and says so.
    twice = [] if backend is None else [(penalty(), penalty)]
    for value, of in [(through, lambda: loss(q)), *twice]:
        found = torch.autograd.grad(value, rope.offset)[0]
        for n in range(4):
            sides: list[float] = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    rope.offset[n] += step
                    sides.append(float(of()))
                    rope.offset[n] -= step
            assert float(found[n]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("others", [(), (mp.Rerope(5),), (mp.LeakyRerope(5, 2.5),), (mp.Alibi(4),)])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_far_from_the_first_position_frequencies_learn_the_same(
    dtype: torch.dtype, within: float, others: tuple[object, ...]
):
    q, k, v = inputs(t=12)
    found: list[Tensor] = []
    for kind, first in ((torch.float64, 0), (dtype, 10**4), (dtype, 10**6)):
        method = trained_for_a_while(8)
        scheme, at = Scheme(method, *others, causal), torch.arange(12) + first
        documents = torch.tensor([[0] * 12, [0] * 7 + [1] * 5])
        for told in ({"position": at}, {"index": at, "key_index": at, "documents": documents}):
            out = attend(*(each.to(kind) for each in (q, k, v)), scheme, **told)  # pyright: ignore
            out.double().square().sum().backward()
        assert method.offset.grad is not None
        found.append(method.offset.grad)
    for far in found[1:]:
        assert ((far - found[0]).norm() / found[0].norm()) < within
