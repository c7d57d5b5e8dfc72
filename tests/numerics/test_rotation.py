"""The rotation itself, which every method that turns channels shares."""

from __future__ import annotations

import pytest
import torch

from milepost import rotate
from tests.oracles import assert_same, inputs

PAIRS = ("halves", "neighbours")


@pytest.mark.parametrize("pairs", PAIRS)
def test_rotating_back_undoes_it(pairs):
    x = inputs(t=5)[0]
    angle = torch.randn(5, 4, dtype=torch.float64)
    there = rotate(x, angle.cos(), angle.sin(), pairs=pairs)
    assert float((there - x).abs().max()) > 0.1
    assert_same(rotate(there, angle.cos(), -angle.sin(), pairs=pairs), x)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("learned", [False, True])
def test_the_gradient_of_a_rotation(pairs, learned):
    x = inputs(b=1, h=2, t=3, d=4)[0].requires_grad_()
    angle = torch.randn(3, 2, dtype=torch.float64)
    cos, sin = (table.requires_grad_(learned) for table in (angle.cos(), angle.sin()))
    given = (x, cos, sin)
    assert torch.autograd.gradcheck(lambda x, cos, sin: rotate(x, cos, sin, pairs=pairs), given)
    assert torch.autograd.gradgradcheck(lambda x, cos, sin: rotate(x, cos, sin, pairs=pairs), given)


LAID = {
    "tokens before heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "begun at an odd number": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x),
    "an odd number apart": lambda x: torch.nn.functional.pad(x, (0, 1))[..., :-1],
    "every other channel": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one row for all": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("name", LAID)
def test_however_its_channels_lie_it_is_the_formula(pairs, name):
    x = LAID[name](inputs(t=5, d=8)[0]).requires_grad_()
    angle = torch.randn(5, 4, dtype=torch.float64)
    first, second = (slice(0, 4), slice(4, 8)) if pairs == "halves" else (slice(0, 8, 2), slice(1, 8, 2))

    def formula(x, sin):
        out = torch.empty(x.shape, dtype=torch.float64)
        out[..., first] = x[..., first] * angle.cos() - x[..., second] * sin
        out[..., second] = x[..., second] * angle.cos() + x[..., first] * sin
        return out

    grad = LAID[name](torch.randn(x.shape, dtype=torch.float64))
    out = rotate(x, angle.cos(), angle.sin(), pairs=pairs)
    assert_same(out, formula(x.detach(), angle.sin()))
    assert_same(torch.autograd.grad(out, x, grad)[0], formula(grad, -angle.sin()))


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tables", [torch.bfloat16, torch.float16, torch.float32])
def test_a_narrow_x_may_be_rotated_by_tables_of_any_dtype(pairs, dtype, tables):
    x = torch.tensor([[1.0, 0.0, 0.0, -2.0]], dtype=dtype)
    cos, sin = torch.tensor([[0.5, 1.0]], dtype=tables), torch.tensor([[0.25, 0.0]], dtype=tables)
    # Every product and sum here is exact in any of these dtypes.
    oracle = [0.5, 0.0, 0.25, -2.0] if pairs == "halves" else [0.5, 0.25, 0.0, -2.0]
    out = rotate(x, cos, sin, pairs=pairs)
    assert out.dtype == dtype
    assert out.tolist() == [oracle]


def test_a_narrow_x_is_rotated_in_the_wider_dtype_of_the_tables():
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    cos, sin = torch.tensor([[1.0]]), torch.tensor([[0.998]])
    # In bfloat16 the sine would first become 1.
    assert float(rotate(x, cos, sin)[0, 0]) == pytest.approx(0.002, rel=2.0**-8)
