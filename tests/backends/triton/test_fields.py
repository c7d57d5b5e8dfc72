"""Near and far keys in one softmax against dense float64, outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.backends.triton.dense import DEVICE, GPU, off

pytest.importorskip("triton")

from milepost import (
    DualChunk,
    LeakyRerope,
    Pivot,
    Rerope,
    Rope,
    Scheme,
    SelfExtend,
    T5Bias,
    Yarn,
    attend,
    causal,
    window,
)
from milepost.backends.triton.near_far import fields as fields_module
from milepost.backends.triton.near_far.fields import Fields, by_vendor, fields
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config

TILE = {} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1))


def dense(
    q: Tensor, k: Tensor, v: Tensor, how: Fields, far_q: Tensor | None, far_k: Tensor | None, table: Tensor | None
) -> tuple[Tensor, Tensor]:
    """softmax over near scores s and far ones (1 + λ)·s − λ·L + gain, whose 1 + λ is in far_q, L = ln Σ e^s of the
    near."""
    h, g, t, s = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    far_q, far_k = q if far_q is None else far_q, k if far_k is None else far_k
    k, far_k, v = (each.repeat_interleave(h // g, 1) for each in (k, far_k, v))
    distance = how.offset + torch.arange(t, device=q.device)[:, None] - torch.arange(s, device=q.device)
    near = q @ k.mT * how.scale
    if table is not None:
        near = near + table.to(q.dtype)[:, distance.clamp(0, table.shape[1] - 1)]
    near = near.masked_fill(~((distance >= 0) & (distance < min(how.near, how.behind))), -torch.inf)
    far = far_q @ far_k.mT * how.scale
    if how.strength is not None:
        far = far - how.strength.to(q.dtype)[:, None, :, None] * torch.logsumexp(near, -1, keepdim=True)
    if how.gain is not None:
        far = far + how.gain.to(q.dtype)[:, None, :, None]
    far = far.masked_fill(~((distance >= how.near) & (distance < how.behind)), -torch.inf)
    lse = torch.logaddexp(torch.logsumexp(near, -1), torch.logsumexp(far, -1))
    return ((near - lse[..., None]).exp() + (far - lse[..., None]).exp()) @ v, lse


def errors(
    dtype: torch.dtype, how: Fields, b: int, h: int, g: int, t: int, s: int, d: int, apart: bool, entries: int,
    of_lse: bool = True,
) -> list[tuple[float, float]]:  # fmt: skip
    """How far out, lse and every gradient are off, and how far dense torch in the same dtype is."""
    torch.manual_seed(1)
    shapes = [(b, h, t, d), (b, g, s, d), (b, g, s, d), *([(b, h, t, d), (b, g, s, d)] if apart else [])]
    tensors = [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]
    if entries:
        tensors.append(torch.randn(h, entries, device=DEVICE))
    grad, grad_lse = torch.randn(b, h, t, d, device=DEVICE), torch.randn(b, h, t, device=DEVICE)

    def answers(attention, wide: torch.dtype | None) -> list[Tensor]:
        leaves = [each.to(wide or each.dtype).requires_grad_() for each in (x.detach() for x in tensors)]
        q, k, v, *more = leaves
        far = (more[0], more[1]) if apart else (None, None)
        out, lse = attention(q, k, v, how, *far, more[-1] if entries else None)
        total = (out * grad.to(out.dtype)).sum().to(lse.dtype)
        if of_lse:
            total = total + (lse * grad_lse.to(lse.dtype)).sum()
        return [out, lse, *torch.autograd.grad(total, leaves)]

    with configs.override(**TILE):
        ours = answers(fields, None)
    theirs, exact = answers(dense, None), answers(dense, torch.float64)
    return [(off(a, c), off(b, c)) for a, b, c in zip(ours, theirs, exact, strict=True)]


@pytest.fixture(params=[(0, 1024), (64, 1024), (64, 0)], ids=["two passes", "one pass", "one pass in many loops"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near and far keys each in a kernel of its own, or both in one, whose near keys take one loop or several."""
    in_one, short = request.param
    monkeypatch.setattr(fields_module, "IN_ONE", in_one)
    monkeypatch.setattr(fields_module, "SHORT", short)


