"""Operators that decide nothing twice: what is played is what the body answers, and only for calls that look alike."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

import milepost as mp
from milepost.call.call import CannotRun
from tests.backends.triton.dense import DEVICE

pytest.importorskip("triton")

from milepost.backends.triton.attention import flash
from milepost.backends.triton.rotary import rotate as rotary
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config
from milepost.backends.triton.runtime.played import operator, played
from milepost.memory.kind import SEEN
from milepost.memory.table import MEMORY

NOTHING = (None, None, None, None)


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", (DEVICE,))


class Counted:
    """A body that counts how often it runs."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body, self.runs = body, 0
        self.__name__ = "counted"

    def __call__(self, *args: Any) -> Any:
        self.runs += 1
        return self.body(*args)


def drawn(seed: int, t: int = 20, tokens_first: bool = False) -> list[Tensor]:
    made = torch.Generator().manual_seed(seed)
    found = [torch.randn(1, h, t, 16, generator=made).to(DEVICE) for h in (2, 1, 1)]
    return [each.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else each for each in found]


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float = 0.25, documents: Tensor | None = None) -> tuple[Any, ...]:
    """The arguments of the operator."""
    tokens = (None,) * 4 if documents is None else (documents, documents, None, None)
    return (q, k, v, *NOTHING, scale, 0, flash.UNLIMITED, 0, 0, 0, 0.0, False, *tokens, None, None)


def same(ours: Any, exact: Any) -> None:
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_body_runs_a_few_times_and_then_is_played():
    body = Counted(flash._flash)
    run = played(body)
    for seed in range(8):
        args = causal(*drawn(seed))
        same(run(*args), flash._flash(*args))
    assert body.runs == SEEN + 1


def test_what_is_answered_is_new_every_time():
    run, args = played(flash._flash), causal(*drawn(0))
    answers = [run(*args)[0] for _ in range(SEEN + 4)]
    assert len({each.data_ptr() for each in answers}) == len(answers)


def test_calls_that_look_otherwise_are_not_mixed_up():
    run = played(flash._flash)
    documents = (torch.arange(20, device=DEVICE) // 7)[None]
    calls = [
        causal(*drawn(1)), causal(*drawn(2, t=9)), causal(*drawn(3), scale=0.5), causal(*drawn(4, tokens_first=True)),
        causal(*drawn(5), documents=documents), causal(*drawn(6), documents=documents.int()),
    ]  # fmt: skip
    for _ in range(SEEN + 3):
        for args in calls:
            same(run(*args), flash._flash(*args))


def test_gradients_are_played_too():
    body = Counted(flash._flash_backward)
    run = played(body)
    for seed in range(SEEN + 4):
        q, k, v = drawn(seed)
        documents = (torch.arange(20, device=DEVICE) // 7)[None]
        args = causal(q, k, v, documents=documents)
        out, lse = flash._flash(*args)
        grad = drawn(seed + 50)[0]
        given = (grad, None, q, k, v, out, lse, False, False, *args[3:])
        same(run(*given), flash._flash_backward(*given))
    assert body.runs == SEEN + 1


def test_other_tiles_are_another_kind():
    body = Counted(flash._flash)
    run, args = played(body), causal(*drawn(0))
    for _ in range(SEEN + 3):
        run(*args)
    with configs.override(forward=Config(16, 16, 4, 1, False)):
        run(*args)
    assert body.runs == SEEN + 2


def test_devices_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu", "meta"))
    run = played(lambda x: (torch.empty(4, 2, device=x.device).fill_(1),))
    for _ in range(SEEN + 2):
        run(torch.zeros(4, device="meta"))
    assert run(torch.zeros(4))[0].device.type == "cpu"


def test_threads_that_write_down_at_once_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", ("cpu",))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    run = played(lambda x: (x * 2 + 1,))

    def work() -> None:
        for n in range(1, 150):
            for _ in range(SEEN + 2):
                run(torch.randn(n, 1))

    try:
        for _ in range(4):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            MEMORY.forget()
            assert not is_in_torch_dispatch_mode()
    finally:
        sys.setswitchinterval(before)


def test_signs_that_torch_left_for_later_are_read():
    q, k, v = (each.requires_grad_() for each in drawn(0))
    answers = []
    for backend in ("triton", "reference"):
        out, lse = mp.attend(q, torch._neg_view(k), v, mp.Scheme(mp.causal), backend=backend, return_lse=True)
        weights = torch.complex(torch.ones_like(lse), 2 * torch.ones_like(lse))
        total = (torch.complex(0 * lse, lse).conj() * weights).real.sum() + out.sum()
        answers.append([out, *torch.autograd.grad(total, (q, k, v))])
    for ours, exact in zip(*answers, strict=True):
        torch.testing.assert_close(ours, exact.to(ours.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parts", [(), (mp.Rope(16), mp.Rerope(5))], ids=["plain", "near and far"])
def test_a_gradient_of_the_gradient_is_refused(parts: tuple[object, ...]):
    q, k, v = (each.requires_grad_() for each in drawn(0))
    out = mp.attend(q, k, v, mp.Scheme(*parts, mp.causal), backend="triton")
    with pytest.raises(RuntimeError, match=r"a gradient of the gradient was asked for.*backend='reference'"):
        torch.autograd.grad(out.sin().sum(), q, create_graph=True)


def test_torch_func_keeps_nothing_for_others():
    q, k, v = drawn(0)
    scheme = mp.Scheme(mp.Rope(16, theta=12345.0), mp.causal)
    torch.func.grad(lambda x: mp.attend(x, k, v, scheme).sum())(q)
    ours, exact = (mp.attend(q, k, v, scheme, backend=name) for name in ("triton", "reference"))
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)
    with pytest.raises(CannotRun, match=r"torch\.func and forward-mode gradients do not see through"):
        torch.func.grad(lambda x: mp.attend(x, k, v, scheme, backend="triton").sum())(q)


def test_tensors_without_numbers_go_through_torch():
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.randn(1, 2, 4, 8))
    assert operator("rotate_qk", rotary._rotate_qk, fake) is torch.ops.milepost.rotate_qk
    assert operator("rotate_qk", rotary._rotate_qk, drawn(0)[0]) is not torch.ops.milepost.rotate_qk
    with FakeTensorMode():
        assert operator("rotate_qk", rotary._rotate_qk, drawn(0)[0]) is torch.ops.milepost.rotate_qk


def test_a_graph_that_torch_compiled_plays_its_operators(monkeypatch: pytest.MonkeyPatch):
    body = Counted(rotary._turn)
    monkeypatch.setattr(rotary, "_turn", body)
    angle = torch.rand(1, 11, 8, device=DEVICE)
    turned = torch.compile(
        lambda q, k: rotary.rotate_qk(q, k, angle.cos(), angle.sin()), fullgraph=True, backend="aot_eager"
    )
    for seed in range(SEEN + 4):
        q, k, _ = drawn(seed, t=11)
        before = body.runs
        ours = turned(q, k)
        found = body.runs - before
        same(ours, rotary._rotate_qk(q, k, angle.cos(), angle.sin(), None, None, None, False, False))
    assert found == 0
