from __future__ import annotations

import math

import pytest
import torch

from milepost import Alibi, Kerple, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain


def kernel(form: str, p: list[float], a: list[float]) -> Kerple:
    method = Kerple(len(p), form=form).double()
    method.p.data.copy_(torch.tensor(p, dtype=torch.float64))
    method.a.data.copy_(torch.tensor(a, dtype=torch.float64))
    return method


def penalty(form: str, p: float, a: float, distance: int) -> float:
    """What the paper takes off a score, with the bounds that the authors' code holds the weights to."""
    a = max(a, 0.01)
    if form == "log":
        return max(p, 0.01) * math.log(1 + a * distance)
    return a * distance ** min(max(p, 0.01), 2.0)


# Within the bounds, then one weight past each bound.
INSIDE = ([0.3, 1.7, 1.0, 0.02], [0.5, 0.03, 0.9, 2.5])
OUTSIDE = ([-1.0, 0.0, 3.5, 1.2], [0.4, -2.0, 0.7, 0.0])


@pytest.mark.parametrize("weights", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("form", ["log", "power"])
def test_each_score_is_lowered_by_the_kernel_of_its_distance(form, weights):
    q, k, v = inputs(dv=5)
    method = kernel(form, *weights)
    p, a = weights

    def score(b, h, i, j):
        if j > i:
            return -math.inf
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) - penalty(form, p[h], a[h], i - j)

    assert_same(attend(q, k, v, Scheme(method, causal)), plain(q, k, v, score))


@pytest.mark.parametrize("form", ["log", "power"])
def test_without_a_mask_both_sides_are_penalised_alike(form):
    q, k, v = inputs()
    method = kernel(form, *INSIDE)
    p, a = INSIDE

    def score(b, h, i, j):
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) - penalty(form, p[h], a[h], abs(i - j))

    assert_same(attend(q, k, v, Scheme(method)), plain(q, k, v, score))


def test_log_is_the_default_form():
    assert Kerple(4).form == "log"


def test_a_power_of_one_is_alibi_with_learned_slopes():
    q, k, v = inputs()
    # The slopes of four heads are 1/4, 1/16, 1/64 and 1/256; the last is below what the kernel may hold.
    method = kernel("power", [1.0] * 4, [0.25, 0.0625, 0.015625, 0.25])
    ours = attend(q, k, v, Scheme(method, causal))
    assert_same(ours[:, :3], attend(q, k, v, Scheme(Alibi(4), causal))[:, :3])


@pytest.mark.parametrize("form", ["log", "power"])
def test_gradients_past_a_bound_are_those_at_the_bound(form):
    """The authors clamp the weights in place before they are used, so the gradient is taken where they were put."""
    method = kernel(form, *OUTSIDE)
    most = 2.0 if form == "power" else math.inf
    p = method.p.detach().clamp(0.01, most).requires_grad_()
    a = method.a.detach().clamp(min=0.01).requires_grad_()
    distance = torch.arange(1, 9, dtype=torch.float64)
    weight = torch.linspace(-1, 2, 32, dtype=torch.float64).view(4, 8)
    taken = p[:, None] * torch.log(1 + a[:, None] * distance)
    if form == "power":
        taken = a[:, None] * distance ** p[:, None]
    (-taken * weight).sum().backward()

    zero = torch.zeros(1, dtype=torch.int64)
    bent = method.bend(torch.zeros(4, 8, dtype=torch.float64), zero, torch.arange(4)[:, None], distance, zero)
    (bent * weight).sum().backward()
    assert p.grad is not None
    assert a.grad is not None
    assert method.p.grad is not None
    assert method.a.grad is not None
    assert_same(method.p.grad, p.grad, within=1e-10)
    assert_same(method.a.grad, a.grad, within=1e-10)


def test_a_call_leaves_the_weights_where_they_are():
    q, k, v = inputs()
    method = kernel("power", *OUTSIDE)
    before = {name: weight.clone() for name, weight in method.state_dict().items()}
    attend(q, k, v, Scheme(method, causal)).sum().backward()
    assert all(torch.equal(weight, before[name]) for name, weight in method.state_dict().items())


def test_the_own_token_is_never_penalised_and_its_gradient_is_finite():
    method = kernel("power", *INSIDE)
    zero = torch.zeros(1, dtype=torch.int64)
    bent = method.bend(torch.zeros(4, 1, dtype=torch.float64), zero, torch.arange(4)[:, None], zero, zero)
    bent.sum().backward()
    assert not bent.any()
    assert method.p.grad is not None
    assert method.p.grad.tolist() == [0.0] * 4


def test_weights_start_uniform_up_to_two_and_up_to_one():
    torch.manual_seed(0)
    method = Kerple(20_000)
    for weight, top in ((method.p.detach(), 2), (method.a.detach(), 1)):
        assert 0 <= weight.min().item() < 0.001 * top
        assert 0.999 * top < weight.max().item() <= top
        # The mean of 20000 uniform draws is known to 0.2 % of the range; five of these are allowed.
        assert abs(weight.mean().item() / top - 0.5) < 0.0103


def test_each_head_has_two_weights():
    assert sum(weight.numel() for weight in Kerple(12).parameters()) == 24


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"heads": 0}, ValueError, r"Kerple\(heads=0\): heads must be at least 1"),
        ({"heads": -1}, ValueError, r"Kerple\(heads=-1\): heads must be at least 1"),
        ({"heads": 4.0}, TypeError, r"Kerple\(heads=4.0\): heads must be an integer, not float"),
        ({"heads": 4, "form": "exp"}, ValueError, r"Kerple\(form='exp'\): form must be one of 'log', 'power'"),
        ({"heads": 4, "form": None}, ValueError, r"form must be one of 'log', 'power'"),
    ],
)
def test_what_is_no_kernel_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Kerple(**options)
