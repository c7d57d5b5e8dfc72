"""Dropout drops its share of the weights, scales up the rest, and obeys the seed, in every backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.backends import BACKENDS

SCHEME = mp.Scheme(mp.Rope(8))


def weights(backend: str, dropout: float) -> Tensor:
    """The attention weights [b h t s] themselves: the values are one-hot."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(4, 4, 40, 8, generator=generator) for _ in range(2))
    v = torch.eye(40).expand(4, 4, 40, 40)
    return mp.attend(q, k, v, SCHEME, dropout=dropout, backend=backend)


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "triton"])
def test_a_share_is_dropped_and_the_rest_scaled_up(backend: str):
    torch.manual_seed(0)
    whole, dropped = weights(backend, 0.0), weights(backend, 0.25)
    gone = dropped == 0
    # 25,600 draws: five standard deviations are 0.0135.
    assert abs(float(gone.float().mean()) - 0.25) < 0.0135
    assert torch.allclose(dropped[~gone], whole[~gone] / 0.75, rtol=1e-4)


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "triton"])
def test_the_seed_decides(backend: str):
    torch.manual_seed(1)
    first, second = weights(backend, 0.5), weights(backend, 0.5)
    torch.manual_seed(1)
    assert torch.equal(weights(backend, 0.5), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("axis", range(4))
def test_no_two_neighbours_fall_together(axis: int):
    torch.manual_seed(2)
    gone = (weights("reference", 0.5) == 0).float()
    together = (gone.narrow(axis, 0, gone.shape[axis] - 1) * gone.narrow(axis, 1, gone.shape[axis] - 1)).mean()
    assert abs(float(together) - 0.25) < 0.02