@pytest.mark.sample(6)
@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("groups", [1, 2] if GPU else [1])
@pytest.mark.parametrize(
    ("near", "more", "entries", "apart"),
    [
        (9, {}, 0, True),
        (9, {"strength": 0.6}, 0, True),
        (9, {"behind": 30, "gain": 1.0}, 0, True),
        (40, {"offset": 30}, 0, True),
        (9, {"offset": 30, "strength": 2.0, "gain": 1.5}, 0, True),
        (12, {}, 12, False),
        (100, {"strength": 0.5}, 0, True),
    ][:: 1 if GPU else 2],
    ids=str,
)
def test_two_fields_agree_with_float64(near: int, more: dict[str, float], entries: int, apart: bool, groups: int):
    t, s = 50, 50 + int(more.get("offset", 0))
    made: dict[str, object] = dict(more)
    for name in {"strength", "gain"} & set(more):
        made[name] = torch.rand(1, t, device=DEVICE) * more[name]
    how = Fields(near, 0.25, **made)  # pyright: ignore
    for mine, theirs in errors(torch.float32, how, 1, 2, groups, t, s, 16, apart, entries):
        assert mine <= 2 * theirs + 4e-6


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(("strength", "entries"), [(0.0, 0), (0.8, 0), (0.0, 200)])
@pytest.mark.parametrize("gain", [0.0, -1.5])
def test_far_keys_on_torchs_own_kernel_agree_with_float64(
    dtype: torch.dtype, width: int, strength: float, entries: int, gain: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fields_module, "IN_ONE", 0)
    near = entries or 130
    made = torch.rand(1, 700, device=DEVICE) * strength if strength else None
    gains = torch.rand(1, 700, device=DEVICE) * gain if gain else None
    how = Fields(near, width**-0.5, strength=made, gain=gains)
    q, k = (torch.empty(2, 4, 700, width, device=DEVICE, dtype=dtype) for _ in range(2))
    assert by_vendor(q, k, k, how)
    for of_lse in (False, True):
        for mine, theirs in errors(dtype, how, 2, 4, 4, 700, 700, width, not entries, entries, of_lse):
            assert mine <= 2 * theirs + 4e-6


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="two bytes an element need a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize(("strength", "gain"), [(0.0, 0.0), (0.8, 0.0), (0.0, -2.0), (0.8, 1.5)])
def test_one_pass_over_both_agrees_with_float64(
    dtype: torch.dtype, groups: int, strength: float, gain: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fields_module, "IN_ONE", 64)
    made, gains = (torch.rand(1, 700, device=DEVICE) * each if each else None for each in (strength, gain))
    for of_lse in (False, True):
        how = Fields(130, 0.125, strength=made, gain=gains)
        for mine, theirs in errors(dtype, how, 2, 4, groups, 700, 700, 64, True, 0, of_lse):
            assert mine <= 2 * theirs + 4e-6


