"""A vector of each head added to all of its tokens: torch's numbers in float32, one rounding where they are short."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.dense import DEVICE

pytest.importorskip("triton")

from milepost.backends.triton.relative.shifts import shifted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "width", "turned"), [(3, 16, True), (3, 12, False), (1, 16, False)])
def test_it_adds_what_torch_adds_with_its_gradients(dtype: torch.dtype, heads: int, width: int, turned: bool):
    torch.manual_seed(1)
    shape = (2, 600, 3, width) if turned else (2, 3, 600, width)
    x = torch.randn(shape, device=DEVICE).to(dtype)
    x = (x.transpose(1, 2) if turned else x).requires_grad_()
    shift = torch.randn(heads, 1, width, device=DEVICE, requires_grad=True)
    out, plain = shifted(x, shift), (x.float() + shift).to(dtype)
    assert torch.equal(out, plain)
    assert out.stride() == x.stride()
    grad = torch.randn_like(out)
    (dx, d_shift), (_, true) = (torch.autograd.grad(each, (x, shift), grad) for each in (out, plain))
    assert torch.equal(dx, grad)
    torch.testing.assert_close(d_shift, true, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(shifted(x, shift), plain)
