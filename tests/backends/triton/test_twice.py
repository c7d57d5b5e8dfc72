"""Queries and keys turned for near keys and for far ones at once: against the specification in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from milepost.backends.rotary import by_table as rotated_twice
from tests.backends.triton.dense import DEVICE, GPU

pytest.importorskip("triton")

from milepost.backends.triton.near_far import both_turns as twice
from milepost.backends.triton.near_far import fields
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config

TILE = {} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1))
SCHEMES: dict[str, Callable[[], mp.Scheme]] = {
    "far keys stay": lambda: mp.Scheme(mp.Rope(16), mp.Rerope(7), causal),
    "far keys turn": lambda: mp.Scheme(mp.Rope(16), mp.SelfExtend(3, 9), causal),
    "neighbours": lambda: mp.Scheme(mp.Rope(16, pairs="neighbours"), mp.LeakyRerope(7, 4), causal),
    "partly": lambda: mp.Scheme(mp.Partial(mp.Rope(12), of=16), mp.LeakyRerope(7, 4), causal),
    "set off": lambda: mp.Scheme(mp.Rope(16), mp.Dilute(mp.Pivot(mp.SelfExtend(3, 9), 12), 12), causal),
    "longer": lambda: mp.Scheme(mp.Rope(16, stretch=mp.Yarn(4, 16)), mp.LeakyRerope(7, 4), causal),
}


@pytest.fixture(params=[0, 64], ids=["two passes", "one pass"])
def ready(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """As on a GPU; what is filled notes whether a launch goes backwards."""
    noted: list[bool] = []
    launch = twice.launch
    monkeypatch.setattr(rotated_twice, "_ready", lambda device: True)
    monkeypatch.setattr(fields, "IN_ONE", request.param)
    monkeypatch.setattr(twice, "launch", lambda *args, **named: noted.append(named["BACK"]) or launch(*args, **named))
    return noted


def answers(
    scheme: mp.Scheme, given: list[Tensor], backend: str, dtype: torch.dtype, tokens_first: bool = False
) -> list[Tensor]:
    leaves = [each.detach().to(dtype).requires_grad_() for each in given]
    q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else each for each in leaves)
    with configs.override(**TILE):
        out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=torch.float64).view(out.shape)
        total = (out.double() * weights).sum() + 0.3 * lse.double().masked_fill(lse.isinf(), 0.0).sum()
        return [out, lse, *torch.autograd.grad(total, leaves)]


def drawn(t: int, s: int) -> list[Tensor]:
    torch.manual_seed(4)
    return [torch.randn(1, heads, n, 16, device=DEVICE) for heads, n in ((2, t), (1, s), (1, s))]


@pytest.mark.parametrize("name", SCHEMES)
def test_outputs_and_gradients_are_the_specifications(name: str, ready: list[bool]):
    scheme, given = SCHEMES[name](), drawn(37, 37)
    ours = answers(scheme, given, "triton", torch.float32, tokens_first=name == "far keys turn")
    assert ready == [False, False, True, True]
    for mine, exact in zip(ours, answers(scheme, given, "reference", torch.float64), strict=True):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("turns", [True, False], ids=["turned", "as it is"])
def test_what_a_part_of_the_tokens_gives_is_added_where_they_stand(turns: bool):
    made = torch.Generator().manual_seed(6)
    near, far = (torch.randn(2, 3, n, 12, generator=made) for n in (9, 5))
    angles = [torch.randn(1, 9, 4, generator=made, dtype=torch.float64) for _ in range(2)]
    waves = [(each.cos().float().to(DEVICE), each.sin().float().to(DEVICE)) for each in angles]
    ours = twice._turned_back(near.to(DEVICE), far.to(DEVICE), 3, waves[0], waves[1] if turns else None, False)

    def back(x: Tensor, angle: Tensor) -> Tensor:
        pairs = torch.complex(x[..., :4], x[..., 4:8]) * torch.exp(-1j * angle[:, None])
        return torch.cat((pairs.real, pairs.imag, x[..., 8:]), -1)

    exact = back(near.double(), angles[0])
    exact[:, :, 3:8] += back(far.double(), angles[1][:, 3:8]) if turns else far.double()
    torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-5, atol=1e-5)


def test_queries_at_the_end_of_a_longer_text(ready: list[bool]):
    scheme, given = SCHEMES["set off"](), drawn(20, 37)
    for mine, exact in zip(
        answers(scheme, given, "triton", torch.float32), answers(scheme, given, "reference", torch.float64), strict=True
    ):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-4, atol=1e-4)
    assert ready


@pytest.mark.parametrize("t", [37, 3])
def test_a_contrast_reaches_channels_that_are_not_turned(t: int, ready: list[bool]):
    scheme = mp.Scheme(mp.Partial(mp.Rope(8), of=16), mp.Pivot(mp.Rerope(2), 7), causal)
    given = drawn(t, 37)
    for mine, exact in zip(
        answers(scheme, given, "triton", torch.float32), answers(scheme, given, "reference", torch.float64), strict=True
    ):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-4, atol=1e-4)
    with torch.no_grad(), configs.override(**TILE):
        alone = mp.attend(*given, scheme, backend="triton")
    torch.testing.assert_close(alone.double(), exact_of(scheme, given), rtol=1e-4, atol=1e-4)


def exact_of(scheme: mp.Scheme, given: list[Tensor]) -> Tensor:
    return mp.attend(*(each.double() for each in given), scheme, backend="reference")


def test_no_rows_at_all(ready: list[bool]):
    q, k, v = (torch.randn(0, 2, 3, 16, device=DEVICE).requires_grad_() for _ in range(3))
    assert mp.attend(q, k, v, SCHEMES["far keys stay"](), backend="triton").shape == (0, 2, 3, 16)
    assert not ready


def test_without_gradients_the_same_comes_out(ready: list[bool]):
    scheme, given = SCHEMES["far keys stay"](), drawn(37, 37)
    with torch.no_grad(), configs.override(**TILE):
        alone = mp.attend(*given, scheme, backend="triton")
    assert all(not each for each in ready)
    torch.testing.assert_close(alone, answers(scheme, given, "triton", torch.float32)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="two bytes an element need a GPU")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", ["stays", "turns", "set off"])
def test_two_bytes_err_no_more_than_torch(width: int, name: str):
    from milepost.bench.harness.plain_torch import plain_attention

    moved = {"stays": mp.Rerope(100), "turns": mp.SelfExtend(4, 100), "set off": mp.Pivot(mp.Rerope(100), 300)}[name]
    scheme = mp.Scheme(mp.Rope(width), moved, causal)
    torch.manual_seed(5)
    given = [torch.randn(2, 4, 700, width, device=DEVICE).bfloat16() for _ in range(3)]

    def of_output(attention: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [each.to(dtype).requires_grad_() for each in given]
        out = attention(*leaves, scheme)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape).to(out.dtype)
        return [out, *torch.autograd.grad((out * weights).sum(), leaves)]

    exact, plain = (of_output(plain_attention, dtype) for dtype in (torch.float64, torch.bfloat16))
    ours = of_output(lambda *each: mp.attend(*each, backend="triton"), torch.bfloat16)
    for mine, torchs, true in zip(ours, plain, exact, strict=True):
        off, theirs = ((each.double() - true).norm() / true.norm() for each in (mine, torchs))
        assert off <= 2 * theirs + 1e-4
