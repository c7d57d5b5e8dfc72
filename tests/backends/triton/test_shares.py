"""Answers joined and shares of gradients added, by one launch each: against the formulas in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.backends.triton.dense import DEVICE

pytest.importorskip("triton")

from milepost.backends.triton.joining import sums as shares


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_any_number_of_parts_are_joined(parts: int):
    made = torch.Generator().manual_seed(parts)
    outs = [torch.randn(2, 3, 41, 12, generator=made).to(DEVICE) for _ in range(parts)]
    lses = [200 * torch.randn(2, 3, 41, generator=made).to(DEVICE) for _ in range(parts)]
    out, lse = torch.empty(2, 41, 3, 12, device=DEVICE).transpose(1, 2), torch.empty(2, 3, 41, device=DEVICE)
    shares.joined(out, lse, list(zip(outs, lses, strict=True)))
    weights = torch.stack(lses).double().softmax(0)[..., None]
    torch.testing.assert_close(out.double(), (weights * torch.stack(outs)).sum(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), torch.stack(lses).double().logsumexp(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 4, 6])
def test_shares_are_turned_back_each_as_it_was_and_added(parts: int, neighbours: bool):
    made = torch.Generator().manual_seed(parts)
    given = [torch.randn(2, 3, 41, 20, generator=made).to(DEVICE) for _ in range(parts)]
    angles = [torch.randn(1, 41, 8, generator=made, dtype=torch.float64).to(DEVICE) for _ in range(parts)]

    def back(x: Tensor, angle: Tensor) -> Tensor:
        x, turns = x.double(), torch.polar(torch.ones_like(angle), -angle)[:, None]
        some = x[..., :16].unflatten(-1, (8, 2)) if neighbours else x[..., :16].unflatten(-1, (2, 8)).mT
        pairs = torch.view_as_real(torch.view_as_complex(some.contiguous()) * turns)
        return torch.cat(((pairs if neighbours else pairs.mT).flatten(-2), x[..., 16:]), -1)

    waves = [(angle.cos().float(), angle.sin().float()) for angle in angles]
    found = torch.empty(2, 41, 3, 20, device=DEVICE).transpose(1, 2)
    # Every second one was turned back before.
    mixed = [(x, None if n % 2 else each) for n, (x, each) in enumerate(zip(given, waves, strict=True))]
    shares.added(found, mixed, None, neighbours)
    exact = sum(x.double() if n % 2 else back(x, angles[n]) for n, x in enumerate(given))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    shares.added(found, [(x, None) for x in given], waves[0], neighbours)
    exact = back(torch.stack(given).double().sum(0), angles[0])
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    shares.added(found, [(x, None) for x in given])
    torch.testing.assert_close(found.double(), torch.stack(given).double().sum(0), rtol=1e-5, atol=1e-5)