@pytest.mark.parametrize("kept", [True, False], ids=["with gradients", "without"])
def test_one_pass_over_both_takes_any_shape(kept: bool, monkeypatch: pytest.MonkeyPatch):
    """Rows that see no near key, or none at all; values of another width; tokens before heads; strengths by text."""
    monkeypatch.setattr(fields_module, "IN_ONE", 64)
    torch.manual_seed(2)
    for b, h, g, t, s, d, dv, near, more in (
        (1, 4, 2, 70, 33, 24, 40, 33, {"behind": 50, "offset": -37}),
        (1, 2, 2, 40, 40, 16, 16, 1, {"ahead": 3, "behind": 20}),
        (2, 2, 1, 17, 33, 8, 16, 5, {"offset": 16}),
    ):
        strength = torch.rand(b, t, device=DEVICE)
        how = Fields(near, 0.3, strength=strength, **more)
        shapes = (b, t, h, d), (b, s, g, d), (b, s, g, dv), (b, t, h, d), (b, s, g, d)
        drawn = [torch.randn(shape, device=DEVICE).transpose(1, 2) for shape in shapes]
        ours, exact = (
            [each.to(dtype).requires_grad_(kept) for each in drawn] for dtype in (torch.float32, torch.float64)
        )
        distance = how.offset + torch.arange(t, device=DEVICE)[:, None] - torch.arange(s, device=DEVICE)
        q, k, v, far_q, far_k = (each.repeat_interleave(h // each.shape[1], 1) for each in exact)
        seen = (distance >= -how.ahead) & (distance < min(near, how.behind))
        close = (q @ k.mT * 0.3).masked_fill(~seen, -torch.inf)
        told = close.logsumexp(-1, keepdim=True)
        distant = far_q @ far_k.mT * 0.3 - strength.double()[:, None, :, None] * told.masked_fill(told == -torch.inf, 0)
        distant = distant.masked_fill(~((distance >= near) & (distance < how.behind)), -torch.inf)
        scores = torch.cat([close, distant], -1)
        blind = (scores == -torch.inf).all(-1)
        assert blind.any() == (how.offset < 0)
        weights = scores.masked_fill(blind[..., None], 0).softmax(-1).masked_fill(blind[..., None], 0)
        wanted = weights @ torch.cat([v, v], 2)
        with configs.override(**TILE):
            out, lse = fields(*ours[:3], how, *ours[3:])
            assert off(out, wanted) < 4e-6
            assert off(lse[~blind], scores.logsumexp(-1)[~blind]) < 4e-6
            assert (lse[blind] == -torch.inf).all()
            if kept:
                grads = (
                    torch.autograd.grad(each.square().sum(), leaves) for each, leaves in ((out, ours), (wanted, exact))
                )
                assert all(off(mine, true) < 4e-6 for mine, true in zip(*grads, strict=True))


SCHEMES = {
    "ReRoPE": lambda d: Scheme(Rope(d), Rerope(9), causal),
    "Leaky ReRoPE": lambda d: Scheme(Rope(d), LeakyRerope(8, 4.0), causal),
    "Self-Extend": lambda d: Scheme(Rope(d), SelfExtend(4, 12), causal),
    "a window": lambda d: Scheme(Rope(d), Rerope(9), causal & window(30)),
    "Pivot over YaRN": lambda d: Scheme(Rope(d, stretch=Yarn(4, 16)), Pivot(Rerope(9), 10, strength=0.7), causal),
    "T5": lambda d: Scheme(T5Bias(2, buckets=8, reach=12), causal),
}


@pytest.mark.sample(5)
@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("name", SCHEMES if GPU else ["Leaky ReRoPE", "a window", "Pivot over YaRN"])
def test_schemes_with_near_and_far_keys_agree_with_the_reference(name: str, monkeypatch: pytest.MonkeyPatch):
    # Cosines and sines are kept and the rotary kernel is used, as on a GPU.
    monkeypatch.setattr("milepost.backends.rotary.by_table._ready", lambda _: True)
    d = 16
    scheme = SCHEMES[name](d).to(DEVICE)
    torch.manual_seed(0)
    for t in (50, 20):
        drawn = [torch.randn(1, heads, n, d, device=DEVICE) for heads, n in ((2, t), (1, 50), (1, 50))]

        def answers(backend: str, dtype: torch.dtype, drawn: list[Tensor] = drawn) -> list[Tensor]:
            q, k, v = (each.to(dtype).requires_grad_() for each in drawn)
            out, lse = attend(q, k, v, scheme.to(dtype), backend=backend, return_lse=True)
            return [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), (q, k, v, *scheme.parameters()))]

        with configs.override(**TILE):
            ours = answers("triton", torch.float32)
        monkeypatch.setattr("milepost.backends.rotary.by_table._ready", lambda _: False)
        for mine, true in zip(ours, answers("reference", torch.float64), strict=True):
            assert off(mine, true) < 4e-6
        monkeypatch.setattr("milepost.backends.rotary.by_table._ready", lambda _: True)
        scheme.float()


@pytest.mark.parametrize("make", [SCHEMES["ReRoPE"], SCHEMES["T5"], lambda d: Scheme(Rope(d), DualChunk(8, 3), causal)])
def test_tensors_without_numbers_have_shapes(make: Callable[[int], Scheme], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.backends.rotary.by_table._ready", lambda _: True)
    with FakeTensorMode(), torch.device(DEVICE):
        q, k, v = (torch.empty(1, 2, 50, 16, requires_grad=True) for _ in range(3))
        out = attend(q, k, v, make(16), backend="triton")
        assert out.shape == q.shape
        assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape
