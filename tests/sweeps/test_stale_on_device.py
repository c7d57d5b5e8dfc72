"""Silent wrong answers that a GPU had: each reproduction on the CPU, and on a GPU where there is one.

Backends are left to `attend`, which on a GPU runs our kernels and compiles FlexAttention. Oracles are the formulas of
`tests/sweeps/memory.py`, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import milepost as mp
from tests.sweeps.memory import Divide, Last, Slowed, angles, distance, turned

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
both = pytest.mark.parametrize("device", ["cpu", CUDA])
BOUND = 5e-3
"""Of float32 with TensorFloat-32 products; what was wrong was off by 0.1 and more."""


def noise(device: str, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def inputs(device: str, h: int, t: int, s: int, d: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    return noise(device, 1, h, t, d), noise(device, 1, h, s, d, seed=1), noise(device, 1, h, s, d, seed=2)


def softmax(scores: Tensor, v: Tensor, window: float = torch.inf) -> Tensor:
    """Causal attention of the last queries; window: how many keys each sees."""
    t, s = scores.shape[-2:]
    far = distance(s, scores.device)[s - t :]
    return scores.masked_fill((far < 0) | (far >= window), -torch.inf).softmax(-1) @ v


def near(got: Tensor, want: Tensor) -> None:
    off = float((got.detach().double() - want.detach()).abs().max() / want.detach().abs().max())
    assert off < BOUND, f"off by {off:.2g} of the largest"


def capped(q: Tensor, k: Tensor, cap: float) -> Tensor:
    far = distance(k.shape[2], q.device)[k.shape[2] - q.shape[2] :]
    slopes = 2.0 ** (-8 * torch.arange(1, q.shape[1] + 1, device=q.device, dtype=torch.float64) / q.shape[1])
    return cap * ((q @ k.mT / q.shape[-1] ** 0.5 - slopes[:, None, None] * far) / cap).tanh()


@both
@pytest.mark.parametrize(("t", "s"), [(32, 2048), (2560, 2560)])
@pytest.mark.parametrize("cap", [2.0, 5.0])
def test_far_keys_under_a_cap_keep_their_weight(cap: float, t: int, s: int, device: str):
    """C1: a cap after a slope keeps far scores at −cap; keys were skipped as if they had no weight."""
    t, s = (t, s) if device == "cuda" else (32, 2048)
    scheme = mp.Scheme(mp.Alibi(2), mp.SoftCap(cap), mp.causal)
    given = [each.requires_grad_() for each in inputs(device, 2, t, s)]
    exact = [each.detach().double().requires_grad_() for each in given]
    want = softmax(capped(exact[0], exact[1], cap), exact[2])
    ends = noise(device, *want.shape, seed=3)
    for _ in range(4):
        got = mp.attend(given[0], given[1], given[2], scheme)
        near(got, want)
        found = torch.autograd.grad(got, given, ends)
    for ours, theirs in zip(found, torch.autograd.grad(want, exact, ends.double()), strict=True):
        near(ours, theirs)


@both
@pytest.mark.parametrize("warm", [0, 4])
@pytest.mark.parametrize("name", ["RoPE", "ALiBi"])
def test_forward_mode_keeps_its_tangent(name: str, warm: int, device: str):
    """C2: a call that was remembered lost its tangent, or had a wrong one."""
    scheme = mp.Scheme(mp.Rope(64) if name == "RoPE" else mp.Alibi(2), mp.causal)
    q, k, v = inputs(device, 2, 200, 200)
    tangent = noise(device, *q.shape, seed=4)

    def exact(q: Tensor) -> Tensor:
        at = angles(200, q.device)
        return softmax(
            turned(q, at) @ turned(k.double(), at).mT / 8 if name == "RoPE" else capped(q, k.double(), 1e9), v.double()
        )

    _, want = torch.func.jvp(exact, (q.double(),), (tangent.double(),))
    for _ in range(warm):
        mp.attend(q, k, v, scheme)
    _, found = torch.func.jvp(lambda q: mp.attend(q, k, v, scheme), (q,), (tangent,))
    near(found, want)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(mp.attend(forward_ad.make_dual(q, tangent), k, v, scheme)).tangent
    assert dual is not None
    near(dual, want)


@dataclass(frozen=True)
class SlowedField(mp.Rope):
    """A field that is not compared."""

    by: float = field(default=1.0, compare=False, kw_only=True)

    def angles(self, position: Tensor, length: Any = None) -> Tensor:
        return super().angles(position, length) / self.by


def slowed(by: float) -> mp.Rope:
    part = Slowed(64)
    vars(part)["by"] = by
    return part


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["a stretch", "a subclass", "a field"])
def test_what_is_written_to_is_read_again(way: str, dtype: torch.dtype, device: str):
    """C5: the stretch of a user's own that changed, and the second of two equal parts, got the first one's tables."""
    q, k, v = (each.to(dtype) for each in inputs(device, 2, 200, 200))
    stretch = Divide(1.0)
    scheme = mp.Scheme(mp.Rope(64, stretch=stretch), mp.causal)  # pyright: ignore
    for by in (1.0, 8.0, 3.0):
        stretch.by = by
        if way != "a stretch":
            scheme = mp.Scheme(slowed(by) if way == "a subclass" else SlowedField(64, by=by), mp.causal)
        at = angles(200, device, by)
        want = softmax(turned(q.double(), at) @ turned(k.double(), at).mT / 8, v.double())
        for _ in range(4):
            got = mp.attend(q, k, v, scheme)
            if dtype == torch.bfloat16:
                assert float((got.double() - want).abs().max()) < 0.05
            else:
                near(got, want)


@both
def test_a_mask_that_is_written_to_is_made_again(device: str):
    """C6: FlexAttention's block mask was that of the first n."""
    part = Last(64)
    scheme, (q, k, v) = mp.Scheme(part), inputs(device, 2, 1024, 1024)
    for part.n in (64, 600, 64):
        want = softmax(q.double() @ k.double().mT / 8, v.double(), part.n)
        for _ in range(2):
            near(mp.attend(q, k, v, scheme), want)
