"""Queries and keys rotated in one launch, against the formula in float64."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from tests.backends.triton.dense import DEVICE, GPU, off

pytest.importorskip("triton")

from milepost.backends.triton.rotary import rotate_qk


def rotated(x: Tensor, angle: Tensor, neighbours: bool) -> Tensor:
    """(x, y) ← (x cos − y sin, x sin + y cos) for each pair of channels; the rest is kept."""
    pairs = angle.shape[-1]
    out = x.clone()
    for pair in range(pairs):
        one, two = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + pairs)
        cos, sin = angle[:, None, :, pair].cos(), angle[:, None, :, pair].sin()
        out[..., one] = x[..., one] * cos - x[..., two] * sin
        out[..., two] = x[..., one] * sin + x[..., two] * cos
    return out


@pytest.mark.parametrize("seed", range(40 if GPU else 20))
def test_rotation_agrees_with_float64(seed: int):
    pick = Random(seed)
    torch.manual_seed(seed)
    dtype = pick.choice([torch.float32, torch.bfloat16, torch.float16]) if GPU else torch.float32
    b, h, g = pick.choice([1, 2]), pick.choice([1, 3, 8, 12]), pick.choice([1, 2, 3])
    t, d = pick.choice([1, 5, 33, 1000] if GPU else [1, 5, 33]), pick.choice([16, 20, 64, 128] if GPU else [8, 16, 20])
    pairs, neighbours, same = pick.choice([d // 2, d // 2, d // 4, 3]), pick.random() < 0.5, pick.random() < 0.5
    s = t if same else pick.choice([1, 7, 40])
    q, k = (torch.randn(b, n, heads, d, device=DEVICE).to(dtype).transpose(1, 2) for n, heads in ((t, h), (s, g)))
    if pick.random() < 0.5:
        q, k = q.contiguous(), k.contiguous()
    q.requires_grad_()
    k.requires_grad_()
    angle = torch.randn(pick.choice([1, b]), t, pairs, device=DEVICE, dtype=torch.float64)
    key_angle = angle if same else torch.randn(1, s, pairs, device=DEVICE, dtype=torch.float64)
    tables = [f(a).float() for a in ((angle,) if same else (angle, key_angle)) for f in (torch.cos, torch.sin)]
    got = rotate_qk(q, k, *tables, neighbours=neighbours)
    wide = q.detach().double().requires_grad_(), k.detach().double().requires_grad_()
    exact = rotated(wide[0], angle, neighbours), rotated(wide[1], key_angle, neighbours)
    grads = torch.randn_like(got[0]), torch.randn_like(got[1])
    ours = torch.autograd.grad(got, (q, k), grads)
    true = torch.autograd.grad(exact, wide, [each.double() for each in grads])
    # One rounding to the input's dtype, half a unit in the last place at most.
    bound = 2e-7 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
    assert all(each.dtype == dtype for each in (*got, *ours))
    for mine, theirs in zip((*got, *ours), (*exact, *true), strict=True):
        assert off(mine, theirs) < bound


def test_errors_say_what_to_give():
    q, table = torch.randn(1, 2, 8, 16, device=DEVICE), torch.rand(1, 8, 8, device=DEVICE)
    for arguments, says in (
        ((q, q, table[:, :4], table[:, :4]), "give both as [1 or 1, 8, width/2]"),
        ((q, q, table.double(), table.double()), "give torch.float32"),
        ((q, q, table, table, table), "key_cos and key_sin come together; give both or neither"),
        ((q[..., :8], q[..., :8], table, table), "q has 8 channels, too few for 8 pairs"),
    ):
        with pytest.raises(ValueError) as error:
            rotate_qk(*arguments)
        assert says in str(error.value)
