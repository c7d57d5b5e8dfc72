"""Tables that follow from two numbers a head: these learn in the pass over rows, and no diagonal is walked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, sinks, window
from tests.backends.triton.dense import DEVICE

pytest.importorskip("triton")

from milepost.backends.triton.attention import flash as flash_module
from milepost.backends.triton.attention import table_gradient as tables
from milepost.backends.triton.attention.flash import flash

H, G, D = 4, 2, 16


def drawn(t: int, s: int, b: int = 2) -> list[Tensor]:
    """q, k, v, the weights of the output and those of the log-sum-exp, in float64."""
    made = torch.Generator().manual_seed(3)
    shapes = (b, H, t, D), (b, G, s, D), (b, G, s, D), (b, H, t, D), (b, H, t)
    return [torch.randn(shape, generator=made, dtype=torch.float64).to(DEVICE) for shape in shapes]


def bent(form: str, p: Tensor, a: Tensor, distance: Tensor) -> Tensor:
    """KERPLE's formula (2) and (3), in the dtype it is given: −p ln(1 + a d), and −a d^p."""
    p, a = (each.view(-1, *(1,) * distance.dim()) for each in (p, a))
    d = distance.abs().to(p.dtype)
    if form == "log":
        return -p * torch.log(1 + a * d)
    return -a * torch.where(d > 0, d.clamp(min=1) ** p, 0.0)


def dense(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, visible: Tensor, cap: float = 0.0) -> tuple[Tensor, Tensor]:
    """out and lse; a cap comes last."""
    k, v = (each.repeat_interleave(H // G, 1) for each in (k, v))
    score = q @ k.mT / D**0.5 + bias
    score = cap * torch.tanh(score / cap) if cap else score
    score = score.masked_fill(~visible, -torch.inf)
    return score.softmax(-1) @ v, score.logsumexp(-1)


CASES: dict[str, dict[str, Any]] = {
    "causal": {"t": 150, "s": 150, "ahead": 0},
    "later queries": {"t": 40, "s": 170, "offset": 130, "ahead": 0},
    "everything": {"t": 70, "s": 150},
    "a window with sinks": {"t": 200, "s": 200, "ahead": 0, "behind": 30, "sinks": 2},
    "capped": {"t": 60, "s": 60, "ahead": 0, "cap": 4.0},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_the_gradients_of_both_numbers_are_those_of_the_formula(name: str, monkeypatch: pytest.MonkeyPatch):
    case = dict(CASES[name])
    t, s, form = case.pop("t"), case.pop("s"), "power" if name in ("everything", "capped") else "log"
    launched: list[Any] = []
    launch = flash_module.launch
    monkeypatch.setattr(flash_module, "launch", lambda kernel, *args, **named: launched.append(kernel) or launch(
        kernel, *args, **named
    ))  # fmt: skip
    q, k, v, weights, more = drawn(t, s)
    p, a = (torch.linspace(*ends, H, dtype=torch.float64, device=DEVICE) for ends in ((0.2, 1.3), (0.05, 0.9)))
    i, j = case.get("offset", 0) + torch.arange(t, device=DEVICE)[:, None], torch.arange(s, device=DEVICE)
    visible = j - i <= case.get("ahead", s)
    visible &= (i - j < case.get("behind", s)) | (j < case.get("sinks", 0))
    exact = [each.clone().requires_grad_() for each in (q, k, v, p, a)]
    out, lse = dense(*exact[:3], bent(form, *exact[3:], i - j), visible, case.get("cap", 0.0))
    wanted = torch.autograd.grad((out * weights).sum() + (lse * more).sum(), exact)

    ours = [each.float().requires_grad_() for each in (q, k, v, p, a)]
    first = int((i - j).min()) if "ahead" not in case else 0
    distance = torch.arange(first, int((i - j).max()) + 1, device=DEVICE)
    factor, number = (ours[3], ours[4]) if form == "log" else (ours[4], ours[3])
    leaf = number.detach().double().requires_grad_()
    both = (factor.detach().double(), leaf) if form == "log" else (leaf, factor.detach().double())
    table = bent(form, *both, distance)
    # By hand: each distance's own derivative by the head's number.
    derivative = torch.stack([torch.autograd.grad(table[:, n].sum(), leaf, retain_graph=True)[0] for n in range(
        len(distance))], 1)  # fmt: skip
    found = flash(
        *ours[:3], table=table.detach().float(), first=first, numbers=torch.stack((factor, number)),
        derivative=derivative.float(), **case,
    )  # fmt: skip
    grads = torch.autograd.grad((found[0] * weights.float()).sum() + (found[1] * more.float()).sum(), ours)
    for one, other in zip((*found, *grads), (out, lse, *wanted), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-4)
    assert tables.walk not in launched
    assert launched.count(tables.totals) == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", ["log", "power"])
@pytest.mark.parametrize("seen", [[causal], [causal & (window(20) | sinks(2))], []], ids=["causal", "window", "all"])
def test_a_scheme_learns_as_the_specification_does(form: Any, seen: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "walk", None)
    scheme = mp.Scheme(mp.Kerple(H, form=form), *seen).to(DEVICE)
    q, k, v, weights, _ = (each.float() for each in drawn(70, 70))
    leaves = [each.requires_grad_() for each in (q, k, v)] + list(scheme.parameters())
    answers = [
        torch.autograd.grad((mp.attend(q, k, v, scheme, backend=backend) * weights).sum(), leaves)
        for backend in ("triton", "reference")
    ]
    for ours, exact in zip(*answers, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_so_it_does_with_documents(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "walk", None)
    scheme = mp.Scheme(mp.Kerple(H), causal).to(DEVICE)
    q, k, v, weights, _ = (each.float() for each in drawn(90, 90))
    documents = torch.tensor([0] * 30 + [1] * 41 + [-1] * 4 + [2] * 15, device=DEVICE).expand(2, -1)
    leaves = [each.requires_grad_() for each in (q, k, v)] + list(scheme.parameters())
    answers = [
        torch.autograd.grad((mp.attend(q, k, v, scheme, backend=backend, documents=documents) * weights).sum(), leaves)
        for backend in ("triton", "reference")
    ]
    for ours, exact in zip(*answers, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_beside_another_bias_diagonals_are_walked():
    """What two tables add is no factor of anything."""
    scheme = mp.Scheme(mp.Kerple(H), mp.T5Bias(H), causal).to(DEVICE)
    torch.nn.init.normal_(scheme.parts[1].table)
    q, k, v, weights, _ = (each.float() for each in drawn(60, 60, 1))
    answers = [
        torch.autograd.grad((mp.attend(q, k, v, scheme, backend=backend) * weights).sum(), list(scheme.parameters()))
        for backend in ("triton", "reference")
    ]
    for ours, exact in zip(*answers, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_what_does_not_go_together_is_refused():
    q, k, v, *_ = (each.float() for each in drawn(8, 8))
    table, numbers = torch.zeros(H, 8, device=DEVICE), torch.ones(2, H, device=DEVICE)
    with pytest.raises(ValueError, match="numbers and derivative come together"):
        flash(q, k, v, ahead=0, table=table, numbers=numbers)
    with pytest.raises(ValueError, match=r"numbers is \[1, 4\]"):
        flash(q, k, v, ahead=0, table=table, numbers=numbers[:1], derivative=table)


def test_torch_checks_the_operator():
    q, k, v, grad, _ = (each.float() for each in drawn(20, 20, 1))
    table, numbers = torch.randn(H, 20, device=DEVICE), torch.ones(2, H, device=DEVICE)
    facets = (None, None, table, None, 0.25, 0, flash_module.UNLIMITED, 0, 0, 0, 0.0, False)
    out, lse = torch.ops.milepost.flash(q, k, v, *facets)
    inputs = (grad, None, q, k, v, out, lse, False, False, *facets, *(None,) * 6, numbers, table)
    torch.library.opcheck(
        torch.ops.milepost.flash_backward.default, inputs,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )  # fmt: skip
