# pyright: basic, reportMissingImports=false
"""The kernels that only read and write, as `chips` compiles them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _of(width: int, heads: int = 2) -> Tensor:
    return torch.randn(1, heads, 512, width, dtype=torch.bfloat16, requires_grad=True)


def _rotary() -> None:
    from milepost.backends.triton.rotary import rotate_qk, rotate_qk_at, turns_of

    cos, position = torch.ones(1, 512, 64), torch.arange(512)[None]
    for neighbours in (False, True):
        q, k = _of(128), _of(128)
        for a, b in (
            rotate_qk(q, k, cos, cos, neighbours=neighbours),
            rotate_qk_at(q, k, turns_of(torch.ones(64)), position, neighbours=neighbours),
        ):
            (a.sum() + b.sum()).backward()


def _shifts() -> None:
    from milepost.backends.triton.shifts import shifted

    for width in (64, 80, 128):
        shifted(_of(width), torch.randn(2, 1, width, requires_grad=True)).sum().backward()


def _buckets() -> None:
    from milepost.backends.triton.buckets import picked

    for heads in (6, 16):
        picked(torch.randn(32, heads, requires_grad=True), torch.arange(129) % 32).sum().backward()


def _turns() -> None:
    """Both turns at once, and back."""
    from milepost.backends.triton.twice import _turned, _turned_back

    for width, neighbours, turns in ((64, False, True), (128, True, True), (128, False, False)):
        x, cos = _of(width).detach(), torch.ones(1, 512, width // 2)
        others = (cos, cos) if turns else None
        near, far = _turned(x, (cos, cos), others, neighbours)
        _turned_back(near, far[:, :, 100:], 100, (cos, cos), others, neighbours)


def _merge() -> None:
    from milepost.backends.triton.merged import merged

    for width in (64, 128, 256):
        for parts in (2, 3):
            given = [each for _ in range(parts) for each in (_of(width), torch.zeros(1, 2, 512, requires_grad=True))]
            out, lse = merged(*given)
            (out.sum() + lse.sum()).backward()


def _shares() -> None:
    """Answers joined, and gradients added."""
    from milepost.backends.triton.shares import JOINED, MOST, added, joined

    for width, neighbours in ((64, False), (128, True), (128, False)):
        x, cos, lse = _of(width).detach(), torch.ones(1, 512, width // 2), torch.zeros(1, 2, 512)
        for parts in range(1, JOINED + 1):
            joined(torch.empty_like(x), lse.clone(), [(x, lse)] * parts)
        for parts in range(1, MOST + 1):
            added(torch.empty_like(x), [(x, (cos, cos))] * parts, None, neighbours)
            added(torch.empty_like(x), [(x, None)] * parts, (cos, cos), neighbours)
            added(torch.empty_like(x, dtype=torch.float32), [(x, None)] * parts)


MEMORY: dict[str, Callable[[], None]] = {
    "rotary": _rotary,
    "shifts": _shifts,
    "buckets": _buckets,
    "turns": _turns,
    "merge": _merge,
    "shares": _shares,
}
