"""Attention over several sets of keys joined by a kernel: against softmax over all of them, in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from tests.backends.triton.dense import DEVICE, GPU

pytest.importorskip("triton")

from milepost.backends.triton.joining.merged import merged


def drawn(parts: int, dtype: torch.dtype = torch.float64, tokens_first: bool = False) -> list[Tensor]:
    """Answers and log-sum-exps; the first row saw nothing in any part, the second nothing in the first."""
    made = torch.Generator().manual_seed(parts)
    found: list[Tensor] = []
    for number in range(parts):
        out, lse = torch.randn(2, 3, 37, 12, generator=made), 3 * torch.randn(2, 3, 37, generator=made)
        for row in range(1 + (number == 0)):
            out[:, :, row], lse[:, :, row] = 0, -torch.inf
        out = out.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else out
        found += [out.to(DEVICE, dtype), lse.to(DEVICE, torch.float64 if dtype == torch.float64 else torch.float32)]
    return found


def by_hand(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    outs, lses = torch.stack(given[::2]), torch.stack(given[1::2])
    alive = lses.isfinite().any(0)
    lses = torch.where(alive, lses, 0.0)
    lse = torch.logsumexp(lses, 0)
    weights = torch.where(alive, (lses - lse).exp(), 0.0)
    return (outs * weights[..., None]).sum(0), torch.where(alive, lse, -torch.inf)


def answers(
    attention: Callable[[list[Tensor]], tuple[Tensor, Tensor]], given: list[Tensor], of_lse: bool
) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in given]
    out, lse = attention(leaves)
    made = torch.Generator().manual_seed(9)
    weights = [torch.randn(each.shape, generator=made).to(DEVICE) for each in (out, lse)]
    total = (out.double() * weights[0]).sum()
    if of_lse:
        total = total + (lse.double() * weights[1])[lse.isfinite()].sum()
    return [out, lse, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("of_lse", [True, False], ids=["with lse", "without"])
@pytest.mark.parametrize(("parts", "tokens_first"), [(2, False), (3, True), (5, False)])
def test_it_is_the_formula_and_its_gradients(parts: int, tokens_first: bool, of_lse: bool):
    exact = answers(by_hand, drawn(parts), of_lse)
    given = drawn(parts, torch.float32, tokens_first)
    for ours, true in zip(answers(lambda each: merged(*each), given, of_lse), exact, strict=True):
        finite = true.isfinite()
        assert torch.equal(ours.isfinite(), finite)
        torch.testing.assert_close(ours.double()[finite], true[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_lse", [True, False], ids=["with lse", "without"])
@pytest.mark.parametrize(("parts", "batch"), [(2, 1), (3, 2), (5, 1)])
def test_the_last_is_set_off_against_the_others(parts: int, batch: int, of_lse: bool):
    strength = torch.rand(batch, 37, generator=torch.Generator().manual_seed(3)).to(DEVICE)

    def set_off(given: list[Tensor]) -> tuple[Tensor, Tensor]:
        alive = torch.stack(given[1:-2:2]).isfinite().any(0)
        level = by_hand(given[:-2])[1].masked_fill(~alive, 0.0)
        return by_hand([*given[:-1], given[-1] - strength[:, None].double() * level])

    exact, given = answers(set_off, drawn(parts), of_lse), drawn(parts, torch.float32)
    for ours, true in zip(answers(lambda each: merged(*each, strength=strength), given, of_lse), exact, strict=True):
        finite = true.isfinite()
        assert torch.equal(ours.isfinite(), finite)
        torch.testing.assert_close(ours.double()[finite], true[finite], rtol=1e-4, atol=1e-5)


def test_nothing_is_joined_without_rows():
    out, lse = torch.zeros(1, 2, 0, 8, device=DEVICE), torch.zeros(1, 2, 0, device=DEVICE)
    assert merged(out, lse, out, lse)[0].shape == (1, 2, 0, 8)


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        (mp.DualChunk(12, 4), 3), (mp.Dilute(mp.Rerope(5), 8), 2),
        (mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(5)), 8, strength=0.5), 8), 3),
    ],
    ids=["chunks", "diluted", "sinks kept"],
)  # fmt: skip
def test_regimes_are_joined_by_it(place: object, parts: int, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(1)
    given = [torch.randn(1, heads, 40, 16, device=DEVICE).requires_grad_() for heads in (2, 1, 1)]
    scheme = mp.Scheme(mp.Rope(16), place, mp.causal)
    documents = torch.arange(40, device=DEVICE) // 30
    calls: list[int] = []

    def counted(*parts: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        calls.append(len(parts) // 2)
        return merged(*parts, **more)

    monkeypatch.setattr(importlib.import_module("milepost.backends.triton.joining.merged"), "merged", counted)
    found = []
    for backend in ("triton", "reference"):
        out = mp.attend(*given, scheme, backend=backend, documents=documents)
        found.append([out, *torch.autograd.grad((out * torch.linspace(-1, 1, 16, device=DEVICE)).sum(), given)])
    assert calls == [parts]
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4 if not GPU else 1e-3)
